"""Figures: one file per plot, drawn with seaborn on Matplotlib.

This layer knows runs and metrics. It never imports an engine and never touches the state of pyplot.
"""

from toolkit.plots.loss import loss
from toolkit.plots.predicted import predicted
from toolkit.plots.save import save
from toolkit.plots.staleness import staleness
from toolkit.plots.timeline import timeline
from toolkit.plots.traffic import traffic
from toolkit.plots.waiting import waiting

__all__ = ["loss", "predicted", "save", "staleness", "timeline", "traffic", "waiting"]

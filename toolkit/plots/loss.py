"""A metric against seconds, updates or samples."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from toolkit import metrics
from toolkit.plots.style import canvas, colours, dress, legend, several
from toolkit.run import Run

AGAINST = {"seconds": "time [s]", "updates": "updates of the model", "samples": "samples [rows]"}


def loss(runs: Run | Mapping[str, Run], metric: str = "loss", against: str = "seconds", ax: Axes | None = None) -> Axes:
    """A metric of the model over the course of each run, one line per strategy.

    Parameters
    ----------
    runs : Run or Runs
    metric : str
        Name of a measured metric, such as ``"loss"`` or ``"accuracy"``.
    against : {"seconds", "updates", "samples"}
        The cost on the horizontal axis: time [s], updates of the model (merges), or rows they were computed from.
    ax : Axes, optional
        Draw here; by default on a figure of its own.

    Returns
    -------
    Axes

    Examples
    --------
    >>> from toolkit.run import METRICS, table
    >>> from toolkit.trace import Trace
    >>> values = table(METRICS, [(0.0, -1, 0, "loss", 2.3), (1.5, 0, 32, "loss", 1.9)])
    >>> ax = loss(Run("SSP", "chain(ssp(3), parameter_server())", Trace().frame(), metrics=values))
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('time [s]', 'loss')
    """
    if against not in AGAINST:
        raise ValueError(
            f"{metric} against {against!r} was asked for. The cost of a run is counted in {', '.join(AGAINST)}. "
            f"Choose one of these."
        )
    runs, ax = several(runs), canvas(ax)
    data = pd.concat([course(run, metric) for run in runs.values()], ignore_index=True)
    if data.empty:
        known = sorted({name for run in runs.values() for name in run.metrics["name"]}) or ["nothing"]
        raise ValueError(
            f"A plot of {metric!r} was asked for, and the runs measured {', '.join(known)}. What was not measured "
            f"cannot be drawn. Choose another metric, or train with an evaluation (a timing alone has none)."
        )
    marker = "o" if data.groupby("strategy").size().max() <= 25 else None
    sns.lineplot(
        data, x=against, y="value", hue="strategy", palette=colours(runs), estimator=None, marker=marker,
        markersize=4, markeredgewidth=0, ax=ax,
    )  # fmt: skip
    dress(ax, runs.values(), f"{metric} against {against}", AGAINST[against], metric)
    legend(ax, colours(runs))
    return ax


def course(run: Run, metric: str) -> pd.DataFrame:
    """The values of a metric in one run: `seconds`, `updates`, `samples`, `value`, `strategy`."""
    values = run.metrics[run.metrics["name"] == metric].sort_values("time", kind="stable")
    rounds = metrics.staleness(run)["round"].dropna().astype("int64").sort_values()
    updates = rounds.searchsorted(values["round"].to_numpy(), side="right")
    columns = {"seconds": values["time"], "samples": values["samples"], "value": values["value"]}
    return pd.DataFrame(columns).assign(updates=updates, strategy=run.name)

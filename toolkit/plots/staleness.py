"""How old merged updates were."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from toolkit.intervals import iterations
from toolkit.plots.style import canvas, colours, dress, legend, several
from toolkit.run import Run


def staleness(runs: Run | Mapping[str, Run], ax: Axes | None = None) -> Axes:
    """The share of merged updates at each staleness; see :func:`toolkit.metrics.staleness`.

    Parameters
    ----------
    runs : Run or Runs
    ax : Axes, optional
        Draw here; by default on a figure of its own.

    Returns
    -------
    Axes

    Examples
    --------
    >>> import toolkit as tk
    >>> cluster = tk.Simulator(2, step=tk.constant([1.0, 2.0]), nbytes=4e6)
    >>> run = tk.simulate(tk.chain(tk.bsp(), tk.parameter_server()), cluster, until=tk.iterations(4))
    >>> tk.plots.staleness(run).get_xlabel()
    'merges since its parameters were read'
    """
    runs, ax = several(runs), canvas(ax)
    ages = {name: iterations(run).dropna(subset="committed")["stale"] for name, run in runs.items()}
    data = pd.concat([pd.DataFrame({"stale": age, "strategy": name}) for name, age in ages.items()], ignore_index=True)
    sns.histplot(
        data, x="stale", hue="strategy", hue_order=list(runs), palette=colours(runs), discrete=True, stat="proportion",
        common_norm=False, multiple="dodge", shrink=0.85, alpha=1.0, linewidth=0, ax=ax,
    )  # fmt: skip
    dress(ax, runs.values(), "staleness of merged updates", "merges since its parameters were read", "share of updates")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(ax, colours(runs))
    return ax

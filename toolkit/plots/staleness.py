"""How old merged updates were."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from toolkit.intervals import iterations
from toolkit.plots.style import GREY, by_strategy, canvas, dress, several, together
from toolkit.run import Run

VISIBLE = 0.005  # share of updates


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
    data = together(runs, lambda run: iterations(run).dropna(subset="committed")[["stale"]])
    sns.histplot(
        data, x="stale", **by_strategy(runs), discrete=True, stat="proportion", common_norm=False, multiple="dodge",
        shrink=0.85, alpha=1.0, linewidth=0, ax=ax,
    )  # fmt: skip
    leave_out_the_rare(ax, data)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    return dress(ax, runs, "staleness of merged updates", "merges since its parameters were read", "share of updates")


def leave_out_the_rare(ax: Axes, data: pd.DataFrame) -> None:
    """End the axis where all that follows is too rare to be seen; say how rare."""
    shares = data.groupby("strategy")["stale"].value_counts(normalize=True)
    ages = shares.index.get_level_values("stale")
    last = ages[shares >= VISIBLE].max()
    ax.set_xlim(-0.7, last + 0.7)
    if last < ages.max():
        older = shares[ages > last].groupby("strategy").sum().max()
        text = f"older, up to {ages.max()}: at most {older:.1%} →"
        ax.text(0.99, 0.5, text, transform=ax.transAxes, ha="right", fontsize=9, color=GREY)

"""How long workers waited."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from toolkit import metrics
from toolkit.plots.style import canvas, colours, dress, legend, several
from toolkit.run import Run


def waiting(runs: Run | Mapping[str, Run], ax: Axes | None = None) -> Axes:
    """Seconds that each worker waited for others; see :func:`toolkit.metrics.waiting`.

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
    >>> tk.plots.waiting(run).get_ylabel()
    'waiting [s]'
    """
    runs = several(runs)
    waits = [metrics.waiting(run).reset_index().assign(strategy=name) for name, run in runs.items()]
    data = pd.concat(waits, ignore_index=True)
    ax = canvas(ax, width=min(max(6.4, 0.22 * len(data)), 14.0))
    sns.barplot(
        data, x="worker", y="waiting", hue="strategy", hue_order=list(runs), palette=colours(runs), saturation=1.0,
        errorbar=None, native_scale=True, ax=ax,
    )  # fmt: skip
    dress(ax, runs.values(), "waiting for others", "worker", "waiting [s]")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(ax, colours(runs))
    return ax

"""How long workers waited."""

from __future__ import annotations

from collections.abc import Mapping

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from toolkit import metrics
from toolkit.plots.style import by_strategy, canvas, dress, several, together
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
    data = together(runs, metrics.waiting)
    ax = canvas(ax, width=0.22 * len(data))
    sns.barplot(
        data, x="worker", y="waiting", **by_strategy(runs), saturation=1.0, errorbar=None, native_scale=True, ax=ax
    )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return dress(ax, runs, "waiting for others", "worker", "waiting [s]")

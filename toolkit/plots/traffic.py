"""How many bytes each place sent and received."""

from __future__ import annotations

from collections.abc import Mapping

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from toolkit import metrics
from toolkit.plots.style import GREY, by_strategy, byte_unit, canvas, dress, several, together
from toolkit.run import Run

PLACES = "worker 0, 1, … or shard s0, s1, … of a parameter server"


def traffic(runs: Run | Mapping[str, Run], ax: Axes | None = None) -> Axes:
    """Payload of each place: what it sent upwards, what it received downwards.

    The bytes are those of :func:`toolkit.metrics.traffic`.

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
    >>> tk.plots.traffic(run).get_ylabel()
    'received ← [MB] → sent'
    """
    runs = several(runs)
    data = together(runs, metrics.traffic)
    largest = float(data[["sent", "received"]].max().max()) if len(data) else 0.0
    divisor, unit = byte_unit(largest)
    data = data.assign(sent=data["sent"] / divisor, received=-data["received"] / divisor)
    ax = canvas(ax, width=0.22 * len(data))
    order = sorted(data["place"].unique(), key=lambda place: (not place[:1].isdigit(), len(place), place))
    for side in ("sent", "received"):
        sns.barplot(data, x="place", y=side, **by_strategy(runs), order=order, saturation=1.0, errorbar=None, ax=ax)
    ax.axhline(0.0, color=GREY, linewidth=0.8)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{abs(value):g}"))
    if not largest:
        ax.set_ylim(-1.0, 1.0)
        ax.set_yticks([0.0])
        ax.text(0.5, 0.75, "no bytes", transform=ax.transAxes, ha="center", va="center", color=GREY)
    return dress(ax, runs, "bytes sent and received", PLACES, f"received ← [{unit}] → sent")

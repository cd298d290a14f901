"""How many bytes each place sent and received."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from toolkit import metrics
from toolkit.plots.style import GREY, byte_unit, canvas, colours, dress, legend, several
from toolkit.run import Run


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
    moved = [metrics.traffic(run).reset_index().assign(strategy=name) for name, run in runs.items()]
    data = pd.concat(moved, ignore_index=True)
    divisor, unit = byte_unit(float(data[["sent", "received"]].max().max()) if len(data) else 0.0)
    data = data.assign(sent=data["sent"] / divisor, received=-data["received"] / divisor)
    ax = canvas(ax, width=min(max(6.4, 0.22 * len(data)), 14.0))
    order = sorted(data["place"].unique(), key=lambda place: (not place[:1].isdigit(), len(place), place))
    for side, alpha in (("sent", 1.0), ("received", 0.55)):
        sns.barplot(
            data, x="place", y=side, hue="strategy", hue_order=list(runs), order=order, palette=colours(runs),
            saturation=1.0, alpha=alpha, errorbar=None, legend=side == "sent", ax=ax,
        )  # fmt: skip
    dress(ax, runs.values(), "bytes sent and received", "place", f"received ← [{unit}] → sent")
    ax.axhline(0.0, color=GREY, linewidth=0.8)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{abs(value):g}"))
    legend(ax, colours(runs))
    return ax

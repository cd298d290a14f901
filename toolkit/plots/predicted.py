"""What virtual time foretold, against what a cluster did."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from toolkit.plots.style import GREY, canvas, colours, dress, legend, several
from toolkit.run import Run

QUANTITIES = {
    "iterations_per_second": "merged iterations per second [1/s]",
    "updates_per_second": "updates of the model (merges) per second [1/s]",
    "samples_per_second": "samples per second [rows/s]",
    "seconds": "length of the run [s]",
    "waiting": "waiting of all workers [s]",
    "stale_mean": "mean staleness [merges]",
    "sent": "payload sent [byte]",
    "loss": "last loss",
    "accuracy": "last accuracy",
}


def predicted(
    measured: Run | Mapping[str, Run],
    virtual: Run | Mapping[str, Run],
    quantity: str = "iterations_per_second",
    ax: Axes | None = None,
) -> Axes:
    """One point per strategy: a quantity as predicted in virtual time and as measured.

    On the dashed line both agree.

    Parameters
    ----------
    measured, virtual : Run or Runs
        Paired by name; names that only one of them has are left out.
    quantity : str
        A column of the summary: ``"iterations_per_second"``, ``"updates_per_second"``, ``"samples_per_second"``,
        ``"seconds"``, ``"waiting"``, ``"stale_mean"``, ``"sent"``, ``"loss"`` or ``"accuracy"``.
    ax : Axes, optional
        Draw here; by default on a figure of its own.

    Returns
    -------
    Axes

    Examples
    --------
    >>> import toolkit as tk
    >>> runs = [
    ...     tk.simulate(tk.chain(tk.asp(), tk.parameter_server()), tk.Simulator(2, step=step), until=tk.iterations(4))
    ...     for step in (1.0, 1.1)
    ... ]
    >>> tk.plots.predicted(*runs, quantity="seconds").get_title(loc="left")
    'predicted against measured'
    """
    measured, virtual, ax = several(measured), several(virtual), canvas(ax, width=6.4, height=4.4)
    names = [name for name in measured if name in virtual]
    if not names or quantity not in QUANTITIES:
        raise ValueError(
            f"{quantity!r} of {list(measured)} was to be compared with that of {list(virtual)}. Runs are paired by "
            f"name, and the quantity is one of {', '.join(QUANTITIES)}. Give both sides the same names."
        )
    points = {name: (virtual[name].facts()[quantity], measured[name].facts()[quantity]) for name in names}
    largest = float(np.nanmax([*points.values()], initial=0.0)) * 1.08 or 1.0
    ax.plot([0.0, largest], [0.0, largest], color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    for name, (x, y) in points.items():
        ax.scatter(x, y, s=64, color=[colours([name])[name]], edgecolor="white", linewidth=0.8, zorder=3)
    dress(ax, [*measured.values(), *virtual.values()], "predicted against measured", "", "", grid="both")
    label = QUANTITIES[quantity]
    ax.set_xlabel(f"{label}\nvirtual time")
    ax.set_ylabel(f"{label}\nmeasured")
    ax.set_xlim(0.0, largest)
    ax.set_ylim(0.0, largest)
    ax.set_aspect("equal")
    legend(ax, colours(names))
    return ax

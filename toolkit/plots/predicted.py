"""What virtual time foretold, against what a cluster did."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes

from toolkit.plots.style import GREY, canvas, colours, dress, several
from toolkit.run import Run
from toolkit.runs import Runs

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
MARKERS = "osD^vPhX"


def predicted(
    measured: Run | Mapping[str, Run],
    virtual: Run | Mapping[str, Run],
    quantity: str = "iterations_per_second",
    ax: Axes | None = None,
    tolerance: Mapping[str, float] | None = None,
) -> Axes:
    """One point per strategy: a quantity as predicted in virtual time and as measured.

    On the dashed line both agree. Markers are hollow and differ, so that none hides another.

    Parameters
    ----------
    measured, virtual : Run or Runs
        Paired by name; names that only one of them has are left out.
    quantity : str
        A column of the summary: ``"iterations_per_second"``, ``"updates_per_second"``, ``"samples_per_second"``,
        ``"seconds"``, ``"waiting"``, ``"stale_mean"``, ``"sent"``, ``"loss"`` or ``"accuracy"``.
    ax : Axes, optional
        Draw here; by default on a figure of its own.
    tolerance : {name: float}, optional
        How far a prediction may be from what was measured, in units of the quantity. It is drawn as a bar around the
        measured value, which meets the dashed line if the prediction is within it.

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
    paired = Runs({name: measured[name] for name in names})
    points = {name: (virtual[name].facts()[quantity], run.facts()[quantity]) for name, run in paired.items()}
    allowed = {name: (tolerance or {}).get(name, 0.0) for name in names}
    ends = [(foretold, real + allowed[name]) for name, (foretold, real) in points.items()]
    largest = float(np.nanmax(ends, initial=0.0)) * 1.08 or 1.0
    ax.plot([0.0, largest], [0.0, largest], color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    dots = [
        ax.scatter(*points[name], s=64, marker=marker, facecolor="none", edgecolor=colour, linewidth=1.8, label=name)
        for marker, (name, colour) in zip(cycle(MARKERS), colours(paired).items(), strict=False)
    ]
    for name, colour in colours(paired).items():
        if allowed[name]:
            ax.errorbar(*points[name], yerr=allowed[name], color=colour, linewidth=1.2, capsize=4, zorder=1)
    label = QUANTITIES[quantity]
    dress(
        ax, paired, "predicted against measured", f"{label}\nvirtual time", f"{label}\nmeasured", grid="both",
        note=f"on the dashed line both agree{'; bars: tolerance' if tolerance else ''}", entries=dots,
    )  # fmt: skip
    ax.set_xlim(0.0, largest)
    ax.set_ylim(0.0, largest)
    ax.set_aspect("equal")
    return ax

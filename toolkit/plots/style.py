"""How every figure looks: one colour per strategy, units on the axes, and on each figure what its seconds are."""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from toolkit.run import Run
from toolkit.runs import Runs

Colour: TypeAlias = tuple[float, float, float]

PHASE_COLOURS = {"compute": "#4c78a8", "send": "#f2a13a", "apply": "#54a868", "wait": "#e3e3e3"}
GREY = "0.45"

_given: dict[str, Colour] = {}


class Picture(Axes):
    """Axes that show their figure as the last line of a cell, although no pyplot state knows of it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        if (figure := self.get_figure(root=True)) is not None:
            figure.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def colours(names: Iterable[str]) -> dict[str, Colour]:
    """The colour of each strategy: by the order in which names are first drawn, and from then on the same everywhere.

    Ten colours that colour-blind readers tell apart, then hues by the golden ratio.

    Examples
    --------
    >>> first = colours(["BSP", "SSP"])
    >>> colours(["SSP", "ASP"])["SSP"] == first["SSP"]
    True
    """
    palette, names = sns.color_palette("colorblind"), list(names)
    for name in names:
        slot = len(_given)
        if name not in _given:
            hue = colorsys.hls_to_rgb(slot * (math.sqrt(5) - 1) / 2 % 1, 0.42, 0.55)
            _given[name] = tuple(palette[slot]) if slot < len(palette) else hue
    return {name: _given[name] for name in names}


def several(runs: Run | Mapping[str, Run]) -> Runs:
    """One run or many, as many; their colours are fixed here, so that they follow the order of the runs."""
    many = Runs({runs.name: runs} if isinstance(runs, Run) else runs)
    if not many:
        raise ValueError(
            "No run was given to a plot. A figure of nothing says nothing. Give a Run, or Runs with one in it."
        )
    colours(list(many))
    return many


def canvas(ax: Axes | None, width: float = 6.4, height: float = 3.8) -> Axes:
    """`ax`, or axes of a new figure of this size [inch]."""
    if ax is not None:
        return ax
    return Figure(figsize=(width, height), layout="constrained").add_subplot(axes_class=Picture)


def dress(ax: Axes, runs: Iterable[Run], title: str, xlabel: str, ylabel: str, grid: str = "y") -> Axes:
    """Title, labels and light grid; below the title whether the seconds are measured or virtual."""
    note = " and ".join(sorted({run.clock for run in runs}))
    ax.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=19)
    ax.annotate(
        note, (0.0, 1.0), xytext=(0, 5), xycoords="axes fraction", textcoords="offset points", fontsize=9, color=GREY
    )
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(color=GREY, labelsize=9)
    ax.grid(False)
    if grid:
        ax.grid(axis=grid, color="0.92", linewidth=0.8)  # type: ignore[arg-type]
    ax.set_axisbelow(True)
    return ax


def legend(ax: Axes, entries: Mapping[str, Any]) -> None:
    """The legend of names and colours, right of the axes where it hides no data; none for a single entry."""
    if (old := ax.get_legend()) is not None:
        old.remove()
    if len(entries) > 1:
        patches = [Patch(color=colour, label=name) for name, colour in entries.items()]
        ax.legend(
            handles=patches, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9, handlelength=1.0
        )


def byte_unit(largest: float) -> tuple[float, str]:
    """Divisor and name of the decimal unit in which `largest` [byte] has at most four digits before the point.

    Examples
    --------
    >>> byte_unit(16_000_000.0)
    (1000000.0, 'MB')
    """
    for divisor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= divisor:
            return divisor, unit
    return 1.0, "byte"

"""How every figure looks: one colour per strategy, units on the axes, and on each figure what its seconds are."""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from toolkit.run import Run
from toolkit.runs import Runs

Colour: TypeAlias = tuple[float, float, float]

PHASE_COLOURS = {"compute": "#4c78a8", "send": "#f2a13a", "apply": "#54a868", "wait": "#e3e3e3"}
POLICY_COLOURS = {
    **{"bsp": "#0173b2", "asp": "#d55e00", "ssp": "#029e73", "dssp": "#56b4e9"},
    **{"elastic_bsp": "#cc78bc", "backup": "#949494", "switch": "#ca9161"},
}  # colour-blind readers tell them apart
SHADES = ((1.0, 0.0), (0.5, 0.0), (0.5, 0.5))  # as it is, dark, light: factor and summand of red, green and blue
GREY = "0.45"

_given: dict[tuple[str, str], Colour] = {}


class Picture(Axes):
    """Axes that show their figure as the last line of a cell, although no pyplot state knows of it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        if (figure := self.get_figure(root=True)) is not None:
            figure.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def colours(runs: Mapping[str, Run]) -> dict[str, Colour]:
    """The colour of each run: that of its policy, the same in every figure and session.

    The second strategy of a policy that is drawn has a dark shade of it, the third a light one. Further ones, and those
    whose policy is not of this library, have hues by the golden ratio. A name keeps the colour it once had.

    Examples
    --------
    >>> from toolkit.trace import Trace
    >>> recipes = {"Local SGD": "chain(bsp(), all_reduce(ring), local_steps(8))", "ASP": "chain(asp(), gossip(ring))"}
    >>> runs = {name: Run(name, recipe, Trace().frame()) for name, recipe in recipes.items()}
    >>> colours({"ASP": runs["ASP"]})["ASP"] == colours(runs)["ASP"]
    True
    """
    keys = {name: (run.recipe.removeprefix("chain(").partition("(")[0], name) for name, run in runs.items()}
    for key in keys.values():
        if key not in _given:
            _given[key] = new_colour(key[0])
    return {name: _given[key] for name, key in keys.items()}


def new_colour(policy: str) -> Colour:
    """A colour that no strategy has yet."""
    shade = sum(known == policy for known, _ in _given)
    if policy not in POLICY_COLOURS or shade >= len(SHADES):
        return colorsys.hls_to_rgb(len(_given) * (math.sqrt(5) - 1) / 2 % 1, 0.42, 0.55)
    factor, summand = SHADES[shade]
    red, green, blue = (factor * part + summand for part in to_rgb(POLICY_COLOURS[policy]))
    return red, green, blue


def several(runs: Run | Mapping[str, Run]) -> Runs:
    """One run or many, as many; their colours are fixed here, so that they follow the order of the runs."""
    many = Runs({runs.name: runs} if isinstance(runs, Run) else runs)
    if not many:
        raise ValueError(
            "No run was given to a plot. A figure of nothing says nothing. Give a Run, or Runs with one in it."
        )
    colours(many)
    return many


def together(runs: Runs, table: Callable[[Run], pd.DataFrame | pd.Series]) -> pd.DataFrame:
    """A table of each run, below each other, with a column `strategy`."""
    return pd.concat([table(run).reset_index().assign(strategy=name) for name, run in runs.items()], ignore_index=True)


def by_strategy(runs: Runs) -> dict[str, Any]:
    """How seaborn tells strategies apart; the legend comes from :func:`dress`."""
    return {"hue": "strategy", "hue_order": list(runs), "palette": colours(runs), "legend": False}


def canvas(ax: Axes | None, width: float = 6.4, height: float = 3.8) -> Axes:
    """`ax`, or axes of a new figure of this size [inch], within what a page holds."""
    if ax is not None:
        return ax
    size = min(max(width, 6.4), 14.0), min(height, 14.0)
    return Figure(figsize=size, layout="constrained").add_subplot(axes_class=Picture)


def dress(
    ax: Axes,
    runs: Runs,
    title: str,
    xlabel: str,
    ylabel: str,
    grid: str = "y",
    note: str = "",
    entries: Sequence[Artist] = (),
) -> Axes:
    """Title, labels, light grid and legend; below the title a note, by default whether seconds are measured or virtual.

    The legend lies right of the axes, where it hides no data: by default strategies and their colours, and none for
    one run alone.
    """
    note = note or " and ".join(sorted({run.clock for run in runs.values()}))
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
    ax.grid(axis=grid, color="0.92", linewidth=0.8)  # type: ignore[arg-type]
    ax.set_axisbelow(True)
    entries = entries or (patches(colours(runs)) if len(runs) > 1 else [])
    if entries:
        corner: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        ax.legend(handles=entries, **corner, frameon=False, fontsize=9, handlelength=1.0)
    return ax


def patches(entries: Mapping[str, Colour | str]) -> list[Patch]:
    """Entries of a legend: names and colours."""
    return [Patch(color=colour, label=name) for name, colour in entries.items()]


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

"""What a comparison is: two ways of doing one thing, timed in turns on the same cores."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

#: Pairs of figures behind a ratio, and pairs before them that do not count.
TURNS, WARM = 15, 2


@dataclass(frozen=True)
class Result:
    """A row of the table.

    Attributes
    ----------
    case : str
        ``"all-reduce, 4 MiB, against torch gloo"``.
    ours, rival : float [unit]
        Medians. A rival may be a bound that follows from other figures of the same run.
    ratio : float
        Median over the turns of how many times better ours is; more than 1 is better, whatever the unit.
    spread : float
        Distance between the quartiles of the ratio.
    target : float, optional
        What the ratio is to reach.
    """

    case: str
    ours: float
    rival: float
    unit: str
    ratio: float
    spread: float
    target: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target was reached; None where there is none."""
        return None if self.target is None else self.ratio >= self.target


def in_turns(
    ours: Callable[[], float], rival: Callable[[], float], turns: int = TURNS, warm: int = WARM
) -> list[tuple[float, float]]:
    """Figures of both, measured one after the other, over and over; who begins changes from turn to turn."""
    pairs = []
    for turn in range(warm + turns):
        if turn % 2:
            theirs, mine = rival(), ours()
        else:
            mine, theirs = ours(), rival()
        pairs.append((mine, theirs))
    return pairs[warm:]


def compared(
    case: str, pairs: Iterable[tuple[float, float]], unit: str, target: float | None = None, less: bool = True
) -> Result:
    """The row of a comparison; `less` is whether smaller figures are better."""
    mine, theirs = (np.array(side) for side in zip(*pairs, strict=True))
    ratios = theirs / mine if less else mine / theirs
    low, high = np.percentile(ratios, [25, 75])
    return Result(
        case,
        float(np.median(mine)),
        float(np.median(theirs)),
        unit,
        float(np.median(ratios)),
        float(high - low),
        target,
    )


def bounded(case: str, figures: Sequence[float], bound: float, unit: str, less: bool = True) -> Result:
    """The row of a figure that is to stay within a bound."""
    return compared(case, [(figure, bound) for figure in figures], unit, 1.0, less)


def middle(figures: Iterable[float]) -> float:
    """The median."""
    return float(statistics.median(figures))


def cores() -> list[int]:
    """The cores on which this process may run."""
    return sorted(os.sched_getaffinity(0))

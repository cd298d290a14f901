"""Counter-based randomness: a draw is a function of its counters, never of the order in which draws are made."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_MASK: Final = (1 << 64) - 1


def mixed(seed: int, *counters: int) -> int:
    """A 64-bit integer that depends on every counter (the finaliser of SplitMix64, Steele et al. 2014)."""
    return _fold(_begun(seed, *counters[:-1]), counters[-1]) if counters else _fold(0, seed)


@lru_cache(maxsize=1 << 16)
def _begun(*counters: int) -> int:
    """What all counters but the last give: the same for every step of a worker."""
    x = 0
    for counter in counters:
        x = _fold(x, counter)
    return x


def _fold(x: int, counter: int) -> int:
    x = (x + 0x9E3779B97F4A7C15 + (counter & _MASK)) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, *counters: int) -> float:
    """A number in (0, 1), the same for the same counters.

    Examples
    --------
    >>> uniform(0, 3, 17) == uniform(0, 3, 17) != uniform(0, 3, 18)
    True
    """
    return ((mixed(seed, *counters) >> 11) + 0.5) / (1 << 53)


def choose(count: int, seed: int, *counters: int) -> int:
    """A number in ``range(count)``, the same for the same counters."""
    return int(uniform(seed, *counters) * count)

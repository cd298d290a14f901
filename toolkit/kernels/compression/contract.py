"""What every codec is made of: the types of its two functions, and random numbers known to both ends."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.floating]
Payload: TypeAlias = tuple[NDArray[Any], ...]
Memory: TypeAlias = Vector | None
SeedKey: TypeAlias = tuple[int, ...]

_DOMAIN = 0xC0DEC  # keeps these draws apart from others that count from the same seed


def generator(key: SeedKey) -> np.random.Generator:
    """Random numbers that are a function of `key` alone: drawn alike wherever and whenever.

    Parameters
    ----------
    key : tuple of int, >= 0
        Such as (seed, clock); its length counts, so (1,) and (1, 0) differ.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((_DOMAIN, len(key), *key))))

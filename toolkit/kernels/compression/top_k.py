"""Top-k: positions [k, int32] and values [k] of the largest magnitudes, k = ceil(fraction n).

Aji and Heafield 2017; with memory, Stich, Cordonnier and Jaggi 2018.
"""

from __future__ import annotations

from decimal import Decimal
from math import ceil

import numpy as np

from toolkit.kernels.compression.contract import Memory, Payload, SeedKey, Vector


def kept(fraction: float, n: int) -> int:
    """How many of `n` values travel, by the decimal number as written: 7 % of 100 are 7."""
    return ceil(Decimal(repr(fraction)) * n)


def encode(vector: Vector, memory: Memory, key: SeedKey, fraction: float) -> tuple[Payload, Memory]:
    """Positions in ascending order, and values; a tie goes to the lowest position, NaN counts as infinite."""
    k = kept(fraction, vector.size)
    magnitude = np.where(np.isnan(vector), np.inf, np.abs(vector))
    threshold = np.partition(magnitude, vector.size - k)[vector.size - k]
    chosen = magnitude > threshold
    chosen[np.flatnonzero(magnitude == threshold)[: k - np.count_nonzero(chosen)]] = True
    positions = np.flatnonzero(chosen).astype(np.int32)
    return (positions, vector[positions]), memory


def decode(payload: Payload, n: int, key: SeedKey, fraction: float) -> Vector:
    """The values [n] at their positions, zero elsewhere."""
    positions, values = payload
    vector = np.zeros(n, values.dtype)
    vector[positions] = values
    return vector

"""Random-k: values [k] at positions that both ends draw from the seed key, k = ceil(fraction n).

Unscaled, hence a projection, as error feedback wants it (Stich, Cordonnier and Jaggi 2018). Under one key it is linear.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toolkit.kernels.compression.contract import Memory, Payload, SeedKey, Vector, generator
from toolkit.kernels.compression.top_k import kept


def encode(vector: Vector, memory: Memory, key: SeedKey, fraction: float, seed: int) -> tuple[Payload, Memory]:
    """The values at the drawn positions."""
    return (vector[_positions(vector.size, key, fraction, seed)],), memory


def decode(payload: Payload, n: int, key: SeedKey, fraction: float, seed: int) -> Vector:
    """The values [n] at the drawn positions, zero elsewhere."""
    vector = np.zeros(n, payload[0].dtype)
    vector[_positions(n, key, fraction, seed)] = payload[0]
    return vector


def _positions(n: int, key: SeedKey, fraction: float, seed: int) -> NDArray[np.int64]:
    drawn = generator((seed, *key)).choice(n, kept(fraction, n), replace=False, shuffle=False)
    return np.sort(drawn)

"""Sign: one bit for each value [ceil(n / 8), uint8] and the mean magnitude [1]; x_i -> sign(x_i) mean|x|.

Seide et al. 2014; with error feedback, Karimireddy et al. 2019.
"""

from __future__ import annotations

import numpy as np

from toolkit.kernels.compression.contract import Memory, Payload, SeedKey, Vector


def encode(vector: Vector, memory: Memory, key: SeedKey) -> tuple[Payload, Memory]:
    """Bits of the negative values, and the scale."""
    return (np.packbits(vector < 0), np.abs(vector).mean(keepdims=True)), memory


def decode(payload: Payload, n: int, key: SeedKey) -> Vector:
    """Plus or minus the scale [n]; zero counts as positive."""
    bits, scale = payload
    return np.where(np.unpackbits(bits, count=n), -scale, scale)

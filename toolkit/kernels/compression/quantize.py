"""QSGD: each value rounded at random to a multiple of m / levels [n, int8], and m = max|x| [1].

Alistarh et al. 2017. Unbiased: the mean over seed keys is the vector; no value errs by more than m / levels.
"""

from __future__ import annotations

import numpy as np

from toolkit.kernels.compression.contract import Memory, Payload, SeedKey, Vector, generator


def encode(vector: Vector, memory: Memory, key: SeedKey, levels: int) -> tuple[Payload, Memory]:
    """Signed steps, and the largest magnitude; one value that is not finite makes all of them NaN."""
    # at least the smallest normal number: zeros need no case of their own, and quotients stay exact
    scale = np.maximum(np.abs(vector).max(keepdims=True), np.finfo(vector.dtype).tiny)
    if not np.isfinite(scale[0]):
        return (np.zeros(vector.size, np.int8), np.full_like(scale, np.nan)), memory
    steps = np.floor(np.abs(vector) / scale * levels + generator(key).random(vector.size, vector.dtype))
    return (np.copysign(np.minimum(steps, levels), vector).astype(np.int8), scale), memory


def decode(payload: Payload, n: int, key: SeedKey, levels: int) -> Vector:
    """The rounded values [n]."""
    steps, scale = payload
    return steps.astype(scale.dtype) * (scale / levels)

"""Half precision: each value as a 16-bit float [n, float16]. Linear up to rounding, as long as sums stay in range."""

from __future__ import annotations

import numpy as np

from toolkit.kernels.compression.contract import Memory, Payload, SeedKey, Vector

_LIMIT = float(np.finfo(np.float16).max)


def encode(vector: Vector, memory: Memory, key: SeedKey) -> tuple[Payload, Memory]:
    """Rounded values; a finite one stays finite, so that the error left behind is finite too."""
    limited = np.where(np.isfinite(vector), np.clip(vector, -_LIMIT, _LIMIT), vector)
    return (limited.astype(np.float16),), memory


def decode(payload: Payload, n: int, key: SeedKey) -> Vector:
    """The values [n] in single precision, which holds them exactly."""
    return payload[0].astype(np.float32)

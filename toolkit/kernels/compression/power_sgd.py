"""PowerSGD: the vector as a near-square matrix M [rows, columns] of low rank. Vogels, Karimireddy and Jaggi 2019.

Own basis: P = orth(M Q) [rows, rank] and Q = M^T P [columns, rank] travel, and Q is the memory from which the next
power iteration starts. Shared basis: Q is orthonormal and drawn from the seed key, M Q travels flat; it is linear.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from toolkit.kernels.compression.contract import Memory, Payload, SeedKey, Vector, generator


def encode(vector: Vector, memory: Memory, key: SeedKey, rank: int, basis: str) -> tuple[Payload, Memory]:
    """The factors that travel, and the basis to start from next time."""
    rows, columns = shape(vector.size)
    matrix = np.zeros((rows, columns), vector.dtype)
    matrix.reshape(-1)[: vector.size] = vector
    if basis == "shared":
        return ((matrix @ _draw(columns, rank, key, vector.dtype)).reshape(-1),), memory
    start = _draw(columns, rank, key, vector.dtype) if memory is None else memory
    left = np.linalg.qr(matrix @ start).Q
    right = matrix.T @ left
    return (left, right), right


def decode(payload: Payload, n: int, key: SeedKey, rank: int, basis: str) -> Vector:
    """The low-rank matrix, flat and without the padding [n]."""
    rows, columns = shape(n)
    if basis == "shared":
        left, right = payload[0].reshape(rows, -1), _draw(columns, rank, key, payload[0].dtype)
    else:
        left, right = payload
    return (left @ right.T).reshape(-1)[:n]


def shape(n: int) -> tuple[int, int]:
    """Rows and columns of the smallest near-square matrix that holds `n` values, n >= 1; never wider than high."""
    rows = isqrt(n - 1) + 1
    return rows, -(-n // rows)


def _draw(columns: int, rank: int, key: SeedKey, dtype: np.dtype[np.floating]) -> Vector:
    # always drawn in double precision, so that both ends agree whatever travels between them
    gaussian = generator(key).standard_normal((columns, min(rank, columns)))
    return np.linalg.qr(gaussian).Q.astype(dtype)

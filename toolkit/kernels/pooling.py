"""The maximum over windows, with a derivative that writes each value once."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def max_pool(x: jax.Array, axis: int, size: int, stride: int) -> jax.Array:
    r"""The maximum over windows of `size` values along an axis, one every `stride` values.

    :math:`y_j = \max_{0 \le t < k} x_{s j + t - p}`, padded as ``"SAME"``: :math:`\lceil n / s \rceil`
    windows, with the shorter part of the padding before. The derivative goes to the first of equal values.

    Parameters
    ----------
    x : array, shape [..., n, ...]
        Any values.
    axis : int
        Where the windows lie.
    size, stride : int, >= 1
        :math:`k` and :math:`s`.

    Returns
    -------
    array, shape [..., ceil(n / stride), ...]

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from toolkit.kernels.pooling import max_pool
    >>> max_pool(jnp.array([1.0, 2.0, 0.0, 3.0]), 0, 3, 2).tolist()
    [2.0, 3.0]
    """
    return _forward(x, axis, size, stride)[0]


def _forward(x: jax.Array, axis: int, size: int, stride: int) -> tuple[jax.Array, jax.Array]:
    first, *others = taps(x, axis, size, stride)
    for values in others:
        first = jnp.maximum(first, values)
    return first, x


def _backward(axis: int, size: int, stride: int, x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    y, _ = _forward(x, axis, size, stride)
    before, windows = edges(x.shape[axis], size, stride)[0], y.shape[axis]
    given, free = [], jnp.ones_like(y, bool)
    for values in taps(x, axis, size, stride):
        won = free & (values == y)
        given.append(jnp.where(won, cotangent, jnp.zeros_like(cotangent)))
        free &= ~won
    # Value s j + r of the padded axis is in window j as its r-th, in window j - 1 as its (s + r)-th, and so on.
    length = windows - 1 + -(-size // stride)
    phases = []
    for r in range(stride):
        moved = [shifted(given[t], axis, t // stride, length) for t in range(r, size, stride)]
        phases.append(sum(moved, jnp.zeros_like(shifted(cotangent, axis, 0, length))))
    whole = jnp.stack(phases, axis + 1).reshape(*x.shape[:axis], length * stride, *x.shape[axis + 1 :])
    short = max(0, before + x.shape[axis] - length * stride)  # values behind the last window
    whole = shifted(whole, axis, 0, length * stride + short)
    return (lax.slice_in_dim(whole, before, before + x.shape[axis], axis=axis),)


max_pool.defvjp(_forward, _backward)


def edges(length: int, size: int, stride: int) -> tuple[int, int]:
    """How much is missing before the first value and behind the last."""
    missing = max(0, (-(-length // stride) - 1) * stride + size - length)
    return missing // 2, missing - missing // 2


def taps(x: jax.Array, axis: int, size: int, stride: int) -> list[jax.Array]:
    """The first value of each window, the second of each, and so on."""
    before, behind = edges(x.shape[axis], size, stride)
    least = jnp.array(-jnp.inf, x.dtype)
    x = lax.pad(x, least, [(before, behind, 0) if n == axis else (0, 0, 0) for n in range(x.ndim)])
    last = (-(-(x.shape[axis] - before - behind) // stride) - 1) * stride
    return [lax.slice_in_dim(x, t, t + last + 1, stride, axis) for t in range(size)]


def shifted(values: jax.Array, axis: int, by: int, length: int) -> jax.Array:
    """`by` zeros, the values, and zeros up to a length."""
    around = (by, length - by - values.shape[axis], 0)
    return lax.pad(
        values, jnp.zeros((), values.dtype), [around if n == axis else (0, 0, 0) for n in range(values.ndim)]
    )

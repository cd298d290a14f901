"""Batch normalization with its derivative in closed form, and the rectifier that follows it."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

Normalized: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]
Kept: TypeAlias = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def normalize(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> Normalized:
    r"""Values whose mean and variance over all but the last axis are those of `bias` and `scale`.

    .. math:: y = \gamma \hat x + \beta, \quad \hat x = r (x - \mu), \quad r = (\sigma^2 + \epsilon)^{-1/2}

    With the cotangent :math:`g` of :math:`y` and means over the :math:`m` values of a channel, the derivatives are

    .. math:: \beta' = \sum g, \quad \gamma' = \sum g \hat x, \quad
              x' = \gamma r \, (g - \beta' / m - \hat x \gamma' / m)

    The statistics that are returned count as constants.

    Parameters
    ----------
    x : array, shape [..., channels]
        At least one value per channel.
    scale, bias : array, shape [channels]
        :math:`\gamma` and :math:`\beta`.
    epsilon : float, > 0
        Keeps a constant channel finite.

    Returns
    -------
    y : array, shape [..., channels]
    mean, variance : array, shape [channels]

    References
    ----------
    Ioffe, Szegedy, "Batch normalization: accelerating deep network training", 2015.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from toolkit.kernels.normalization import normalize
    >>> y, mean, variance = normalize(jnp.array([[1.0], [3.0]]), jnp.ones(1), jnp.zeros(1), 1e-9)
    >>> y.tolist(), mean.tolist(), variance.tolist()
    ([[-1.0], [1.0]], [2.0], [1.0])
    """
    return _forward(x, scale, bias, epsilon)[0]


def _forward(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> tuple[Normalized, Kept]:
    axes = tuple(range(x.ndim - 1))
    mean = x.mean(axes)
    # One pass over the values; rounding may leave a small negative variance.
    variance = jnp.maximum(0, (x * x).mean(axes) - mean * mean)
    inverse = lax.rsqrt(variance + epsilon)
    slope = inverse * scale
    y = x * along(slope, x) + along(bias - mean * slope, x)
    return (y, mean, variance), (x, scale, mean, inverse)


def _backward(epsilon: float, kept: Kept, cotangents: Normalized) -> Normalized:
    x, scale, mean, inverse = kept
    given, axes, count = cotangents[0], tuple(range(x.ndim - 1)), x.size // x.shape[-1]
    bias = given.sum(axes)
    slopes = inverse * ((given * x).sum(axes) - mean * bias)
    # The derivative by x as a sum of one multiple of g, one of x and a constant: a single pass over both.
    of_given = scale * inverse
    of_x = -of_given * inverse * slopes / count
    constant = -of_given * bias / count - of_x * mean
    return along(of_given, x) * given + along(of_x, x) * x + along(constant, x), slopes, bias


normalize.defvjp(_forward, _backward)


def along(values: jax.Array, x: jax.Array) -> jax.Array:
    """One value per channel, shaped to meet `x`."""
    return values.reshape((1,) * (x.ndim - 1) + values.shape)


def rectify(x: jax.Array) -> jax.Array:
    r"""The rectifier :math:`\max(0, x)`, with the derivative 0 at 0; what is not a number stays so.

    It is a choice between two arrays, which XLA computes once and keeps, where it would compute a maximum anew,
    with all that leads to it, for each of its uses: the next convolution, its derivatives and the sum around a residual
    unit.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from toolkit.kernels.normalization import rectify
    >>> rectify(jnp.array([-1.0, 0.0, 2.0, jnp.nan])).tolist()
    [0.0, 0.0, 2.0, nan]
    """
    return jnp.where(x <= 0, jnp.zeros_like(x), x)

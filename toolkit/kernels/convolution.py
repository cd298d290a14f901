"""Convolutions of images whose derivatives XLA computes well on CPUs.

XLA hands most two-dimensional convolutions of a CPU to a fast library, but not those between 16 channels or fewer, not
the derivative of a strided one, and not one along a single axis. Each of these is written here as one that it does.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

Padding: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

# With no more channels than this on both sides XLA falls back to a convolution of half the speed.
NARROW = 16


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    r"""The convolution of images with a kernel, of which every `stride`-th pixel is kept.

    With :math:`p = \lfloor (k - 1) / 2 \rfloor` for stride 1, and XLA's ``"SAME"`` padding for others, it is

    .. math:: y_{n i j d} = \sum_{a b c} x_{n, s i + a - p, s j + b - p, c} \; k_{a b c d}

    where `x` counts as zero outside.

    Parameters
    ----------
    x : array, shape [rows, height, width, channels]
        Images. Those along one axis have the height 1, and a kernel of height 1.
    kernel : array, shape [a, b, channels, outputs]
        The weights.
    stride : int, >= 1
        Along both axes.

    Returns
    -------
    array, shape [rows, ceil(height / stride), ceil(width / stride), outputs]

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from toolkit.kernels.convolution import convolve
    >>> convolve(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1)))[0, :, :, 0].tolist()[0]
    [4.0, 6.0, 6.0, 4.0]
    """
    around = padding(x, kernel, stride)
    return correlate(x, kernel, around) if stride == 1 else strided(x, kernel, stride)


def _forward(x: jax.Array, kernel: jax.Array, stride: int) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return convolve(x, kernel, stride), (x, kernel)


def _backward(stride: int, kept: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = kept
    if stride > 1:
        (weights,) = jax.vjp(lambda kernel: strided(x, kernel, stride), kernel)[1](cotangent)
        return by_phases(x, kernel, stride, cotangent), weights
    around = padding(x, kernel, 1)
    pixels = correlate(cotangent, kernel[::-1, ::-1].swapaxes(2, 3), (around[0][::-1], around[1][::-1]))
    # Channels take the place of the rows, and rows that of the channels.
    weights = correlate(x.transpose(3, 1, 2, 0), cotangent.transpose(1, 2, 0, 3), around).transpose(1, 2, 0, 3)
    return pixels, weights


convolve.defvjp(_forward, _backward)


def padding(x: jax.Array, kernel: jax.Array, stride: int) -> Padding:
    """How many zeros stand before and after each axis."""
    tall, broad = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], (stride, stride), "SAME")
    return (tall[0], tall[1]), (broad[0], broad[1])


def correlate(x: jax.Array, kernel: jax.Array, around: Padding, strides: tuple[int, int] = (1, 1)) -> jax.Array:
    """The sum of products at each place where the kernel fits into the padded images."""
    width, outputs = x.shape[2] + sum(around[1]) - kernel.shape[1] + 1, kernel.shape[3]
    pixels = neighbours(width, x.shape[3], outputs) if strides == (1, 1) else 1
    if pixels > 1:
        wide = correlate(x, banded(kernel, pixels), around, (1, pixels))
        return wide.reshape(*wide.shape[:2], width, outputs)
    return lax.conv_general_dilated(x, kernel, strides, around, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def neighbours(width: int, channels: int, outputs: int) -> int:
    """How many pixels beside each other are computed as channels of one, so that there are more than NARROW."""
    if max(channels, outputs) > NARROW:
        return 1
    return next((n for n in range(2, NARROW + 2) if width % n == 0 and n * outputs > NARROW), 1)


def banded(kernel: jax.Array, pixels: int) -> jax.Array:
    """The kernel of `pixels` neighbours at once: its copies, each one pixel further, side by side as outputs."""
    copies = [jnp.pad(kernel, ((0, 0), (n, pixels - 1 - n), (0, 0), (0, 0))) for n in range(pixels)]
    height, width, channels, outputs = kernel.shape
    return jnp.stack(copies, axis=3).reshape(height, width + pixels - 1, channels, pixels * outputs)


def strided(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Every `stride`-th pixel of a convolution."""
    return correlate(x, kernel, padding(x, kernel, stride), (stride, stride))


def by_phases(x: jax.Array, kernel: jax.Array, stride: int, cotangent: jax.Array) -> jax.Array:
    r"""The derivative of :func:`strided` by its images.

    Pixel :math:`s i + r` of the padded images meets the weights :math:`r, s + r, 2 s + r, \dots` only. So the
    :math:`s^2` phases :math:`r` are the channels of one convolution of the cotangent, without the zeros between its
    pixels that the usual form multiplies with.
    """
    rows, height, width, channels = x.shape
    (above, _), (before, _) = padding(x, kernel, stride)
    high, wide = (-(-size // stride) for size in kernel.shape[:2])
    full = jnp.pad(kernel, ((0, high * stride - kernel.shape[0]), (0, wide * stride - kernel.shape[1]), (0, 0), (0, 0)))
    parts = full.reshape(high, stride, wide, stride, *kernel.shape[2:])[::-1, :, ::-1].transpose(0, 2, 5, 1, 3, 4)
    weights = parts.reshape(high, wide, kernel.shape[3], stride * stride * channels)
    tall, broad = -(-(height + above) // stride), -(-(width + before) // stride)
    around = (high - 1, tall - cotangent.shape[1]), (wide - 1, broad - cotangent.shape[2])
    phases = correlate(cotangent, weights, around).reshape(rows, tall, broad, stride, stride * channels)
    pixels = phases.swapaxes(2, 3).reshape(rows, tall * stride, broad * stride, channels)
    return pixels[:, above : above + height, before : before + width]

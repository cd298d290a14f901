"""Residual networks for small images (He et al. 2016, section 4.2): depth 8, 20, 32, 44, 56, 110."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from toolkit.kernels.normalization import rectify
from toolkit.models.layers import BatchNorm, Convolution


def convolution(rngs: nnx.Rngs, channels: int, outputs: int, size: int, stride: int) -> Convolution:
    """A convolution without bias (the norm after it has one), with He's initial weights."""
    he = nnx.initializers.variance_scaling(2.0, "fan_out", "truncated_normal")
    real = jnp.result_type(float)
    make = partial(Convolution, strides=(stride, stride), use_bias=False, kernel_init=he, param_dtype=real)
    return make(channels, outputs, (size, size), rngs=rngs)


def norm(rngs: nnx.Rngs, channels: int) -> BatchNorm:
    """Batch norm whose statistics settle within some tens of steps."""
    return BatchNorm(channels, momentum=0.9, param_dtype=jnp.result_type(float), rngs=rngs)


class Stem(nnx.Module):
    """A 3x3 convolution from the image to the first 16 channels."""

    def __init__(self, rngs: nnx.Rngs, *, channels: int) -> None:
        self.kernel = convolution(rngs, channels, 16, 3, 1)
        self.norm = norm(rngs, 16)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Activations [rows, height, width, 16]."""
        return rectify(self.norm(self.kernel(x)))


class Unit(nnx.Module):
    r"""A residual unit :math:`\max(0, x + F(x))`, with a 1x1 projection of `x` where its shape changes."""

    def __init__(self, rngs: nnx.Rngs, *, channels: int, outputs: int) -> None:
        stride = 1 if channels == outputs else 2
        self.first = convolution(rngs, channels, outputs, 3, stride)
        self.first_norm = norm(rngs, outputs)
        self.second = convolution(rngs, outputs, outputs, 3, 1)
        self.second_norm = norm(rngs, outputs)
        self.projection = convolution(rngs, channels, outputs, 1, stride) if stride > 1 else None
        self.projection_norm = norm(rngs, outputs) if stride > 1 else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Activations [rows, height / stride, width / stride, outputs]."""
        hidden = rectify(self.first_norm(self.first(x)))
        hidden = self.second_norm(self.second(hidden))
        if self.projection is not None and self.projection_norm is not None:
            x = self.projection_norm(self.projection(x))
        return rectify(hidden + x)


class Pooled(nnx.Module):
    """The mean over the image, and a dense layer."""

    def __init__(self, rngs: nnx.Rngs, *, classes: int) -> None:
        self.dense = nnx.Linear(64, classes, param_dtype=jnp.result_type(float), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Scores [rows, classes]."""
        return self.dense(x.mean(axis=(1, 2)))


class ResNet(nnx.Module):
    r"""A residual network of depth :math:`6n + 2`: `n` units each of 16, 32 and 64 channels.

    Depth 20 has 272,474 parameters for ten classes of colour images.

    Parameters
    ----------
    rngs : nnx.Rngs
        Of the initial weights.
    depth : int, 6 n + 2 with n >= 1
        Number of layers with weights along the main path.
    channels : int
        Of the images, of any size of at least 4x4 pixels.
    classes : int
        Scores per row.

    References
    ----------
    He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2016.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.models.ResNet.blocks(8)  # one unit of each width
    ('stem', 'unit0', 'unit1', 'unit2', 'head')
    """

    def __init__(self, rngs: nnx.Rngs, *, depth: int = 20, channels: int = 3, classes: int = 10) -> None:
        self.names = self.blocks(depth)
        units = self.names[1:-1]
        widths = [16, *(16 << 3 * k // len(units) for k in range(len(units)))]
        self.stem = Stem(rngs, channels=channels)
        for name, before, after in zip(units, widths, widths[1:], strict=False):
            setattr(self, name, Unit(rngs, channels=before, outputs=after))
        self.head = Pooled(rngs, classes=classes)

    @staticmethod
    def blocks(depth: int) -> tuple[str, ...]:
        """The names of the blocks of a network of this depth."""
        if depth < 8 or depth % 6 != 2:
            raise ValueError(
                f"A residual network of depth {depth} was asked for. The depth is 6 n + 2, with n units of each width. "
                f"Use 8, 20, 32, 44, 56 or 110."
            )
        return ("stem", *(f"unit{k}" for k in range((depth - 2) // 2)), "head")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Scores [rows, classes] of images [rows, height, width, channels]."""
        for name in self.names:
            x = getattr(self, name)(x)
        return x

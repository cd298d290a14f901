"""A small convolutional network for small images, with batch norm."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from toolkit.kernels.normalization import rectify
from toolkit.kernels.pooling import max_pool
from toolkit.models.layers import BatchNorm, Convolution


class Convolved(nnx.Module):
    """A 3x3 convolution, batch norm, rectifier, and the maximum over 2x2 pixels."""

    def __init__(self, rngs: nnx.Rngs, *, channels: int, outputs: int) -> None:
        real = jnp.result_type(float)
        self.kernel = Convolution(channels, outputs, (3, 3), use_bias=False, param_dtype=real, rngs=rngs)
        # Momentum 0.9: statistics settle within the few hundred steps that these networks are trained for.
        self.norm = BatchNorm(outputs, momentum=0.9, param_dtype=real, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Activations [rows, height // 2, width // 2, outputs]."""
        return halved(rectify(self.norm(self.kernel(x))))


def halved(x: jax.Array) -> jax.Array:
    """The maximum over squares of 2x2 pixels; the last one of an odd number is left out."""
    even = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
    return max_pool(max_pool(even, 2, 2, 2), 1, 2, 2)


class Head(nnx.Module):
    """A dense layer on flattened images."""

    def __init__(self, rngs: nnx.Rngs, *, features: int, classes: int) -> None:
        self.dense = nnx.Linear(features, classes, param_dtype=jnp.result_type(float), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Scores [rows, classes]."""
        return self.dense(x.reshape(len(x), -1))


class CNN(nnx.Module):
    r"""Two convolutions with batch norm, each halving the image, and a dense head.

    Parameters
    ----------
    rngs : nnx.Rngs
        Of the initial weights.
    shape : (height, width, channels)
        Of one image; height and width at least 4 pixels.
    classes : int
        Scores per row.
    widths : (int, int)
        Channels after each convolution.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from flax import nnx

    from toolkit.kernels.normalization import rectify
    from toolkit.kernels.pooling import max_pool
    from toolkit.models.layers import BatchNorm, Convolution
    >>> import toolkit as tk
    >>> tk.models.CNN(nnx.Rngs(0))(jnp.ones((2, 28, 28, 1))).shape
    (2, 10)
    """

    blocks = ("first", "second", "head")

    def __init__(
        self,
        rngs: nnx.Rngs,
        *,
        shape: Sequence[int] = (28, 28, 1),
        classes: int = 10,
        widths: tuple[int, int] = (16, 32),
    ) -> None:
        height, width, channels = shape
        self.first = Convolved(rngs, channels=channels, outputs=widths[0])
        self.second = Convolved(rngs, channels=widths[0], outputs=widths[1])
        self.head = Head(rngs, features=(height // 4) * (width // 4) * widths[1], classes=classes)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Scores [rows, classes] of images [rows, height, width, channels]."""
        return self.head(self.second(self.first(x)))

"""The network that reads the redshift of a galaxy off its spectrum."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from toolkit.kernels.normalization import rectify
from toolkit.kernels.pooling import max_pool
from toolkit.models.layers import BatchNorm, Convolution


class Filters(nnx.Module):
    """A convolution along the spectrum with 16 filters of 8 bins, the rectifier, a halving maximum, batch norm."""

    def __init__(self, rngs: nnx.Rngs, *, channels: int) -> None:
        real = jnp.result_type(float)
        glorot = nnx.initializers.glorot_uniform()
        self.kernel = Convolution(channels, 16, (8,), kernel_init=glorot, param_dtype=real, rngs=rngs)
        self.norm = BatchNorm(16, momentum=0.99, epsilon=1e-3, param_dtype=real, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Activations [rows, ceil(bins / 2), 16]."""
        return self.norm(max_pool(rectify(self.kernel(x)), 1, 3, 2))


class Dense(nnx.Module):
    """Dropout, and a dense layer on flattened rows whose weights are pulled towards zero."""

    def __init__(self, rngs: nnx.Rngs, *, features: int, outputs: int, dropout: float, l2: float = 0.0) -> None:
        real = jnp.result_type(float)
        self.kernel = nnx.Param(nnx.initializers.glorot_uniform()(rngs.params(), (features, outputs), real))
        self.bias = nnx.Param(jnp.zeros(outputs, real))
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout else None
        self.l2 = l2

    def __call__(self, x: jax.Array) -> jax.Array:
        """Activations [rows, outputs]."""
        x = x.reshape(len(x), -1)
        x = x if self.dropout is None else self.dropout(x)
        return x @ penalized(self.kernel[...], self.l2) + self.bias[...][None]


class RedshiftCNN(nnx.Module):
    r"""Three convolutions that halve a spectrum, a linear layer, and scores of redshift bins.

    The linear layer adds the penalty :math:`\lambda \lVert W \rVert^2` to what is minimised: its gradient holds
    :math:`2 \lambda W`, the loss that is reported does not hold the penalty. A pipeline of m microbatches adds it m
    times: give it :math:`\lambda / m`.

    With the sizes given it has 2,242,096 parameters, nearly all of them in the dense part.

    Parameters
    ----------
    rngs : nnx.Rngs
        Of the initial weights (Glorot's) and the dropout.
    bins : int, >= 1
        Of a spectrum.
    classes : int
        Bins of the redshift: scores per row.
    dropout : float, in [0, 1)
        Share of values that a training step drops before each dense layer.
    l2 : float, >= 0
        :math:`\lambda`.

    References
    ----------
    Stivaktakis et al., "Convolutional neural networks for spectroscopic redshift estimation on Euclid data", 2020.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> import toolkit as tk
    >>> tk.models.RedshiftCNN(nnx.Rngs(0), bins=64, classes=10)(jnp.ones((2, 64, 1))).shape
    (2, 10)
    """

    blocks = ("first", "second", "third", "hidden", "head")

    def __init__(
        self, rngs: nnx.Rngs, *, bins: int = 1780, classes: int = 800, dropout: float = 0.5, l2: float = 0.2
    ) -> None:
        self.first = Filters(rngs, channels=1)
        self.second = Filters(rngs, channels=16)
        self.third = Filters(rngs, channels=16)
        self.hidden = Dense(rngs, features=-(-bins // 8) * 16, outputs=512, dropout=dropout, l2=l2)
        self.head = Dense(rngs, features=512, outputs=classes, dropout=dropout)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Scores [rows, classes] of spectra [rows, bins, 1]."""
        for name in self.blocks:
            x = getattr(self, name)(x)
        return x


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def penalized(weights: jax.Array, strength: float) -> jax.Array:
    r"""The weights; their gradient holds that of :math:`\lambda \lVert W \rVert^2`, too."""
    return weights


def _kept(weights: jax.Array, strength: float) -> tuple[jax.Array, jax.Array]:
    return weights, weights


def _pulled(strength: float, weights: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    return (cotangent + 2 * strength * weights if strength else cotangent,)


penalized.defvjp(_kept, _pulled)

"""A linear map: softmax regression, with a softmax loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx


class Linear(nnx.Module):
    r"""Scores :math:`Wx + b` of rows flattened to vectors.

    Parameters
    ----------
    rngs : nnx.Rngs
        Of the initial weights, which are zero: the problem is convex.
    features : int
        Values per row.
    classes : int
        Scores per row.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> import toolkit as tk
    >>> tk.models.Linear(nnx.Rngs(0), features=4, classes=3)(jnp.ones((2, 4))).shape
    (2, 3)
    """

    def __init__(self, rngs: nnx.Rngs, *, features: int, classes: int) -> None:
        zeros = nnx.initializers.zeros_init()
        self.map = nnx.Linear(features, classes, kernel_init=zeros, param_dtype=jnp.result_type(float), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Scores [rows, classes]."""
        return self.map(x.reshape(len(x), -1))

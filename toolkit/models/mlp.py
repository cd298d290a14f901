"""A multilayer perceptron whose layers are blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx


class Layer(nnx.Module):
    """A dense layer on flattened rows, with rectifier and dropout unless it is the last."""

    def __init__(self, rngs: nnx.Rngs, *, features: int, outputs: int, last: bool, dropout: float) -> None:
        self.dense = nnx.Linear(features, outputs, param_dtype=jnp.result_type(float), rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout and not last else None
        self.last = last

    def __call__(self, x: jax.Array) -> jax.Array:
        """Activations [rows, outputs]."""
        x = self.dense(x.reshape(len(x), -1))
        x = x if self.last else nnx.relu(x)
        return x if self.dropout is None else self.dropout(x)


class MLP(nnx.Module):
    r"""Dense layers :math:`x \mapsto \max(0, Wx + b)`, the last without the rectifier.

    Parameters
    ----------
    rngs : nnx.Rngs
        Of the initial weights and the dropout.
    sizes : sequence of int
        Values per row of the input, of each hidden layer, and of the output.
    dropout : float, in [0, 1)
        Share of hidden values that a training step drops.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> import toolkit as tk
    >>> tk.models.MLP(nnx.Rngs(0), sizes=(64, 32, 10))(jnp.ones((2, 8, 8))).shape
    (2, 10)
    >>> tk.models.MLP.blocks((64, 32, 10))
    ('layer0', 'layer1')
    """

    def __init__(self, rngs: nnx.Rngs, *, sizes: Sequence[int], dropout: float = 0.0) -> None:
        self.names = self.blocks(sizes)
        for name, (features, outputs) in zip(self.names, pairwise(sizes), strict=True):
            last = name == self.names[-1]
            setattr(self, name, Layer(rngs, features=features, outputs=outputs, last=last, dropout=dropout))

    @staticmethod
    def blocks(sizes: Sequence[int]) -> tuple[str, ...]:
        """The names of the layers."""
        return tuple(f"layer{k}" for k in range(len(sizes) - 1))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Scores [rows, sizes[-1]]."""
        for name in self.names:
            x = getattr(self, name)(x)
        return x

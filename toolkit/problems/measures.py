"""Losses and metrics, one value per row."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    r"""Cross entropy :math:`-\log \mathrm{softmax}(s)_y` [nat] of each row.

    Parameters
    ----------
    scores : float array, shape [rows, classes]
    labels : int array, shape [rows]

    Examples
    --------
    >>> f"{cross_entropy(jnp.zeros((1, 2)), jnp.array([1]))[0]:.4f}"
    '0.6931'
    """
    chosen = jnp.take_along_axis(scores, labels[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(scores, axis=-1) - chosen


def accuracy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Whether the highest score of each row is its label's: 1 or 0.

    Parameters
    ----------
    scores : float array, shape [rows, classes]
    labels : int array, shape [rows]

    Examples
    --------
    >>> accuracy(jnp.array([[0.0, 1.0], [3.0, 2.0]]), jnp.array([1, 1])).tolist()
    [1.0, 0.0]
    """
    return (scores.argmax(axis=-1) == labels).astype(scores.dtype)


def half_square(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    r"""Half the squared distance :math:`\|o - t\|^2 / 2` of each row.

    Parameters
    ----------
    outputs, targets : float arrays of equal shape [rows, ...]

    Examples
    --------
    >>> half_square(jnp.ones((1, 4)), jnp.zeros((1, 4))).tolist()
    [2.0]
    """
    return jnp.square(outputs - targets).reshape(len(targets), -1).sum(axis=-1) / 2

"""Losses and metrics against their formulas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from toolkit.problems.measures import accuracy, cross_entropy, half_square

SCORES = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32) * 50
LABELS = np.arange(9, dtype=np.int32) % 4


def test_cross_entropy_is_that_of_optax() -> None:
    expected = optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(SCORES), jnp.asarray(LABELS))
    np.testing.assert_allclose(cross_entropy(jnp.asarray(SCORES), jnp.asarray(LABELS)), expected, rtol=1e-6, atol=1e-5)


def test_its_gradient_is_softmax_minus_one_hot() -> None:
    found = jax.grad(lambda scores: cross_entropy(scores, jnp.asarray(LABELS)).sum())(jnp.asarray(SCORES))
    np.testing.assert_allclose(found, jax.nn.softmax(SCORES) - np.eye(4)[LABELS], atol=1e-6)


def test_accuracy_counts_the_highest_score() -> None:
    found = accuracy(jnp.asarray(SCORES), jnp.asarray(LABELS))
    np.testing.assert_array_equal(found, SCORES.argmax(axis=1) == LABELS)


def test_half_square_sums_all_axes_of_a_row() -> None:
    outputs = np.arange(12.0, dtype=np.float32).reshape(2, 3, 2)
    found = half_square(jnp.asarray(outputs), jnp.zeros((2, 3, 2)))
    np.testing.assert_allclose(found, [(outputs[0] ** 2).sum() / 2, (outputs[1] ** 2).sum() / 2])

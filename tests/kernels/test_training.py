"""What a worker computes, against closed forms and the plain module."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from toolkit.data.sources import Arrays
from toolkit.kernels.applying import Applier
from toolkit.kernels.training import Learner, LossError
from toolkit.models.cnn import CNN
from toolkit.models.mlp import MLP
from toolkit.problems.measures import accuracy, cross_entropy
from toolkit.problems.problem import Problem
from toolkit.problems.quadratic import quadratic

DRAW = np.random.default_rng(0)
IMAGES = Arrays(DRAW.normal(size=(11, 4, 4, 1)).astype(np.float32), np.arange(11, dtype=np.int32) % 3)
VECTORS = Arrays(DRAW.normal(size=(23, 5)).astype(np.float32), DRAW.integers(0, 3, 23).astype(np.int32))
CONVOLUTIONS = Problem(
    "images", partial(CNN, shape=(4, 4, 1), classes=3, widths=(2, 2)), cross_entropy, IMAGES, IMAGES, 4
)
LAYERS = Problem(
    "rows",
    partial(MLP, sizes=(5, 4, 3)),
    cross_entropy,
    VECTORS,
    VECTORS,
    4,
    {"accuracy": accuracy},
    MLP.blocks((5, 4, 3)),
)
DROPPING = replace(LAYERS, model=partial(MLP, sizes=(5, 4, 3), dropout=0.5))


@dataclass
class Traces:
    """A loss that counts how often it is traced."""

    count: int = field(default=0)

    def __call__(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        self.count += 1
        return cross_entropy(outputs, targets)


@pytest.fixture
def strict() -> Iterator[None]:
    """Neither types nor ranks may be promoted in silence."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), warnings.catch_warnings():
        yield


def test_the_gradient_of_a_quadratic_is_known() -> None:
    problem = quadratic(dim=4, rows=6, condition=10.0, seed=1)
    learner = Learner(problem)
    x, y = problem.train.take(np.arange(6))
    vector = np.arange(4, dtype=np.float32)
    step = learner.gradient(vector, np.zeros(0, np.float32), (x, y), (0, 0, 1))
    expected = (x * (x * vector - y)).mean(axis=0)
    np.testing.assert_allclose(step.update, expected, rtol=1e-5)
    assert step.norm == pytest.approx(np.linalg.norm(expected), rel=1e-5)
    assert step.loss == pytest.approx((np.square(x * vector - y).sum(axis=1) / 2).mean(), rel=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_parts_add_up_to_the_whole_batch(reduction: str) -> None:
    with jax.enable_x64(True):
        learner = Learner(replace(LAYERS, reduction=reduction))
        vector, local = learner.initial()
        assert vector.dtype == np.float64
        cuts = [np.arange(23), *np.split(np.arange(23), [8, 15, 20])]
        whole, *parts = (learner.gradient(vector, local, VECTORS.take(rows), (0, 0, 1)) for rows in cuts)
        weights = [len(rows) / 23 if reduction == "mean" else 1.0 for rows in cuts[1:]]
        total = sum(weight * part.update for weight, part in zip(weights, parts, strict=True))
        np.testing.assert_allclose(total, whole.update, rtol=0, atol=1e-12)


@pytest.mark.parametrize("problem", [CONVOLUTIONS, DROPPING], ids=repr)
def test_nothing_is_promoted_in_silence(problem: Problem, strict: None) -> None:
    learner = Learner(problem)
    vector, local = learner.initial()
    rows = problem.train.take(np.arange(4))
    assert np.isfinite(learner.gradient(vector, local, rows, (0, 0, 1)).update).all()
    assert np.isfinite(learner.evaluate(vector, local, problem.test)["loss"])


def test_one_trace_per_shape() -> None:
    traces = Traces()
    learner = Learner(replace(LAYERS, loss=traces))
    vector, local = learner.initial()
    for clock, rows in enumerate((4, 4, 3, 4, 3)):
        learner.gradient(vector, local, VECTORS.take(np.arange(rows)), (7, 1, clock, 2**40)[: clock + 1])
    assert traces.count == 2


def test_compiling_leaves_nothing_to_trace() -> None:
    traces = Traces()
    learner = Learner(replace(LAYERS, loss=traces))
    assert learner.compile([4, 3, 4, 0], evaluations=[10, 3]) > 0
    before = traces.count
    vector, local = learner.initial()
    for rows in (4, 3):
        learner.gradient(vector, local, VECTORS.take(np.arange(rows)), (2**40 + 1, 3, 5))
    learner.evaluate(vector, local, VECTORS, batch=10)
    assert (before, traces.count) == (4, 4)


def test_dropout_is_a_function_of_seed_worker_and_clock() -> None:
    one, another = Learner(DROPPING), Learner(DROPPING)
    vector, local = one.initial()

    def update(learner: Learner, *keys: int) -> np.ndarray:
        return learner.gradient(vector, local, VECTORS.take(np.arange(16)), keys).update

    expected = update(one, 0, 2, 5)
    np.testing.assert_array_equal(update(another, 0, 2, 5), expected)
    for other in [(1, 2, 5), (0, 3, 5), (0, 2, 6), (0, 5, 2), (0, 2, 5, 0), (2**32, 2, 5), (-1, 2, 5)]:
        assert not np.array_equal(update(one, *other), expected)


def test_dropout_rests_in_evaluation() -> None:
    learner, plain = Learner(DROPPING), Learner(LAYERS)
    vector, local = learner.initial()
    rows = VECTORS.take(np.arange(16))
    assert learner.forward(vector, local, rows) == pytest.approx(plain.forward(vector, local, rows), rel=1e-6)


def statistics(learner: Learner, rows: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    """The statistics after one training call of the plain module."""
    module: Any = learner.problem.model(nnx.Rngs(learner.seed))
    module(jnp.asarray(rows[0]))
    return {f"{block}.{name}": np.asarray(getattr(getattr(module, block).norm, name)[...])
            for block in ("first", "second") for name in ("mean", "var")}  # fmt: skip


def test_the_update_of_statistics_is_old_minus_new() -> None:
    learner = Learner(replace(CONVOLUTIONS, blocks=CNN.blocks))
    vector, local = learner.initial()
    rows = IMAGES.take(np.arange(8))
    after = vector - learner.gradient(vector, local, rows, (0, 0, 1)).update
    expected = statistics(learner, rows)
    found = {
        piece.name.replace(".norm", ""): after[slice(*span)]
        for piece, span in learner.layout.spans()
        if not piece.trainable
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def test_the_norm_and_the_gradient_ignore_where_statistics_live() -> None:
    averaged, local = Learner(CONVOLUTIONS), Learner(CONVOLUTIONS, state="local")
    rows = IMAGES.take(np.arange(8))
    inside, outside = (one.gradient(*one.initial(), rows, (0, 0, 1)) for one in (averaged, local))
    mask = averaged.vector.trainable
    assert mask is not None
    np.testing.assert_allclose(inside.update[mask], outside.update, rtol=1e-6)
    assert inside.norm == pytest.approx(outside.norm) == pytest.approx(np.linalg.norm(outside.update))
    vector, _ = averaged.initial()
    np.testing.assert_allclose((vector - inside.update)[~mask], outside.local, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "batch"), [("rows", 1), ("rows", 4), ("rows", 100), ("mean", 4), ("sum", 4)])
def test_evaluation_counts_each_row_once(kind: str, batch: int) -> None:
    losses = {
        "rows": cross_entropy,
        "mean": lambda outputs, targets: cross_entropy(outputs, targets).mean(),
        "sum": lambda outputs, targets: cross_entropy(outputs, targets).sum(),
    }
    learner = Learner(replace(LAYERS, loss=losses[kind], reduction="sum" if kind == "sum" else "mean"))
    module = MLP(nnx.Rngs(0), sizes=(5, 4, 3))
    scores = module(jnp.asarray(VECTORS.x))
    found = learner.evaluate(*learner.initial(), VECTORS, batch=batch)
    assert found["accuracy"] == np.mean(np.argmax(scores, axis=1) == VECTORS.y)
    assert found["loss"] == pytest.approx(float(cross_entropy(scores, VECTORS.y).mean()), rel=1e-5)


def test_evaluation_uses_running_statistics() -> None:
    learner = Learner(CONVOLUTIONS)
    module: Any = learner.problem.model(nnx.Rngs(0))
    module.eval()
    expected = cross_entropy(module(jnp.asarray(IMAGES.x)), jnp.asarray(IMAGES.y)).mean()
    assert learner.evaluate(*learner.initial(), IMAGES, batch=3)["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_no_rows_give_no_update() -> None:
    learner = Learner(LAYERS)
    vector, local = learner.initial()
    step = learner.gradient(vector, local, VECTORS.take(np.arange(0)), (0, 0, 1))
    assert np.isnan(step.loss)
    assert step.norm == 0
    assert not step.update.any()


def test_divergence_shows_in_the_norm() -> None:
    learner = Learner(LAYERS)
    vector, local = learner.initial()
    step = learner.gradient(np.full_like(vector, np.inf), local, VECTORS.take(np.arange(4)), (0, 0, 1))
    assert not np.isfinite(step.norm)


def test_local_steps_are_the_steps_one_by_one() -> None:
    learner = Learner(CONVOLUTIONS)
    vector, local = learner.initial()
    applier = Applier(optax.sgd(0.1, momentum=0.9), learner.vector.trainable)
    batches = [IMAGES.take(np.arange(first, stop)) for first, stop in ((0, 4), (4, 4), (4, 7))]
    keys = [(0, 0, 1, k) for k in range(3)]
    drift, _ = learner.local_steps(vector, local, batches, keys, applier, applier.init(vector))
    here, state, losses = vector, applier.init(vector), []
    for rows, key in zip(batches, keys, strict=True):
        step = learner.gradient(here, local, rows, key)
        if len(rows[0]):
            here, state = applier.apply(here, state, step.update)
            losses.append((step.loss, len(rows[0])))
    np.testing.assert_array_equal(drift.update, vector - here)
    assert drift.loss == pytest.approx(sum(loss * rows for loss, rows in losses) / 7)
    mask = learner.vector.trainable
    assert drift.norm == pytest.approx(np.linalg.norm(drift.update[mask]), rel=1e-5)


def test_a_schedule_of_local_steps_counts_rows() -> None:
    learner = Learner(LAYERS)
    vector, local = learner.initial()
    applier = Applier(optax.sgd(lambda count: jnp.where(count < 14, 0.1, 0.0)), clock="samples")
    batches = [VECTORS.take(np.arange(4))] * 3
    keys = [(0, 0, 1, k) for k in range(3)]
    late, _ = learner.local_steps(vector, local, batches, keys, applier, applier.init(vector), samples=10)
    first, _ = learner.local_steps(vector, local, batches[:1], keys[:1], applier, applier.init(vector))
    np.testing.assert_array_equal(late.update, first.update)


def test_one_local_step_averaged_is_one_synchronous_step() -> None:
    problem = quadratic(dim=3, rows=24, seed=2)
    learner = Learner(problem)
    server, outer, worker = Applier(optax.sgd(0.1)), Applier(optax.sgd(1.0)), Applier(optax.sgd(0.1))
    synchronous = averaged = learner.initial()[0]
    local = np.zeros(0, np.float32)
    for clock in range(50):
        parts = [problem.train.take(np.arange(8) + 8 * w) for w in range(3)]
        gradients = [learner.gradient(synchronous, local, rows, (0, w, clock)).update for w, rows in enumerate(parts)]
        drifts = [
            learner.local_steps(averaged, local, [rows], [(0, w, clock)], worker, worker.init(averaged))[0].update
            for w, rows in enumerate(parts)
        ]
        synchronous, _ = server.apply(synchronous, server.init(synchronous), np.mean(gradients, axis=0))
        averaged, _ = outer.apply(averaged, outer.init(averaged), np.mean(drifts, axis=0))
    np.testing.assert_allclose(averaged, synchronous, atol=1e-7, rtol=0)


@pytest.mark.parametrize("name", ["loss", "wrong"])
def test_a_measure_needs_one_value_per_row(name: str) -> None:
    def wide(outputs: jax.Array, targets: jax.Array) -> jax.Array:
        return outputs

    problem = replace(LAYERS, loss=wide) if name == "loss" else replace(LAYERS, metrics={name: wide})
    learner = Learner(problem)
    with pytest.raises(LossError, match=rf"{name} has the shape \(23, 3\) for 23 rows"):
        learner.evaluate(*learner.initial(), VECTORS)

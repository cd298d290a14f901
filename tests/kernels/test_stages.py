"""A model split into stages is the model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import jax
import numpy as np
import pytest
from flax import nnx

from toolkit.core.messages import Span
from toolkit.data.sources import Arrays
from toolkit.kernels.stages import Stage
from toolkit.kernels.training import Learner
from toolkit.kernels.vector import ModelError, StatePolicy
from toolkit.models.cnn import CNN
from toolkit.models.mlp import MLP
from toolkit.problems.measures import cross_entropy
from toolkit.problems.problem import Problem

SIZES = (5, 6, 4, 3)
DRAW = np.random.default_rng(0)
ROWS = Arrays(DRAW.normal(size=(8, 5)).astype(np.float32), DRAW.integers(0, 3, 8).astype(np.int32))
IMAGES = Arrays(DRAW.normal(size=(8, 4, 4, 1)).astype(np.float32), DRAW.integers(0, 3, 8).astype(np.int32))
LAYERS = Problem("rows", partial(MLP, sizes=SIZES), cross_entropy, ROWS, ROWS, 8, blocks=MLP.blocks(SIZES))
CONVOLUTIONS = Problem(
    "images",
    partial(CNN, shape=(4, 4, 1), classes=3, widths=(2, 2)),
    cross_entropy,
    IMAGES,
    IMAGES,
    8,
    blocks=CNN.blocks,
)
LOSSES = {
    "rows": cross_entropy,
    "mean": lambda outputs, targets: cross_entropy(outputs, targets).mean(),
    "sum": lambda outputs, targets: cross_entropy(outputs, targets).sum(),
}


def stages(learner: Learner, count: int) -> list[Stage]:
    """`count` stages, the first ones of one block each."""
    starts = [span[0] for span in learner.layout.blocks().values()][:count]
    return [Stage(learner, span) for span in pairwise([*starts, learner.layout.size])]


def run(learner: Learner, parts: list[Stage], microbatches: list[np.ndarray]) -> tuple[float, np.ndarray, np.ndarray]:
    """Loss, update and local state of a batch that passes through the stages in microbatches."""
    vector, local = learner.initial()
    own = [(vector[slice(*part.span)], local[slice(*part.local)]) for part in parts]
    total, update, rows = 0.0, np.zeros_like(vector), sum(map(len, microbatches))
    for m, positions in enumerate(microbatches):
        x, target = learner.problem.train.take(positions)
        keys, share, inputs = (0, 0, 1, m), len(positions) / rows, [x]
        for part, (values, state) in zip(parts[:-1], own, strict=False):
            inputs.append(part.forward(values, state, inputs[-1], keys))
        for k in reversed(range(len(parts))):
            back = parts[k].backward(*own[k], inputs[k], target, keys, share)
            own[k] = (own[k][0], back.local)
            update[slice(*parts[k].span)] += back.update
            total += back.loss or 0.0
            if back.cotangent is not None:
                target = back.cotangent
        assert back.cotangent is None
    return total, update, np.concatenate([state for _, state in own])


@pytest.mark.parametrize(("kind", "count"), [("rows", 1), ("rows", 3), ("rows", 2), ("mean", 2), ("sum", 2)])
def test_uneven_microbatches_add_up_to_the_unsplit_model(kind: str, count: int) -> None:
    learner = Learner(replace(LAYERS, loss=LOSSES[kind], reduction="sum" if kind == "sum" else "mean"))
    loss, update, _ = run(learner, stages(learner, count), np.split(np.arange(8), [3, 6]))
    whole = learner.gradient(*learner.initial(), ROWS.take(np.arange(8)), (0, 0, 1))
    assert loss == pytest.approx(whole.loss, rel=1e-6)
    np.testing.assert_allclose(update, whole.update, atol=1e-6, rtol=1e-6)


def test_a_sum_over_rows_is_a_sum_over_microbatches() -> None:
    learner = Learner(replace(LAYERS, reduction="sum"))
    loss, update, _ = run(learner, stages(learner, 2), np.split(np.arange(8), [3, 6]))
    mean = Learner(LAYERS).gradient(*learner.initial(), ROWS.take(np.arange(8)), (0, 0, 1))
    assert loss == pytest.approx(8 * mean.loss, rel=1e-6)
    np.testing.assert_allclose(update, 8 * mean.update, atol=1e-5)


@pytest.mark.parametrize("policy", ["averaged", "local"])
def test_one_microbatch_is_exact_also_with_batch_norm(policy: StatePolicy) -> None:
    learner = Learner(CONVOLUTIONS, state=policy)
    loss, update, local = run(learner, stages(learner, 3), [np.arange(8)])
    whole = learner.gradient(*learner.initial(), IMAGES.take(np.arange(8)), (0, 0, 1))
    assert loss == pytest.approx(whole.loss, rel=1e-6)
    np.testing.assert_allclose(update, whole.update, atol=1e-6, rtol=1e-5)
    np.testing.assert_allclose(local, whole.local, atol=1e-6)


def test_statistics_change_by_the_weighted_mean_of_microbatches() -> None:
    learner = Learner(replace(CONVOLUTIONS, reduction="sum"))
    vector, local = learner.initial()
    mask = learner.vector.trainable
    assert mask is not None
    microbatches = np.split(np.arange(8), [3, 6])
    _, update, _ = run(learner, stages(learner, 1), microbatches)
    alone = [learner.gradient(vector, local, IMAGES.take(rows), (0, 0, 1)).update for rows in microbatches]
    expected = np.average(alone, axis=0, weights=[3, 3, 2])
    np.testing.assert_allclose(update[~mask], expected[~mask], atol=1e-6)


def test_dropout_of_a_stage_is_that_of_the_model() -> None:
    learner = Learner(replace(LAYERS, model=partial(MLP, sizes=SIZES, dropout=0.5)))
    parts = stages(learner, 2)
    vector, local = learner.initial()
    x, y = ROWS.take(np.arange(8))
    hidden = parts[0].forward(vector[slice(*parts[0].span)], local, x, (3, 1, 4))
    split = parts[1].backward(vector[slice(*parts[1].span)], local, hidden, y, (3, 1, 4))
    assert split.loss == pytest.approx(learner.gradient(vector, local, (x, y), (3, 1, 4)).loss, rel=1e-6)


def test_forward_only_is_evaluation() -> None:
    learner = Learner(CONVOLUTIONS)
    first, last = stages(learner, 2)
    vector, local = learner.initial()
    x, y = IMAGES.take(np.arange(8))
    hidden = first.forward(vector[slice(*first.span)], local, x)
    loss = last.loss(vector[slice(*last.span)], local, hidden, y)
    assert loss == pytest.approx(learner.forward(vector, local, (x, y)), rel=1e-6)


class Flat(nnx.Module):
    """Rows as vectors: a block without tensors."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return x.reshape(len(x), -1)


class Framed(nnx.Module):
    """Blocks without tensors before, between and after those with."""

    blocks = ("before", "first", "between", "second", "after")

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.before, self.between, self.after = Flat(), Flat(), Flat()
        self.first, self.second = nnx.Linear(5, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)


def test_every_block_belongs_to_one_stage() -> None:
    learner = Learner(replace(LAYERS, model=Framed, blocks=Framed.blocks))
    first, second = stages(learner, 2)
    assert [[block.name for block in part.vector.blocks] for part in (first, second)] == [
        ["before", "first", "between"],
        ["second", "after"],
    ]
    assert (first.first, first.last, second.first, second.last) == (True, False, False, True)


@pytest.mark.parametrize("span", [(0, 7), (1, 36), (0, 0)])
def test_a_stage_holds_whole_blocks(span: Span) -> None:
    with pytest.raises(ModelError, match="not made of whole blocks; blocks end at"):
        Stage(Learner(LAYERS), span)

"""Layers put together on real processes: a batch-norm network to the end of each budget, and split models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import toolkit as tk

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore:.*processes compute on:UserWarning")]

BUDGET = 3
BATCH = 5

#: Strategy, workers, local steps, options of training.
COMBINATIONS: tuple[tuple[tk.Strategy, int, int, Mapping[str, object]], ...] = (
    (tk.chain(tk.bsp(), tk.gossip(tk.ring_neighbours)), 4, 1, {}),
    (tk.chain(tk.asp(), tk.gossip(tk.random_peer)), 4, 1, {}),
    (tk.chain(tk.bsp(), tk.parameter_server(2), tk.pipeline(2, 2)), 2, 1, {}),
    (tk.chain(tk.bsp(), tk.all_reduce(tk.ring), tk.pipeline(2, 2)), 2, 1, {}),
    (tk.chain(tk.asp(), tk.parameter_server(), tk.local_steps(2)), 4, 2, {"correction": tk.elastic(0.3)}),
    (tk.chain(tk.bsp(), tk.all_reduce(tk.ring), tk.local_steps(3)), 4, 3, {}),
    (tk.chain(tk.ssp(2), tk.parameter_server(2), tk.compress(tk.top_k(0.2))), 4, 1, {}),
    (tk.chain(tk.bsp(), tk.all_gather(), tk.compress(tk.top_k(0.2))), 4, 1, {}),
    (tk.chain(tk.bsp(), tk.all_reduce(tk.ring), tk.compress(tk.fp16())), 4, 1, {}),
    (tk.chain(tk.switch(4, tk.bsp(), tk.asp()), tk.parameter_server(2)), 4, 1, {}),
    (tk.chain(tk.backup(1), tk.parameter_server(2)), 4, 1, {}),
    (tk.chain(tk.elastic_bsp(4), tk.parameter_server(2)), 4, 1, {}),
    (tk.chain(tk.bsp(), tk.all_reduce(tk.tree)), 4, 1, {"state": "local"}),
)


@pytest.fixture(scope="module")
def images() -> tk.Problem:
    """Images of 4 x 4 for a network of three blocks, two of them with batch norm."""
    random = np.random.default_rng(1)
    x, y = random.normal(size=(200, 4, 4, 1)).astype(np.float32), random.integers(0, 3, 200)
    loss = optax.softmax_cross_entropy_with_integer_labels

    def build(rngs: nnx.Rngs) -> nnx.Module:
        return tk.models.CNN(rngs, shape=(4, 4, 1), classes=3, widths=(2, 3))

    blocks = tk.models.CNN.blocks
    return tk.problem(build, loss, train=(x, y), test=(x[:30], y[:30]), batch=BATCH, blocks=blocks)


@pytest.mark.parametrize(
    ("strategy", "workers", "steps", "options"), COMBINATIONS, ids=[repr(s) for s, *_ in COMBINATIONS]
)
def test_every_worker_comes_to_the_end_of_its_budget(on, images, strategy, workers, steps, options):
    run = tk.train(
        images,
        strategy,
        optimizer="sgd(0.05)",
        on=replace(on, workers=workers),
        until=tk.iterations(BUDGET),
        progress=False,
        **options,
    )
    assert run.status == "finished"
    ready = run.trace[run.trace.kind == "ready"]
    assert ready.groupby("worker").size().to_dict() == dict.fromkeys(range(workers), BUDGET)
    steps_done = run.trace[run.trace.kind.isin(["compute", "stage"])]
    assert steps_done.samples.sum() == BATCH * steps * workers * BUDGET
    losses = run.metrics.value[run.metrics.name == "loss"]
    assert len(losses) >= 2 and np.isfinite(losses).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.params))


class Halves(nnx.Module):
    """Two blocks without batch norm, whose statistics would be those of a microbatch."""

    blocks = ("first", "second")

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Sequential(nnx.Linear(6, 7, rngs=rngs), jnp.tanh)
        self.second = nnx.Linear(7, 3, rngs=rngs)

    def __call__(self, x):
        return self.second(self.first(x))


@pytest.mark.parametrize("exchange", [tk.parameter_server(2), tk.all_reduce(tk.ring)], ids=repr)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_split_model_learns_what_the_whole_one_learns(on, exchange, reduction):
    """Batches of 8 rows in microbatches of 3, 3 and 2."""
    random = np.random.default_rng(2)
    x, y = random.normal(size=(64, 6)).astype(np.float32), random.integers(0, 3, 64)
    problem = tk.problem(
        Halves,
        optax.softmax_cross_entropy_with_integer_labels,
        train=(x, y),
        test=(x, y),
        batch=8,
        blocks=Halves.blocks,
        reduction=reduction,
    )
    options = {"optimizer": "sgd(0.05, momentum=0.9)", "until": tk.updates(4), "progress": False}
    whole = tk.train(problem, tk.chain(tk.bsp(), exchange), on=tk.Simulator(2), **options)
    strategy = tk.chain(tk.bsp(), exchange, tk.pipeline(2, 3))
    split = tk.train(problem, strategy, on=replace(on, workers=2), **options)
    stages = split.trace[split.trace.kind == "stage"]
    assert set(stages.place) == {"0.0", "0.1", "1.0", "1.1"}
    for one, two in zip(jax.tree.leaves(whole.params), jax.tree.leaves(split.params), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)

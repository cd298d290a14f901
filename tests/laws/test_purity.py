"""Steps are functions: called twice they answer alike, and everything they hold or say is plain data."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from toolkit.core.conditions import seconds, updates
from toolkit.core.plain import plain, restore
from toolkit.core.strategy import chain
from toolkit.exchanges.all_gather import all_gather
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.gossip import gossip
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import halving_doubling, ring, tree
from toolkit.exchanges.topologies import random_peer, ring_neighbours
from toolkit.policies.asp import asp
from toolkit.policies.backup import backup
from toolkit.policies.bsp import bsp
from toolkit.policies.dssp import dssp
from toolkit.policies.elastic_bsp import elastic_bsp
from toolkit.policies.ssp import ssp
from toolkit.policies.switch import switch
from toolkit.rewrites.codecs import fp16, top_k
from toolkit.rewrites.compress import compress
from toolkit.rewrites.deal import deal
from toolkit.rewrites.evaluation import evaluation
from toolkit.rewrites.forward_only import forward_only
from toolkit.rewrites.local_steps import adacomm, local_steps
from toolkit.rewrites.pipeline import pipeline
from toolkit.runtime.links import Link
from toolkit.runtime.timing import lognormal
from toolkit.trace import write_parquet

CHAINS = [
    chain(bsp(), all_reduce(ring)),
    chain(bsp(), all_reduce(tree), compress(fp16())),
    chain(backup(1), all_reduce(halving_doubling)),
    chain(bsp(), gossip(ring_neighbours), local_steps(2)),
    chain(asp(), gossip(random_peer)),
    chain(ssp(3), parameter_server(3), compress(top_k(0.2))),
    chain(dssp(1, 4), all_gather(), compress(top_k(0.2))),
    chain(dssp(1, 4, False), parameter_server(2, "separate")),
    chain(elastic_bsp(4), parameter_server(2), local_steps(adacomm(4)), evaluation(updates(3))),
    chain(switch(5, bsp(), asp()), parameter_server(), pipeline(2, 3)),
    chain(bsp(), all_reduce(ring), pipeline(2), deal(50, 8), evaluation(updates(2))),
    chain(asp(), parameter_server(), forward_only()),
]
FIELDS = {
    "step": lognormal(1.0, 0.4),
    "link": Link(0.01, 1e4),
    "nbytes": 400,
    "apply": 0.02,
    "leaves": [(2.2, 1)],
    "joins": [(3.1, 4)],
}


def twice(layer):
    """The layer, each of whose steps is asked again with the same values, and with copies of them."""

    def step(state, message):
        copies = pickle.loads(pickle.dumps((state, message)))
        after, replies = layer.step(state, message)
        for again in (layer.step(state, message), layer.step(*copies)):
            assert list(again[1]) == list(replies)
            assert again[0] == after
        assert pickle.loads(pickle.dumps(list(replies))) == list(replies)
        assert restore(json.loads(json.dumps(plain(list(replies))))) == tuple(replies)
        return after, replies

    return replace(layer, step=step)


@pytest.mark.parametrize("strategy", CHAINS, ids=repr)
def test_every_step_of_every_layer_called_twice_answers_alike(simulate, strategy):
    plainly = simulate(strategy, 4, budget=6, seed=5, **FIELDS)
    watched = simulate(chain(*map(twice, strategy.layers)), 4, budget=6, seed=5, **FIELDS)
    assert watched.frame.equals(plainly.frame)


@pytest.mark.parametrize("strategy", CHAINS, ids=repr)
def test_equal_seeds_give_equal_files_and_others_do_not(simulate, strategy, tmp_path):
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        write_parquet(simulate(strategy, 4, budget=4, seed=seed, **FIELDS).frame, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("strategy", CHAINS, ids=repr)
def test_replaying_the_log_of_events_gives_the_same_tasks(simulate, strategy):
    """An event is the only input: the log alone drives a fresh strategy to the same replies."""

    def recorded(into):
        def step(state, message):
            state, replies = strategy.step(state, message)
            into.append(list(replies))
            return state, replies

        return replace(strategy, step=step)

    first: list = []
    run = simulate(recorded(first), 4, budget=4, seed=9, **FIELDS)
    state, again = strategy.init(run.drive.cluster), []
    for event in run.drive.log:
        state, replies = strategy.step(state, event)
        again.append(list(replies))
    assert again == first


@pytest.mark.parametrize("strategy", CHAINS, ids=repr)
def test_every_worker_is_still_computing_late_in_the_run(simulate, strategy):
    """Liveness under step times that vary by a factor of several."""
    fields = {**FIELDS, "step": lognormal(1.0, 0.8)}
    run = simulate(strategy, 4, until=seconds(40), seed=10, **fields)
    late = run.of("compute", "stage", "ready").loc[lambda f: f["ended"] > 25, "worker"]
    assert {0, 2, 3, 4} <= set(late)

"""Limits in which one strategy is another, read off their traces."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from toolkit.core.conditions import seconds, updates
from toolkit.core.strategy import chain
from toolkit.exchanges.all_gather import all_gather
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.gossip import gossip
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import halving_doubling, ring
from toolkit.exchanges.topologies import random_peer
from toolkit.policies.asp import asp
from toolkit.policies.backup import backup
from toolkit.policies.bsp import bsp
from toolkit.policies.dssp import dssp
from toolkit.policies.elastic_bsp import elastic_bsp
from toolkit.policies.ssp import ssp
from toolkit.policies.switch import switch
from toolkit.rewrites.codecs import fp16
from toolkit.rewrites.compress import compress
from toolkit.rewrites.local_steps import local_steps
from toolkit.rewrites.pipeline import pipeline
from toolkit.runtime.links import Link
from toolkit.runtime.timing import lognormal

FIELDS = {"step": lognormal(1.0, 0.5), "link": Link(0.01, 1e4), "nbytes": 400, "apply": 0.02, "seed": 11}
EQUAL = [
    (ssp(math.inf), asp()),
    (ssp(1000), asp()),
    (backup(0), bsp()),
    *[(dssp(s, s), ssp(s)) for s in (0, 1, 3)],
    *[(dssp(s, s, capped=False), ssp(s)) for s in (0, 2)],
    (switch(10**6, ssp(2), asp()), ssp(2)),
]


@pytest.mark.parametrize("exchange", [parameter_server(2), all_gather(), gossip(random_peer)], ids=repr)
@pytest.mark.parametrize(("one", "other"), EQUAL, ids=repr)
def test_policies_that_are_the_same_in_a_limit(simulate, one, other, exchange):
    a, b = (simulate(chain(policy, exchange), 4, budget=10, **FIELDS).frame for policy in (one, other))
    pd.testing.assert_frame_equal(a, b)


def test_the_comparison_can_fail(simulate):
    a, b = (simulate(chain(policy, parameter_server()), 4, budget=10, **FIELDS).frame for policy in (ssp(0), bsp()))
    assert not a.equals(b)


@pytest.mark.parametrize("exchange", [parameter_server(2), all_reduce(ring)], ids=repr)
def test_one_local_step_costs_what_a_gradient_costs(simulate, exchange):
    a, b = (simulate(chain(bsp(), exchange, *r), 4, budget=6, **FIELDS).frame for r in ((local_steps(1),), ()))
    pd.testing.assert_frame_equal(a, b)


def test_one_stage_with_one_microbatch_takes_as_long_as_none(simulate):
    """Forward and backward of the only stage add up to the step."""
    a, b = (
        simulate(chain(bsp(), parameter_server(2), *r), 4, budget=6, **FIELDS).of("committed")["ended"].to_numpy()
        for r in ((pipeline(1, 1),), ())
    )
    assert a == pytest.approx(b, abs=1e-9)


def test_a_nested_chain_is_the_flat_one(simulate):
    layers = (bsp(), all_reduce(ring), local_steps(2), compress(fp16()))
    flat = chain(*layers)
    for nested in (
        chain(chain(*layers[:2]), chain(*layers[2:])),
        chain(layers[0], chain(layers[1], chain(*layers[2:]))),
    ):
        assert nested == flat
        assert simulate(nested, 3, budget=4, **FIELDS).frame.equals(simulate(flat, 3, budget=4, **FIELDS).frame)


def test_elastic_bsp_on_equal_workers_meets_every_third_iteration_and_nobody_waits(simulate):
    """Two pushes make a forecast; with a lookahead of one the third is the barrier."""
    run = simulate(chain(elastic_bsp(1), parameter_server()), 4, step=1.0, until=seconds(30.5))
    commits = run.of("committed")
    barriers = commits.loc[commits["key"] == "committed:0:1:2:3", "ended"].tolist()
    assert barriers == [float(t) for t in range(3, 31, 3)]
    assert (
        run.of("compute")["began"].tolist() == [float(t) for t in range(31) for _ in range(4)][: len(run.of("compute"))]
    )


def test_dssp_on_equal_workers_never_waits(simulate):
    run = simulate(chain(dssp(1, 4), parameter_server()), 4, step=1.0, until=seconds(20))
    assert run.of("compute")["began"].tolist() == [float(t) for t in range(20) for _ in range(4)]


def test_a_switch_is_its_first_policy_before_and_its_second_after(simulate):
    fields = {**FIELDS, "link": Link(), "apply": 0.0}
    switched = simulate(chain(switch(6, bsp(), asp()), parameter_server()), 4, budget=12, **fields)
    synchronous = simulate(chain(bsp(), parameter_server()), 4, budget=6, **fields)
    commits = switched.of("committed")
    assert commits["ended"].iloc[:6].tolist() == synchronous.of("committed")["ended"].tolist()
    assert (commits["key"].iloc[:6] == "committed:0:1:2:3").all()
    assert commits["key"].iloc[6:].str.fullmatch(r"committed:\d").all()
    assert len(commits) == 6 + 4 * 6


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (bsp(), asp()),
        (asp(), bsp()),
        (elastic_bsp(3), bsp()),
        (backup(2), asp()),
        (ssp(1), elastic_bsp(2)),
        (dssp(1, 5), ssp(0)),
        (switch(3, asp(), bsp()), ssp(2)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("at", [1, 4, 7, seconds(3.3), updates(5) | seconds(100)], ids=repr)
def test_nothing_is_lost_or_merged_twice_at_a_switch(simulate, ledger, first, then, at):
    books = ledger()
    run = simulate(chain(switch(at, first, then), parameter_server()), 4, budget=8, data=books, **FIELDS)
    taken = [entry for _, group, clocks in books.merges["s0"] for entry in zip(group, clocks, strict=True)]
    assert run.count("compute") == dict.fromkeys(range(4), 8)
    assert len(taken) == len(set(taken))
    if "backup" not in repr(first):
        assert len(taken) == 32


def test_one_synchronous_policy_can_follow_another_over_replicas(simulate):
    """Bringing everyone to rest makes all updates fresh, as an all-reduce needs them."""
    run = simulate(chain(switch(1, bsp(), backup(1)), all_reduce(halving_doubling)), 4, budget=6, **FIELDS)
    assert run.count("finished") == dict.fromkeys(range(4), 1)

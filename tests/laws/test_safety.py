"""How far a worker may run ahead, against books of one's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from toolkit.core.conditions import seconds
from toolkit.core.messages import Committed, Finished, Joined, Left, Release
from toolkit.core.strategy import chain
from toolkit.exchanges.all_gather import all_gather
from toolkit.exchanges.gossip import gossip
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.topologies import random_peer
from toolkit.policies.dssp import dssp
from toolkit.policies.ssp import ssp
from toolkit.runtime.links import Link
from toolkit.runtime.timing import constant, lognormal

UNEVEN = {
    "until": seconds(150),
    "step": lognormal(1.0, 0.3, speeds=[1, 1.2, 1.7, 4]),
    "link": Link(0.01, 1e5),
    "nbytes": 400,
    "seed": 12,
}


def leading(policy, leads):
    """The policy, with the lead of each worker at each release written into `leads`."""

    def init(cluster):
        return policy.init(cluster), {}

    def step(state, message):
        inner, clocks = state
        inner, replies = policy.step(inner, message)
        match message:
            case Joined(worker):
                clocks = {**clocks, worker: min(clocks.values(), default=0)}
            case Left(worker) | Finished(worker):
                clocks = {w: c for w, c in clocks.items() if w != worker}
            case Committed(group):
                clocks = {w: c + (w in group) for w, c in clocks.items()}
        for reply in replies:
            if isinstance(reply, Release):
                leads.extend(clocks[worker] - min(clocks.values()) for worker in reply.workers)
        return (inner, clocks), replies

    return replace(policy, init=init, step=step)


def most(simulate, policy, exchange=None, **fields) -> int:
    leads: list[int] = []
    simulate(chain(leading(policy, leads), exchange or parameter_server()), 4, **{**UNEVEN, **fields})
    return max(leads)


@pytest.mark.parametrize("exchange", [parameter_server(2), all_gather(), gossip(random_peer)], ids=repr)
@pytest.mark.parametrize("s", [0, 1, 3, 7])
def test_under_ssp_the_lead_at_the_start_of_an_iteration_is_at_most_s_and_reaches_it(simulate, s, exchange):
    assert most(simulate, ssp(s), exchange) == s


@pytest.mark.parametrize("s", [0, 2])
def test_members_that_come_and_go_do_not_loosen_the_bound(simulate, s):
    changes = {"leaves": [(20.5, 3), (40.0, 0)], "joins": [(30.2, 4), (55.0, 5)]}
    assert most(simulate, ssp(s), until=seconds(80), **changes) == s
    assert most(simulate, dssp(s, s + 4), until=seconds(80), **changes) <= s + 4


@pytest.mark.parametrize("seed", range(4))
def test_capped_dssp_leads_by_more_than_its_lower_and_never_by_more_than_its_upper_bound(simulate, seed):
    assert 2 < most(simulate, dssp(2, 8), seed=seed) <= 8


def test_dssp_as_printed_lets_grants_add_up(simulate):
    """With speeds 1 : 2 its lead grows without bound, that of the capped form does not."""
    speeds = {"step": constant([1.0, 2.0, 2.0, 2.0]), "until": seconds(200)}
    assert most(simulate, dssp(2, 8, capped=False), **speeds) > 50
    assert most(simulate, dssp(2, 8), **speeds) <= 8

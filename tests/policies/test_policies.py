"""Policies by themselves: what each answers to what it hears."""

from __future__ import annotations

import math

import pytest

from toolkit.core.cluster import Cluster
from toolkit.core.conditions import iterations
from toolkit.core.errors import Refused
from toolkit.core.messages import Commit, Committed, Finished, Joined, Left, Ready, Release
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.policies.asp import asp
from toolkit.policies.backup import backup
from toolkit.policies.bsp import bsp
from toolkit.policies.dssp import dssp
from toolkit.policies.elastic_bsp import elastic_bsp
from toolkit.policies.makers import barrier, gate
from toolkit.policies.ssp import ssp
from toolkit.policies.switch import switch
from toolkit.rewrites.local_steps import local_steps

SIX = [bsp(), backup(1), asp(), ssp(3), dssp(2, 8), elastic_bsp(4)]


class Talk:
    """A conversation with a policy: each event, and what it answered."""

    def __init__(self, policy, workers: int = 3) -> None:
        self.policy, self.state = policy, policy.init(Cluster(tuple(range(workers))))
        self.opening = [self.say(Joined(worker, 0.0)) for worker in range(workers)]

    def say(self, event) -> list:
        self.state, replies = self.policy.step(self.state, event)
        return [reply for reply in replies if reply is not event]

    def push(self, worker: int, time: float, stale: int = 0) -> list:
        """An update arrives and is merged at once if the policy wants it."""
        replies = self.say(Ready(worker, time, stale))
        for reply in list(replies):
            if isinstance(reply, Commit):
                replies += self.say(Committed(reply.group, time))
        return replies


def commit(*workers: int) -> Commit:
    return Commit(frozenset(workers))


def release(*workers: int) -> Release:
    return Release(frozenset(workers))


@pytest.mark.parametrize("policy", SIX, ids=repr)
def test_whoever_joins_may_start(policy):
    assert Talk(policy).opening == [[release(worker)] for worker in range(3)]


@pytest.mark.parametrize("policy", SIX, ids=repr)
def test_actions_of_others_pass_through(policy):
    state = policy.init(Cluster((0,)))
    assert policy.step(state, commit(0)) == (state, (commit(0),))


@pytest.mark.parametrize("policy", SIX, ids=repr)
def test_strangers_change_nothing(policy):
    talk = Talk(policy)
    before = talk.state
    for event in (Left(9, 1.0), Finished(9, 1.0)):
        assert talk.say(event) == []
    assert talk.state == before


def test_bsp_merges_all_and_releases_all():
    talk = Talk(bsp())
    assert talk.push(1, 1.0) == talk.push(0, 2.0) == []
    assert talk.push(2, 3.0) == [commit(0, 1, 2), release(0, 1, 2)]


@pytest.mark.parametrize("event", [Left, Finished])
def test_bsp_does_not_wait_for_those_who_are_gone(event):
    talk = Talk(bsp())
    talk.push(0, 1.0)
    talk.push(1, 1.0)
    assert talk.say(event(2, 2.0)) == [commit(0, 1)]
    assert talk.say(Committed(frozenset({0, 1}), 2.0)) == [release(0, 1)]


def test_a_barrier_holds_a_newcomer_while_it_merges():
    talk = Talk(bsp(), 2)
    talk.say(Ready(0, 1.0, 0))
    assert talk.say(Ready(1, 1.0, 0)) == [commit(0, 1)]
    assert talk.say(Joined(2, 1.1)) == []
    assert talk.say(Committed(frozenset({0, 1}), 1.2)) == [release(0, 1, 2)]


def test_backup_drops_what_comes_too_late():
    talk = Talk(backup(1))
    assert talk.push(0, 1.0) == []
    assert talk.push(1, 1.0) == [commit(0, 1), release(0, 1)]
    assert talk.push(2, 1.5, stale=1) == [release(2)]


def test_backup_takes_one_update_though_there_are_as_many_spares_as_workers():
    assert Talk(backup(3)).push(1, 1.0) == Talk(backup(99)).push(1, 1.0) == [commit(1), release(1)]


def test_asp_merges_and_releases_each_alone():
    talk = Talk(asp())
    assert talk.push(1, 1.0) == [commit(1), release(1)]
    assert talk.push(1, 2.0, stale=7) == [commit(1), release(1)]


def test_ssp_lets_a_worker_start_with_a_lead_of_s_but_no_more():
    talk = Talk(ssp(2))
    assert [talk.push(0, float(t))[1:] for t in range(1, 5)] == [[release(0)], [release(0)], [], []]
    talk = Talk(ssp(2))
    for t in (1.0, 2.0, 3.0):
        talk.push(0, t)
    assert talk.push(1, 4.0) == [commit(1), release(1)]
    assert talk.push(2, 5.0) == [commit(2), release(0, 2)]


@pytest.mark.parametrize("event", [Left, Finished])
def test_ssp_does_not_wait_for_a_slowest_that_is_gone(event):
    talk = Talk(ssp(0))
    assert talk.push(0, 1.0)[1:] == talk.push(1, 1.0)[1:] == []
    assert talk.say(event(2, 2.0)) == [release(0, 1)]


def test_dssp_grants_what_brings_pushes_closest_together():
    """The slow worker pushed at 4 and 8 s, so 12 and 16 s follow; 8.5 s and five times 1.5 s make 16 s."""
    talk = Talk(dssp(1, 9), 2)
    talk.push(0, 1.0)
    assert talk.push(0, 2.0)[1:] == []  # a lead of 2, and no forecast of the slow worker yet
    assert talk.push(1, 4.0)[1:] == [release(0, 1)]
    assert talk.push(0, 7.0)[1:] == []
    assert talk.push(1, 8.0)[1:] == [release(0, 1)]
    goes_on = [bool(talk.push(0, time)[1:]) for time in (8.5, 10.0, 11.5, 13.0, 14.5, 16.0)]
    assert goes_on == [True] * 5 + [False]


def test_dssp_as_printed_runs_one_iteration_more_than_granted():
    counts = []
    for capped in (True, False):
        talk = Talk(dssp(0, 3, capped), 2)
        for worker, time in ((0, 2.0), (1, 3.0), (0, 4.0), (1, 6.0), (0, 6.5)):
            talk.push(worker, time)
        runs, time = 0, 7.0
        while talk.push(0, time)[1:] and runs < 3:
            runs, time = runs + 1, time + 1.0
        counts.append(runs)
    assert counts[1] > counts[0]


def test_elastic_bsp_runs_freely_then_holds_each_at_its_barrier():
    talk = Talk(elastic_bsp(3), 2)
    assert talk.push(0, 1.0) == [commit(0), release(0)]
    assert talk.push(0, 2.0) == [commit(0), release(0)]
    assert talk.push(1, 2.0) == [commit(1), release(1)]
    assert talk.push(0, 3.0) == [commit(0), release(0)]
    assert talk.push(1, 4.0) == [commit(1), release(1)]  # now 4, 5, 6 and 6, 8, 10 are expected: both can end at 6
    assert talk.push(0, 4.1) == [commit(0), release(0)]
    assert talk.push(0, 5.1) == [commit(0), release(0)]
    assert talk.push(0, 6.1) == []
    assert talk.push(1, 6.2) == [commit(0, 1), release(0, 1)]
    assert talk.push(0, 7.0) == [commit(0), release(0)]  # free again


@pytest.mark.parametrize("event", [Left, Finished])
def test_elastic_bsp_forgets_the_plans_of_those_who_are_gone(event):
    talk = Talk(elastic_bsp(1), 2)
    for worker, time in ((0, 1.0), (1, 1.5), (0, 2.0), (1, 3.0)):
        talk.push(worker, time)
    assert talk.push(0, 3.0) == []
    assert talk.say(event(1, 3.1)) == [commit(0)]
    assert talk.say(Committed(frozenset({0}), 3.2)) == [release(0)]


def test_elastic_bsp_waits_for_the_pushes_of_a_newcomer_but_not_at_the_barrier():
    talk = Talk(elastic_bsp(1), 1)
    for time in (1.0, 2.0):
        talk.push(0, time)
    talk.say(Joined(1, 2.1))
    assert talk.push(0, 3.0) == [commit(0), release(0)]  # the barrier of the old plan
    assert talk.push(0, 4.0) == talk.push(0, 5.0) == talk.push(0, 6.0) == [commit(0), release(0)]


def test_a_gate_of_ones_own_is_asked_again_when_clocks_change():
    asked = []

    def may_start(progress, worker):
        asked.append(worker)
        return progress.lead(worker) == 0

    talk = Talk(gate(may_start), 2)
    assert talk.push(0, 1.0)[1:] == []
    del asked[:]
    assert talk.push(1, 2.0)[1:] == [release(0, 1)]
    assert sorted(set(asked)) == [0, 1]


def test_a_barrier_of_ones_own_takes_at_least_one_update():
    assert Talk(barrier(lambda progress: -5)).push(2, 1.0)[0] == commit(2)
    half = Talk(barrier(lambda progress: progress.count // 2 + 1))
    assert half.push(0, 1.0) == []
    assert half.push(2, 1.0)[0] == commit(0, 2)


def test_a_switch_settles_updates_that_wait_for_a_quorum():
    talk = Talk(switch(1, backup(1), asp()))
    talk.push(0, 1.0)
    assert talk.push(1, 1.0) == [commit(0, 1)]  # those two are held back: the switch is due
    assert talk.push(2, 2.0) == [commit(2), release(0), release(1), release(2)]
    assert talk.push(1, 3.0) == [commit(1), release(1)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ssp(-1),
        lambda: ssp(1.5),
        lambda: ssp(math.nan),
        lambda: ssp("3"),
        lambda: ssp(True),
        lambda: backup(-1),
        lambda: backup(0.5),
        lambda: backup(math.inf),
        lambda: dssp(-1, 3),
        lambda: dssp(4, 3),
        lambda: dssp(1, math.inf),
        lambda: dssp(0, 2.5),
        lambda: elastic_bsp(0),
        lambda: elastic_bsp(-2),
        lambda: elastic_bsp(1.5),
        lambda: switch(0, bsp(), asp()),
        lambda: switch(-3, bsp(), asp()),
        lambda: switch(5, bsp(), parameter_server()),
        lambda: switch(5, local_steps(2), asp()),
        lambda: switch(5, "bsp()", asp()),
        lambda: switch("soon", bsp(), asp()),
        lambda: switch(iterations(5), bsp(), asp()),
    ],
)
def test_what_no_policy_can_do_is_refused_in_three_sentences(make):
    with pytest.raises(Refused, match=r"\. .+\. .+\.$"):
        make()

"""Exchanges by themselves: the tasks they ask for, and the facts they add."""

from __future__ import annotations

import pytest

from toolkit.core.cluster import Cluster, hosts
from toolkit.core.errors import Refused
from toolkit.core.layout import Layout, Piece, overlap
from toolkit.core.messages import (
    Apply,
    Commit,
    Committed,
    Compute,
    Done,
    Finished,
    Join,
    Joined,
    Left,
    Ready,
    Reduce,
    Release,
    Send,
)
from toolkit.core.strategy import chain
from toolkit.exchanges.all_gather import all_gather
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import ring
from toolkit.policies.bsp import bsp
from toolkit.policies.ssp import ssp

LAYOUT = Layout((Piece("w", 10),))
EXCHANGES = [parameter_server(2), all_reduce(ring), all_gather()]


class Talk:
    """A conversation with an exchange."""

    def __init__(self, strategy, workers: int = 3, **known) -> None:
        self.strategy = chain(strategy)
        cluster = Cluster(tuple(range(workers)), LAYOUT, **known)
        self.homes, self.state = self.strategy.places(cluster, {}), self.strategy.init(cluster)
        for worker in range(workers):
            self.say(Joined(worker, 0.0))

    def say(self, message) -> list:
        self.state, replies = self.strategy.step(self.state, message)
        return [reply for reply in replies if reply is not message]

    def start(self, *workers: int) -> list:
        return self.say(Release(frozenset(workers)))

    def ready(self, worker: int, clock: int, time: float, samples: int = 1) -> list:
        return self.say(Done(Join(("ready", worker, clock), about=(worker,)), time, {"samples": samples}))

    def commit(self, *workers: int) -> list:
        return self.say(Commit(frozenset(workers)))

    def merged(self, number: int, time: float) -> list:
        return self.say(Done(Join(("merged", number)), time))


@pytest.mark.parametrize("strategy", EXCHANGES, ids=repr)
def test_an_iteration_computes_once_and_ends_in_ready(strategy):
    talk = Talk(strategy)
    for clock in (1, 2):
        tasks = [task for task in talk.start(1) if not isinstance(task, Finished)]
        assert [task.key for task in tasks if isinstance(task, Compute)] == [("compute", 1, clock)]
        assert tasks[-1].key == ("ready", 1, clock) and tasks[-1].about == (1,)
        assert set(tasks[-1].after) == {task.key for task in tasks[:-1]}


@pytest.mark.parametrize("strategy", EXCHANGES, ids=repr)
def test_a_merge_carries_weights_clocks_samples_and_share(strategy):
    talk = Talk(strategy)
    talk.start(0, 1, 2)
    for worker, samples in ((0, 8), (1, 5), (2, 0)):
        talk.ready(worker, 1, 1.0, samples)
    first = [task for task in talk.commit(0, 1) if isinstance(task, Apply)]
    assert {(a.group, a.clocks, a.weights, a.staleness, a.samples, a.round) for a in first} == {
        ((0, 1), (1, 1), (8, 5), (0, 0), 0, 0)
    }
    assert {a.share for a in first} == {2 / 3}
    talk.merged(0, 2.0)
    talk.start(0)
    talk.ready(0, 2, 3.0, 4)
    second = [task for task in talk.commit(0) if isinstance(task, Apply)]
    assert {(a.group, a.clocks, a.samples, a.round) for a in second} == {((0,), (2,), 13, 1)}


@pytest.mark.parametrize("strategy", EXCHANGES, ids=repr)
def test_staleness_counts_merges_issued_since_the_pull(strategy):
    talk = Talk(strategy)
    talk.start(0, 1, 2)
    assert talk.ready(0, 1, 1.0) == [Ready(0, 1.0, 0)]
    talk.commit(0)
    assert talk.ready(1, 1, 1.1) == [Ready(1, 1.1, 1)]  # issued, though not done
    assert talk.merged(0, 1.2) == [Committed(frozenset({0}), 1.2)]
    talk.start(0)
    assert talk.ready(0, 2, 2.0) == [Ready(0, 2.0, 0)]
    assert talk.ready(2, 1, 2.1) == [Ready(2, 2.1, 1)]


@pytest.mark.parametrize("strategy", EXCHANGES, ids=repr)
def test_a_worker_is_finished_with_its_budget_before_its_last_update_is_announced(strategy):
    talk = Talk(strategy, budget={0: 1})
    talk.start(0, 1)
    talk.ready(0, 1, 1.0)
    talk.ready(1, 1, 1.0)
    talk.commit(0, 1)
    assert talk.merged(0, 2.0) == [Finished(0, 2.0), Committed(frozenset({0, 1}), 2.0)]
    assert talk.start(0) == []


@pytest.mark.parametrize("strategy", EXCHANGES, ids=repr)
def test_a_worker_whose_last_update_was_dropped_finishes_when_it_is_released(strategy):
    talk = Talk(strategy, budget={0: 1})
    talk.start(0, 1)
    talk.ready(1, 1, 1.0)
    talk.commit(1)
    talk.ready(0, 1, 1.5)
    talk.merged(0, 2.0)
    assert talk.start(0) == [Finished(0, 2.0)]
    assert talk.start(0) == []


@pytest.mark.parametrize("strategy", EXCHANGES, ids=repr)
def test_a_worker_without_rows_is_finished(strategy):
    talk = Talk(strategy)
    talk.start(0)
    talk.ready(0, 1, 1.0, samples=0)
    talk.commit(0)
    assert talk.merged(0, 2.0)[0] == Finished(0, 2.0)


@pytest.mark.parametrize("strategy", EXCHANGES, ids=repr)
def test_of_those_who_have_left_nothing_is_heard(strategy):
    talk = Talk(strategy)
    talk.start(0, 1)
    talk.say(Left(0, 0.5))
    assert talk.ready(0, 1, 1.0) == []
    assert talk.start(0) == []


def test_servers_hold_the_model_in_shards_and_workers_pull_and_push_all_of_it():
    talk = Talk(parameter_server(3))
    shards = {name: home for name, home in talk.homes.items() if home.role == "server"}
    assert [home.span for home in shards.values()] == [(0, 3), (3, 6), (6, 10)]
    assert all(home.model for home in shards.values())
    assert not any(talk.homes[worker].model for worker in range(3))
    sends = [task for task in talk.start(1) if isinstance(task, Send)]
    for item in ("params", "update"):
        assert [task.part for task in sends if task.item == item] == [(0, 3), (3, 6), (6, 10)]


def test_where_shards_live():
    cluster = Cluster((0, 1))
    beside, apart = (
        hosts(Cluster((0, 1), homes=parameter_server(3, place).places(cluster, {})))
        for place in ("collocated", "separate")
    )
    assert beside == {0: 0, 1: 1, "s0": 0, "s1": 1, "s2": 0}
    assert apart == {0: 0, 1: 1, "s0": "s0", "s1": "s1", "s2": "s2"}


def test_an_all_reduce_is_one_task_and_refreshes_those_outside_the_group():
    talk = Talk(all_reduce(ring))
    talk.start(0, 1, 2)
    talk.ready(0, 1, 1.0)
    talk.ready(2, 1, 1.0)
    reduce, *applies, refresh, join = talk.commit(0, 2)
    assert isinstance(reduce, Reduce) and reduce.group == (0, 2) and reduce.schedule == "ring"
    assert [apply.at for apply in applies] == [0, 2] and all(apply.after == (reduce.key,) for apply in applies)
    assert (refresh.src, refresh.dst, refresh.item) == (0, 1, "replica")
    assert set(join.after) == {reduce.key, refresh.key, *(apply.key for apply in applies)}


def test_an_all_gather_applies_everywhere():
    talk = Talk(all_gather())
    talk.start(0, 1, 2)
    talk.ready(0, 1, 1.0)
    tasks = talk.commit(0)
    assert [(t.src, t.dst) for t in tasks if isinstance(t, Send)] == [(0, 1), (0, 2)]
    assert [t.at for t in tasks if isinstance(t, Apply)] == [0, 1, 2]


def test_spans_of_an_iteration_do_not_overlap():
    sends = [t for t in Talk(parameter_server(3)).start(0) if isinstance(t, Send) and t.item == "update"]
    assert all(overlap(a.part, b.part) is None for a in sends for b in sends if a is not b)


@pytest.mark.parametrize(
    "make",
    [
        lambda: parameter_server(0),
        lambda: parameter_server(-1),
        lambda: parameter_server(1.5),
        lambda: parameter_server(2, "nowhere"),
    ],
)
def test_servers_that_cannot_be_are_refused(make):
    with pytest.raises(Refused, match=r"\. .+\. .+\.$"):
        make()


def test_more_shards_than_parameters_are_refused(simulate):
    with pytest.raises(Refused, match=r"^5 shards were asked for a model of 4 values\. .+\. Use at most 4 shards\.$"):
        simulate(chain(bsp(), parameter_server(5)), 2, budget=1, nbytes=16)


def test_late_updates_over_an_all_reduce_are_refused_with_their_workers(simulate):
    with pytest.raises(Refused, match=r"^all_reduce cannot merge stale updates \(workers \[\d\]\)"):
        simulate(chain(ssp(3), all_reduce(ring)), 3, budget=3)

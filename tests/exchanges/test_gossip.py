"""Gossip: doubly stochastic mixing, and pairs that average at once."""

from __future__ import annotations

import itertools
from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from toolkit.core.cluster import Cluster
from toolkit.core.errors import Refused
from toolkit.core.messages import Apply, Commit, Done, Join, Joined, Left, Mix, Release, Send
from toolkit.core.strategy import chain
from toolkit.exchanges.gossip import gossip, mixing
from toolkit.exchanges.rounds import Merge
from toolkit.exchanges.topologies import complete_neighbours, random_peer, ring_neighbours, torus_neighbours
from toolkit.policies.asp import asp
from toolkit.policies.bsp import bsp
from toolkit.policies.ssp import ssp
from toolkit.runtime.links import Link
from toolkit.runtime.timing import lognormal

TOPOLOGIES = (ring_neighbours, torus_neighbours, complete_neighbours, random_peer)


@st.composite
def graphs(draw):
    """Connected graphs: a random tree and some more edges."""
    n = draw(st.integers(2, 8))
    tree = [(draw(st.integers(0, w - 1)), w) for w in range(1, n)]
    more = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=8))
    return n, sorted({(min(e), max(e)) for e in [*tree, *more] if e[0] != e[1]})


def merged(strategy, n: int) -> list:
    """The tasks of the first merge of everyone."""
    cluster = Cluster(tuple(range(n)))
    strategy.places(cluster, {})
    state = strategy.init(cluster)
    for worker in range(n):
        state, _ = strategy.step(state, Joined(worker, 0.0))
    state, _ = strategy.step(state, Release(frozenset(range(n))))
    for worker in range(n):
        state, _ = strategy.step(state, Done(Join(("ready", worker, 1), about=(worker,)), 1.0))
    return list(strategy.step(state, Commit(frozenset(range(n))))[1])


def matrix(tasks, n: int) -> list[list[float]]:
    rows = [[0.0] * n for _ in range(n)]
    for task in tasks:
        if isinstance(task, Mix):
            for source, weight in zip(task.sources, task.weights, strict=True):
                rows[task.at][source] += weight
    return rows


def check_doubly_stochastic(rows) -> None:
    n = len(rows)
    assert all(weight >= 0 for row in rows for weight in row)
    assert [sum(row) for row in rows] == pytest.approx([1.0] * n)
    assert [sum(column) for column in zip(*rows, strict=True)] == pytest.approx([1.0] * n)
    assert all(rows[i][j] == pytest.approx(rows[j][i]) for i in range(n) for j in range(i))


@given(graphs())
def test_the_mixing_matrix_of_any_connected_graph_is_symmetric_and_doubly_stochastic(graph):
    n, edges = graph
    tasks = merged(gossip(edges), n)
    rows = matrix(tasks, n)
    check_doubly_stochastic(rows)
    linked = {(i, j) for i, j in itertools.combinations(range(n), 2) if rows[i][j] > 0}
    assert linked == set(edges)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 9])
def test_so_is_that_of_every_topology(topology, n):
    check_doubly_stochastic(matrix(merged(gossip(topology), n), n))


def test_snapshots_travel_before_anyone_mixes_and_updates_are_applied_after():
    tasks = {task.key: task for task in merged(gossip(ring_neighbours), 4)}
    for task in tasks.values():
        if isinstance(task, Mix):
            assert {tasks[key].src for key in task.after} == set(task.sources) - {task.at}
        if isinstance(task, Apply):
            assert [type(tasks[key]) for key in task.after] == [Mix]
            assert task.group == (task.at,) and task.source == "update"
        if isinstance(task, Send):
            assert task.item == "snapshot" and not task.after
    assert sum(isinstance(task, Send) for task in tasks.values()) == 8


def test_a_worker_alone_only_applies_its_own_update():
    merge = Merge(0, (0,), (1,), (1.0,), (0,), 0, Map({0: True}))
    mix, apply = mixing(Cluster((0,)), merge, {0: ()})
    assert isinstance(mix, Mix) and mix.weights == (1,) and isinstance(apply, Apply)


class Talk:
    """A conversation with a gossip of workers that commit alone."""

    def __init__(self, strategy, n: int, seed: int = 0) -> None:
        cluster = Cluster(tuple(range(n)), seed=seed)
        self.strategy, self.state, self.clock = strategy, strategy.init(cluster), dict.fromkeys(range(n), 0)
        for worker in range(n):
            self.say(Joined(worker, 0.0))

    def say(self, message) -> list:
        self.state, replies = self.strategy.step(self.state, message)
        return [reply for reply in replies if reply is not message]

    def commit(self, worker: int) -> list:
        """A whole iteration, and the merge that follows it."""
        self.clock[worker] += 1
        self.say(Release(frozenset({worker})))
        self.say(Done(Join(("ready", worker, self.clock[worker]), about=(worker,)), 1.0))
        return self.say(Commit(frozenset({worker})))


def mixed(tasks) -> set[int]:
    """Who averages in these tasks."""
    return {task.at for task in tasks if isinstance(task, Mix)}


def number(tasks) -> int:
    return next(task.round for task in tasks if isinstance(task, Mix))


def test_a_newcomer_is_nobodys_partner_before_it_has_a_replica():
    talk = Talk(gossip(complete_neighbours), 3)
    talk.say(Done(Join(("merged", number(talk.commit(0)))), 1.0))
    talk.say(Joined(3, 2.0))
    hello, welcomed = talk.say(Release(frozenset({3})))
    met = set()
    for _ in range(30):
        tasks = talk.commit(0)
        met |= mixed(tasks)
        talk.say(Done(Join(("merged", number(tasks))), 2.0))
    assert met == {0, 1, 2}
    assert (hello.item, hello.dst, welcomed.after) == ("replica", 3, (hello.key,))
    assert [task.key for task in talk.say(Done(welcomed, 3.0))] == [("compute", 3, 1), ("ready", 3, 1)]
    met = set()
    for _ in range(30):
        tasks = talk.commit(0)
        met |= mixed(tasks)
        talk.say(Done(Join(("merged", number(tasks))), 4.0))
    assert met == {0, 1, 2, 3}


def test_a_pair_that_is_chosen_anew_waits_for_a_busy_partner():
    """0 loses its partner 1 while its only other neighbour, 2, averages with 3."""
    for seed in range(20):
        talk = Talk(gossip([(0, 1), (0, 2), (2, 3)]), 4, seed)
        busy, pair = talk.commit(3), talk.commit(0)
        if mixed(pair) == {0, 1}:
            break
    assert mixed(busy) == {2, 3} and mixed(pair) == {0, 1}
    cancels = talk.say(Left(1, 2.0))
    assert [task.at for task in cancels[:-1]] == [0]
    assert mixed(talk.say(Done(cancels[-1], 2.1))) == set()
    assert mixed(talk.say(Done(Join(("merged", number(busy))), 2.2))) == {0, 2}


# -- executed on numbers ----------------------------------------------------------------------------------------


class Numbers:
    """One exact number at each place; an update is worth `step`."""

    def __init__(self, workers: int, step: int) -> None:
        self.value = {worker: Fraction(3**worker) for worker in range(workers)}
        self.inbox: dict = defaultdict(dict)
        self.step, self.sums = Fraction(step), []

    def read(self, place, task):
        match task:
            case Send(item="snapshot"):
                return self.value[place]
            case Mix(sources=sources, weights=weights):
                known = {**self.inbox[place], place: self.value[place]}
                return sum(
                    known[v] * Fraction(w).limit_denominator(1000) for v, w in zip(sources, weights, strict=True)
                )
        return None

    def write(self, place, task, value):
        match task:
            case Send(src=src):
                self.inbox[place][src] = value
            case Mix():
                self.value[place] = value
            case Apply():
                self.value[place] -= self.step

    def facts(self, task, value):
        return {}

    def measure(self, task, values):
        return {}


FIELDS = {"step": lognormal(1.0, 0.6), "link": Link(0.3, 1e3), "nbytes": 400, "apply": 0.1, "seed": 20}
CHAINS = [
    chain(asp(), gossip(random_peer)),
    chain(asp(), gossip(complete_neighbours)),
    chain(ssp(2), gossip(ring_neighbours)),
    chain(bsp(), gossip(ring_neighbours)),
    chain(bsp(), gossip([(0, 1), (1, 2), (1, 3), (3, 4), (4, 5)])),
]


@pytest.mark.parametrize("strategy", CHAINS, ids=repr)
def test_with_learning_rate_zero_the_mean_over_workers_never_changes(simulate, strategy):
    """Also for pairs that overlap in time: links are slow here, and many merges are under way at once."""
    numbers = Numbers(6, step=0)
    start = sum(numbers.value.values())
    simulate(strategy, 6, budget=6, data=numbers, **FIELDS)
    assert sum(numbers.value.values()) == start
    assert len(set(numbers.value.values())) > 1 or "bsp" in repr(strategy)


@pytest.mark.parametrize("strategy", CHAINS, ids=repr)
def test_each_update_moves_the_sum_by_its_step(simulate, strategy):
    numbers = Numbers(6, step=2)
    start = sum(numbers.value.values())
    simulate(strategy, 6, budget=6, data=numbers, **FIELDS)
    assert sum(numbers.value.values()) == start - 6 * 6 * 2


@pytest.mark.parametrize("strategy", CHAINS[:3], ids=repr)
def test_a_worker_takes_part_in_one_average_at_a_time(simulate, strategy):
    """Merges of different pairs do overlap; those that share a worker are held back."""
    run = simulate(strategy, 6, budget=6, **FIELDS)
    tasks = run.of("send", "mix", "apply")
    spans = tasks.groupby("round").agg(began=("wanted", "min"), ended=("ended", "max"))
    members = {r: set(rows["place"]) | set(rows["peer"].dropna()) for r, rows in tasks.groupby("round")}
    overlapping = 0
    for (a, first), (b, second) in itertools.combinations(spans.iterrows(), 2):
        if max(first["began"], second["began"]) < min(first["ended"], second["ended"]):
            overlapping += 1
            assert not members[a] & members[b], (a, b)
    assert overlapping > 0


# -- topologies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda f: f.__name__)
@given(st.frozensets(st.integers(0, 30), min_size=1, max_size=12), st.integers(1, 50))
def test_neighbours_are_other_live_workers_each_once(topology, live, clock):
    live = tuple(sorted(live))
    near = {worker: topology(worker, clock, live, 5) for worker in live}
    for worker, others in near.items():
        assert worker not in others and set(others) <= set(live) and len(set(others)) == len(others)
        assert others or len(live) == 1
        if topology is not random_peer:
            assert all(worker in near[other] for other in others)


def test_sizes_of_neighbourhoods():
    live = tuple(range(12))
    assert {len(ring_neighbours(w, 1, live, 0)) for w in live} == {2}
    assert {len(torus_neighbours(w, 1, live, 0)) for w in live} == {4}
    assert {len(complete_neighbours(w, 1, live, 0)) for w in live} == {11}
    peers = [random_peer(3, clock, live, 0)[0] for clock in range(300)]
    assert set(peers) == set(live) - {3}


@pytest.mark.parametrize(
    "edges", [[(0, 1)], [(0, 1), (2, 3)], [(0, 1), (1, 2), (2, 2)], [(0, 1), (1, 2), (2, 7)], []], ids=repr
)
def test_edges_that_do_not_connect_the_workers_are_refused(simulate, edges):
    with pytest.raises(Refused, match=r"^gossip over the edges .+\. Averages spread .+\. Add edges .+\.$"):
        simulate(chain(bsp(), gossip(edges)), 3, budget=1)

"""Virtual time: lanes, queues, order, and descriptions that cannot be."""

from __future__ import annotations

import itertools
import math

import pytest

from toolkit.core.conditions import iterations, seconds, updates
from toolkit.core.errors import Diverged, Overdue, Refused
from toolkit.core.messages import Join, Reduce, Task
from toolkit.core.strategy import Strategy, chain
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.gossip import gossip
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import halving_doubling, ring
from toolkit.exchanges.topologies import random_peer
from toolkit.policies.asp import asp
from toolkit.policies.bsp import bsp
from toolkit.policies.makers import barrier, gate
from toolkit.policies.ssp import ssp
from toolkit.rewrites.pipeline import pipeline
from toolkit.runtime.collective import chunk, incoming, orders
from toolkit.runtime.joins import Joins, unite
from toolkit.runtime.links import Link, Links
from toolkit.runtime.simulator import Simulator
from toolkit.runtime.timing import lognormal

BUSY = {"step": lognormal(1.0, 0.4), "link": Link(0.01, 2e3), "nbytes": 400, "apply": 0.05, "seed": 30}
CHAINS = [
    chain(asp(), parameter_server(2)),
    chain(bsp(), parameter_server(1, "separate")),
    chain(bsp(), all_reduce(ring)),
    chain(bsp(), all_reduce(halving_doubling)),
    chain(asp(), gossip(random_peer)),
    chain(ssp(1), parameter_server(2), pipeline(2, 3)),
]


def disjoint(rows) -> bool:
    """Whether spans of time do not overlap but for rounding."""
    spans = sorted(zip(rows["began"], rows["ended"], strict=True))
    return all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize("strategy", CHAINS, ids=repr)
def test_times_are_in_order_and_rows_follow_their_cause(simulate, strategy):
    frame = simulate(strategy, 4, budget=5, **BUSY).frame
    assert (frame["wanted"] <= frame["began"]).all() and (frame["began"] <= frame["ended"]).all()
    assert frame["ended"].is_monotonic_increasing
    tasks = frame[frame["kind"].isin(("compute", "stage", "send", "apply", "mix"))]
    causes = frame.set_index("seq").loc[tasks["cause"]]
    assert (causes["ended"].to_numpy() <= tasks["wanted"].to_numpy()).all()
    assert set(causes["kind"]) <= {"joined", "done", "left"}


@pytest.mark.parametrize("strategy", CHAINS, ids=repr)
def test_what_a_reply_asks_for_is_taken_up_after_the_control_time(simulate, strategy):
    frame = simulate(strategy, 4, budget=5, control=0.25, **BUSY).frame
    tasks = frame[frame["cause"] >= 0]
    causes = frame.set_index("seq").loc[tasks["cause"]]
    waited = tasks["wanted"].to_numpy() - causes["ended"].to_numpy()
    reported = (causes["kind"] == "done").to_numpy()  # a worker that joins is answered at once
    assert (waited[~reported] == 0.0).any() and (waited[reported] >= 0.25 - 1e-9).all()
    assert waited[reported].min() == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [(chain(bsp(), parameter_server()), 3), (chain(bsp(), all_reduce(ring)), 3), (chain(asp(), parameter_server()), 1)],
    ids=repr,
)
def test_a_round_waits_for_the_coordinator_before_and_after_the_merge(simulate, strategy, workers):
    run = simulate(strategy, workers, budget=4, step=1.0, apply=0.5, control=0.25)
    assert run.of("committed")["ended"].tolist() == [1.75, 3.75, 5.75, 7.75]


@pytest.mark.parametrize("strategy", CHAINS, ids=repr)
def test_a_host_does_one_step_and_one_update_at_a_time(simulate, strategy):
    run = simulate(strategy, 4, budget=5, **BUSY)
    for kinds in (("compute", "stage"), ("apply", "mix")):
        for _, rows in run.of(*kinds).groupby("place"):
            assert disjoint(rows)


@pytest.mark.parametrize("strategy", CHAINS[1:5], ids=repr)
def test_a_link_carries_one_message_out_and_one_in_at_a_time(simulate, strategy):
    run = simulate(strategy, 4, budget=5, **BUSY)
    wire = run.of("send", "hop").assign(ended=lambda f: f["ended"] - 0.01)  # latency occupies no lane
    for end in ("place", "peer"):
        for _, rows in wire.groupby(end):
            assert disjoint(rows)


@pytest.mark.parametrize("strategy", CHAINS, ids=repr)
def test_reads_and_writes_at_a_place_are_numbered_without_gaps(simulate, strategy):
    frame = simulate(strategy, 4, budget=5, **BUSY).frame
    stamps: dict[str, list[int]] = {}
    for row in frame.itertuples():
        if row.src_seq >= 0:
            stamps.setdefault(row.place, []).append(row.src_seq)
        if row.dst_seq >= 0:
            stamps.setdefault(row.peer if row.kind in ("send", "hop") else row.place, []).append(row.dst_seq)
    assert all(sorted(numbers) == list(range(len(numbers))) for numbers in stamps.values())


def test_messages_within_a_host_take_no_time(simulate):
    slow = {"link": Link(5.0, 1.0), "nbytes": 400}
    run = simulate(chain(bsp(), parameter_server(1)), 1, budget=3, step=1.0, **slow)
    assert run.drive.tally.time == 3.0
    run = simulate(chain(bsp(), all_reduce(ring)), 2, budget=3, step=1.0, hosts={1: 0}, **slow)
    assert run.drive.tally.time == 6.0  # two workers share one CPU


def test_places_that_share_a_host_share_its_link(simulate):
    def first(**hosts) -> float:
        fields = {"step": 1.0, "link": Link(0.0, 100.0), "nbytes": 400, "hosts": hosts or None}
        run = simulate(chain(bsp(), parameter_server(2, "separate")), 2, budget=1, **fields)
        return float(run.of("committed")["ended"].iloc[0])

    apart, together = first(), first(s0="rack", s1="rack")
    assert apart < together


def test_an_optimizer_step_takes_its_seconds_from_the_step_beside_it(simulate):
    """The shard of worker 0 applies worker 1's update in the middle of worker 0's step."""
    run = simulate(chain(asp(), parameter_server()), 2, budget=1, step=lambda w, i, now, s: [2.0, 1.0][w], apply=0.5)
    ends = run.of("compute").set_index("worker")["ended"]
    assert ends[1] == 1.0 and ends[0] == 2.5


def test_links_of_pairs_differ(simulate):
    links = Links(Link(0.0, math.inf), {(1, 0): Link(3.0, math.inf)})
    run = simulate(chain(bsp(), parameter_server()), 3, budget=1, step=1.0, link=links)
    pushes = run.of("send").query("key.str.startswith('push')").set_index("place")["ended"]
    assert pushes.to_dict() == {"0": 1.0, "1": 4.0, "2": 1.0}


def test_what_happens_at_the_same_time_happens_in_the_order_it_was_asked_for(simulate):
    run = simulate(chain(asp(), parameter_server()), 5, budget=3, step=1.0)
    assert run.of("ready")["worker"].tolist() == [0, 1, 2, 3, 4] * 3


def test_workers_join_and_leave_at_their_times(simulate):
    run = simulate(chain(asp(), parameter_server()), 2, budget=9, step=1.0, joins=[(2.5, 2)], leaves=[(3.5, 0)])
    assert run.of("joined")["ended"].tolist() == [0.0, 0.0, 2.5]
    assert run.of("left")["ended"].tolist() == [3.5]
    assert run.count("compute") == {0: 3, 1: 9, 2: 9}


def test_a_shard_beside_a_worker_that_left_serves_on(simulate):
    run = simulate(chain(asp(), parameter_server(1)), 3, budget=6, step=1.0, leaves=[(2.5, 0)])
    assert run.of("apply").query("place == 's0' and ended > 3").shape[0] == 6


def test_conditions_end_a_run(simulate):
    strategy = chain(bsp(), parameter_server())
    assert simulate(strategy, 2, step=1.0, until=seconds(4.5)).drive.tally.time >= 4.5
    assert simulate(strategy, 2, step=1.0, until=updates(3)).drive.tally.updates == 3
    assert simulate(strategy, 2, step=1.0, until=updates(3) | seconds(1.0)).drive.tally.updates <= 1
    run = simulate(strategy, 2, step=1.0, budget=2, until=iterations(2) | seconds(99))
    assert run.count("compute") == {0: 2, 1: 2} and run.drive.status == "finished"


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        (barrier(lambda progress: 5), {}),
        (gate(lambda progress, worker: progress.lead(worker) > 0), {}),
        (bsp(), {"leaves": [(1.5, 0), (1.5, 1)], "until": updates(9)}),
        (asp(), {"budget": 2, "until": updates(9)}),
    ],
)
def test_a_run_in_which_nothing_more_happens_ends_with_an_error(simulate, policy, fields):
    with pytest.raises(
        Overdue, match=r"^Nothing more happens at .+ s although .+\. Every worker waits.+\. Ask for less.+\.$"
    ):
        simulate(chain(policy, parameter_server()), 2, step=1.0, **{"budget": 3, **fields})


def test_an_update_that_is_not_finite_stops_the_run(simulate):
    class Sick:
        def read(self, place, task):
            return None

        def write(self, place, task, value):
            pass

        def facts(self, task, value):
            return {
                "samples": 1,
                "loss": math.nan if task.key[1:] == (1, 2) else 0.5,
                "norm": 1.0,
                "clock": task.key[2],
            }

    with pytest.raises(Diverged, match=r"^The update of worker 1 in its iteration 2 is not finite: .+ staleness \d\."):
        simulate(chain(asp(), parameter_server()), 3, step=1.0, budget=4, data=Sick())


@pytest.mark.parametrize("schedule", ["ring", "tree", "halving_doubling"])
@pytest.mark.parametrize("n", [1, 2, 3, 6, 8])
def test_the_order_of_hops_makes_sums_the_same_whatever_arrives_first(schedule, n):
    """A chunk is written at a place by one hop after the other, and read when all hops before have written."""
    plan, wrote = orders(schedule, n), {}
    reduce = Reduce(("reduce", 3), tuple(range(n)), schedule, (0, 10), (1.0,) * n, round=3)
    for i, order in enumerate(plan):
        hop = chunk(reduce, i)
        cells = range(hop.start, hop.stop)
        assert set(order.source) == {k for c in cells for k in wrote.get((hop.src, c), ())}
        assert set(order.target) == {k for c in cells for k in wrote.get((hop.dst, c), ())}
        for c in cells:
            wrote.setdefault((hop.dst, c), []).append(i)
        assert hop.key == ("hop", 3, i) and hop.round == 3
    assert sorted(i for hops in incoming(schedule, n) for i in hops) == list(range(len(plan)))


def test_joins_are_reached_when_all_they_wait_for_is_done():
    joins = Joins()
    assert [d.task.key for d in joins.add([Join(("now",)), Join(("later",), after=(("a",), ("b",)))], 1.0)] == [
        ("now",)
    ]
    assert joins.done(("a",), 2.0, {"norm": 3.0, "loss": 1.0, "applied": (1,)}) == []
    assert [missing for _, missing in joins.pending()] == [{("b",)}]
    (done,) = joins.done(("b",), 3.0, {"norm": 4.0, "loss": 2.0, "applied": (2,)})
    assert (done.time, dict(done.facts)) == (3.0, {"norm": 5.0, "loss": 2.0, "applied": (1, 2)})
    assert joins.done(("b",), 4.0) == [] and joins.pending() == []


def test_joins_of_a_cancelled_merge_are_forgotten_but_not_that_of_its_cancelling():
    joins = Joins()
    names = (("merged", 4), ("cancelled", 4, 1), ("merged", 5))
    joins.add([Join(name, after=(("x", *name),), round=name[1]) for name in names], 0.0)
    joins.forget(4)
    assert [join.key for join, _ in joins.pending()] == [("cancelled", 4, 1), ("merged", 5)]
    assert joins.done(("x", "merged", 4), 1.0) == []


def test_facts_unite():
    known = {"norm": 3.0, "loss": 1.0}
    unite(known, {"norm": 4.0, "loss": 2.0, "samples": 8})
    assert known == {"norm": 5.0, "loss": 2.0, "samples": 8}


def test_unknown_tasks_are_refused(simulate):
    class Dance(Task):
        pass

    dancing = Strategy(lambda cluster: None, lambda state, message: (state, [Dance(("dance",))]), "exchange")
    with pytest.raises(TypeError, match=r"is no task that a runtime knows\. .+\. .+\.$"):
        simulate(dancing, 1, budget=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"workers": 0},
        {"workers": -3},
        {"workers": 2.5},
        {"workers": "4"},
        {"step": 0},
        {"step": -1.0},
        {"apply": -0.1},
        {"apply": math.nan},
        {"nbytes": -4},
        {"joins": [(-1.0, 4)]},
        {"joins": [(1.0, 0)]},
        {"leaves": [(math.nan, 0)]},
        {"leaves": [(1.0, -1)]},
    ],
    ids=repr,
)
def test_clusters_that_cannot_be_are_refused(fields):
    with pytest.raises(Refused, match=r"\. .+\. .+\.$"):
        Simulator(**{"workers": 4, **fields})


def test_what_strategies_are_told():
    cluster = Simulator(3, nbytes=400, joins=[(2.0, 3)], seed=5).describe(budget=7)
    assert cluster.workers == (0, 1, 2) and cluster.layout.size == 100 and cluster.seed == 5
    assert cluster.budget == dict.fromkeys(range(4), 7)

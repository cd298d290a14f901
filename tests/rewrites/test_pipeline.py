"""Pipelines: each stage has its place, its parameters and its part of every message."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from toolkit.core.cluster import Cluster, hosts
from toolkit.core.errors import Refused
from toolkit.core.layout import Layout, Piece, overlap
from toolkit.core.messages import Apply, Compute, Mix, Reduce, Send, Stage, Task
from toolkit.core.strategy import chain
from toolkit.exchanges.all_gather import all_gather
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.gossip import gossip
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import ring
from toolkit.exchanges.topologies import random_peer, ring_neighbours
from toolkit.policies.asp import asp
from toolkit.policies.backup import backup
from toolkit.policies.bsp import bsp
from toolkit.policies.ssp import ssp
from toolkit.rewrites.codecs import top_k
from toolkit.rewrites.compress import compress
from toolkit.rewrites.deal import deal
from toolkit.rewrites.forward_only import forward_only
from toolkit.rewrites.local_steps import local_steps
from toolkit.rewrites.pipeline import pipeline
from toolkit.runtime.links import Link
from toolkit.runtime.timing import lognormal

LAYOUT = Layout((Piece("a", 30, "one"), Piece("b", 10, "two"), Piece("c", 25, "three"), Piece("d", 35, "four")))
STAGES = {"0": (0, 30), "1": (30, 65), "2": (65, 100)}
CHAINS = [
    chain(bsp(), all_reduce(ring)),
    chain(bsp(), parameter_server(2)),
    chain(ssp(1), parameter_server(3), compress(top_k(0.1))),
    chain(bsp(), gossip(ring_neighbours)),
    chain(asp(), gossip(random_peer)),
    chain(asp(), all_gather()),
]
FIELDS = {"step": lognormal(1.0, 0.3), "link": Link(0.01, 1e4), "layout": LAYOUT, "apply": 0.01}


def asked(simulate, strategy, **options) -> tuple[object, list[Task]]:
    """The run, and every task that was asked for."""
    tasks: list[Task] = []

    def step(state, message):
        state, replies = strategy.step(state, message)
        tasks.extend(reply for reply in replies if isinstance(reply, Task))
        return state, replies

    return simulate(replace(strategy, step=step), 3, **FIELDS, **options), tasks


def home(place) -> tuple[int, int]:
    return STAGES[place.split(".")[1]]


@pytest.mark.parametrize("base", CHAINS, ids=repr)
def test_every_exchange_works_above_a_pipeline_and_parameters_stay_at_their_stage(simulate, base):
    run, tasks = asked(simulate, chain(base, pipeline(3, 4)), budget=3)
    assert run.count("finished") == dict.fromkeys(range(3), 1)
    assert {t.at for t in tasks if isinstance(t, Stage)} == {f"{w}.{s}" for w in range(3) for s in range(3)}
    assert not any(isinstance(task, Compute) for task in tasks)
    for task in tasks:
        match task:
            case Send(item="activations" | "cotangents"):
                continue
            case Send(src=src, dst=dst, part=part):
                places = [place for place in (src, dst) if "." in str(place)]
                assert places and all(overlap(part, home(place)) == part for place in places), task
                assert len({place.split(".")[1] for place in places}) == 1
            case Apply(at=str(place), part=part) | Mix(at=str(place), part=part) if "." in place:
                assert part == home(place)
            case Reduce(group=group, part=part):
                assert all(part == home(place) for place in group)
            case Stage(at=place, parts=parts):
                assert all(overlap(part, home(place)) == part for part in parts)


@pytest.mark.parametrize("base", CHAINS[:3], ids=repr)
def test_an_update_travels_whole_and_once(simulate, base):
    _, tasks = asked(simulate, chain(base, pipeline(3, 2)), budget=2)
    seen = defaultdict(int)
    for task in tasks:
        if isinstance(task, Send) and task.item == "update":
            seen[task.key[1:3]] += task.part[1] - task.part[0]
    for number, parts in by_round(tasks).items():
        assert sorted(parts) == sorted(STAGES.values()), number
    assert set(seen.values()) <= {100}


def by_round(tasks) -> dict:
    found = defaultdict(list)
    for task in tasks:
        if isinstance(task, Reduce):
            found[task.round].append(task.part)
    return found


def test_keys_are_unique_and_waits_stay_within_a_reply(simulate):
    for base in CHAINS:
        strategy, seen = chain(base, pipeline(3, 2)), set()

        def step(state, message, strategy=strategy, seen=seen):
            state, replies = strategy.step(state, message)
            names = [task.key for task in replies if isinstance(task, Task)]
            assert len(set(names)) == len(names) and not seen & set(names)
            seen.update(names)
            assert all(set(task.after) <= set(names) for task in replies if isinstance(task, Task))
            return state, replies

        simulate(replace(strategy, step=step), 3, budget=3, leaves=[(1.5, 2)], **FIELDS)


def test_microbatches_go_forward_through_all_stages_and_back(simulate):
    run = simulate(chain(bsp(), all_reduce(ring), pipeline(3, 2)), 1, budget=1, step=9.0, layout=LAYOUT)
    rows = run.of("stage").set_index("key")["ended"]
    forward = [rows[f"stage:0:1:forward:{s}:{m}"] for m in range(2) for s in range(3)]
    assert forward == [0.5, 1.0, 1.5, 1.0, 1.5, 2.0]
    backward = [rows[f"stage:0:1:backward:{s}:{m}"] for m in range(2) for s in (2, 1, 0)]
    assert backward == [3.0, 4.0, 5.0, 4.0, 5.0, 6.0]
    sends = run.of("send")["key"].str.split(":").str[0].value_counts().to_dict()
    assert sends == {"activations": 4, "cotangents": 4}


def test_uneven_microbatches_cost_in_proportion_to_their_rows(simulate):
    strategy = chain(bsp(), all_reduce(ring), pipeline(1, 3), deal(80, 8))
    rows = simulate(strategy, 1, budget=1, step=8.0, layout=LAYOUT, rows=80).of("stage")
    spent = (rows["ended"] - rows["began"]).tolist()
    assert [round(3 * t) for t in spent[:3]] in ([2, 3, 3], [3, 3, 2], [3, 2, 3])
    assert sum(spent) == pytest.approx(8.0)


def test_where_stages_live():
    strategy = chain(bsp(), parameter_server(2), pipeline(2, 2))
    homes = strategy.places(Cluster((0, 1), LAYOUT), {})
    assert set(homes) == {"0.0", "0.1", "1.0", "1.1", "s0", "s1"}
    assert [homes[f"0.{s}"].span for s in range(2)] == [(0, 40), (40, 100)]
    assert homes["0.1"].worker == 0 and homes["0.1"].stage == (1, 2) and homes["0.1"].role == "stage"
    where = hosts(Cluster((0, 1), LAYOUT, homes=homes))
    assert where == {"0.0": 0, "0.1": "0.1", "1.0": 1, "1.1": "1.1", "s0": 0, "s1": 1}


def test_a_worker_that_leaves_takes_all_its_stages(simulate):
    run = simulate(chain(bsp(), all_reduce(ring), pipeline(3, 2)), 3, budget=4, leaves=[(1.2, 1)], **FIELDS)
    late = run.of("stage", "apply").query("ended > 1.2")
    assert set(late["place"].str.split(".").str[0]) == {"0", "2"}
    assert run.count("finished") == {0: 1, 2: 1}


def test_only_forward(simulate):
    run = simulate(chain(bsp(), parameter_server(2), pipeline(3, 2), forward_only()), 2, budget=2, **FIELDS)
    assert run.of("stage")["key"].str.contains("forward").all()
    assert not run.of("send")["key"].str.startswith(("push", "cotangents")).any()
    assert run.of("apply").empty


def test_other_policies_over_stages(simulate):
    run = simulate(chain(backup(1), all_reduce(ring), pipeline(2, 2)), 3, budget=4, **FIELDS)
    assert run.count("finished") == dict.fromkeys(range(3), 1)


def test_local_steps_over_stages_are_refused(simulate):
    with pytest.raises(Refused, match=r"^pipeline was asked for \d+ local step.+\. .+\. Leave out .+\.$"):
        simulate(chain(bsp(), all_reduce(ring), local_steps(2), pipeline(2)), 2, budget=1, **FIELDS)


def test_more_stages_than_blocks_are_refused(simulate):
    with pytest.raises(Refused, match=r"^5 stages were asked for a model of 4 block\(s\) .+\. .+\. .+\.$"):
        simulate(chain(bsp(), all_reduce(ring), pipeline(5)), 2, budget=1, **FIELDS)


@pytest.mark.parametrize(("stages", "microbatches"), [(0, 1), (-1, 1), (2, 0), (1.5, 1), (2, -3)])
def test_stages_and_microbatches_are_counts(stages, microbatches):
    with pytest.raises(Refused, match=r"\. .+\. .+\.$"):
        pipeline(stages, microbatches)

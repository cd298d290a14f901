"""Metrics of small traces whose answers are computed by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from toolkit import metrics
from toolkit.intervals import iterations, seconds
from toolkit.trace import Row, Trace, happened


def run_of(trace: Trace, values: Any = ()) -> Any:
    names = ["time", "round", "samples", "name", "value"]
    return SimpleNamespace(trace=trace.frame(), metrics=pd.DataFrame(list(values), columns=names))


def compute(trace: Trace, worker: int, clock: int, began: float, ended: float, stale: int = 0, samples: int = 8) -> int:
    """A step and its readiness; the number of the ready row."""
    key = ("compute", worker, clock)
    trace.append(Row("compute", key, began, began, ended, worker, clock, place=worker, samples=samples))
    return trace.append(happened("ready", ("ready", worker, clock), ended, worker=worker, clock=clock, stale=stale))


def merge(trace: Trace, number: int, group: tuple[int, ...], issued: float, ended: float, cause: int = -1) -> None:
    trace.append(Row("apply", ("apply", number, "s0"), issued, issued, ended, round=number, place="s0", cause=cause))
    trace.append(happened("committed", ("committed", *group), ended, round=number))


def bsp(speeds: tuple[float, ...], rounds: int, cost: float) -> Any:
    """Everyone waits for everyone; a merge takes `cost` seconds."""
    trace, now = Trace(), 0.0
    for number in range(rounds):
        ready = [compute(trace, w, number + 1, now, now + step) for w, step in enumerate(speeds)]
        issued = now + max(speeds)
        now = issued + cost
        merge(trace, number, tuple(range(len(speeds))), issued, now, ready[-1])
    return run_of(trace)


def test_bsp_waits_for_the_slowest_and_the_merge_is_not_waiting() -> None:
    run = bsp((1.0, 2.0), rounds=3, cost=0.5)
    assert metrics.waiting(run).to_dict() == {0: 2.0, 1: 0.0}  # a second in each round but the last
    assert seconds(run) == 7.5


def test_a_dropped_update_waits_until_its_worker_goes_on() -> None:
    trace = Trace()
    compute(trace, 0, 1, 0.0, 1.0)
    merge(trace, 0, (0,), 1.0, 1.25)
    compute(trace, 1, 1, 0.0, 2.0, stale=1)  # too late: nobody takes it
    compute(trace, 0, 2, 1.25, 2.25)
    merge(trace, 1, (0,), 2.25, 2.5)
    compute(trace, 0, 3, 2.5, 3.5)
    compute(trace, 1, 2, 2.5, 4.5)
    run = run_of(trace)
    assert metrics.waiting(run).to_dict() == {0: 0.0, 1: 0.5}
    assert metrics.dropped(run).to_dict() == {0: 0, 1: 1}
    assert metrics.staleness(run)[["round", "workers"]].to_numpy().tolist() == [[0, 1], [1, 1]]


def test_a_merge_that_a_worker_does_not_wait_for_is_no_negative_wait() -> None:
    trace = Trace()
    ready = compute(trace, 0, 1, 0.0, 1.0)
    compute(trace, 0, 2, 1.0, 2.0)
    trace.append(Row("apply", ("apply", 0, "s0"), 1.0, 1.0, 3.0, round=0, place="s0", cause=ready))
    assert metrics.waiting(run_of(trace)).to_dict() == {0: 0.0}


def test_staleness_counts_merges_before_and_after_an_update_was_ready() -> None:
    trace = Trace()
    early = compute(trace, 0, 1, 0.0, 1.0)
    other = compute(trace, 1, 1, 0.0, 1.5)
    merge(trace, 0, (1,), 1.5, 1.6, other)
    again = compute(trace, 1, 2, 1.6, 2.0)
    merge(trace, 1, (1,), 2.0, 2.1, again)
    last = compute(trace, 2, 1, 0.0, 3.0, stale=2)  # two merges were issued while it computed
    merge(trace, 2, (0, 2), 3.0, 3.1, last)
    ages = metrics.staleness(run_of(trace))[["round", "workers", "stale", "stale_max"]]
    assert ages.to_numpy().tolist() == [[0, 1, 0, 0], [1, 1, 0, 0], [2, 2, 2, 2]]
    assert early < other  # worker 0 lay ready during both merges


def test_staleness_may_be_asked_of_an_event_row_before_the_ready_row() -> None:
    trace = Trace()
    for number in range(3):
        done = trace.append(happened("done", ("ready", 0, number + 1), number + 1.0))
        compute(trace, 0, number + 1, float(number), number + 1.0, stale=0)
        merge(trace, number, (0,), number + 1.0, number + 1.0, cause=done)
    assert metrics.staleness(run_of(trace))["stale"].tolist() == [0, 0, 0]


def test_events_that_do_not_name_their_iteration_and_merge_are_understood() -> None:
    run, plain = bsp((1.0, 2.0), rounds=3, cost=0.5), Trace()
    for number in range(3):
        now = 2.5 * number
        for worker, step in ((0, 1.0), (1, 2.0)):
            key = ("compute", worker, number + 1)
            plain.append(Row("compute", key, now, now, now + step, worker, number + 1, place=worker, samples=8))
            plain.append(happened("done", ("ready", worker, number + 1), now + step))
            cause = plain.append(happened("ready", ("ready", worker), now + step, worker=worker, stale=0)) - 1
        apply = ("apply", number, "s0")
        plain.append(Row("apply", apply, now + 2, now + 2, now + 2.5, round=number, place="s0", cause=cause))
        plain.append(happened("done", ("merged", number), now + 2.5, round=number))
        plain.append(happened("committed", ("committed", 0, 1), now + 2.5))
    pd.testing.assert_frame_equal(iterations(run_of(plain)), iterations(run))


def test_throughput_counts_merged_updates_and_their_rows() -> None:
    run = bsp((1.0, 2.0), rounds=4, cost=0.0)
    counts = metrics.throughput(run)
    assert counts.loc["all"].to_dict() == {
        "iterations": 8, "samples": 64, "iterations_per_second": 1.0, "samples_per_second": 8.0,
    }  # fmt: skip
    assert counts.loc[[0, 1], "iterations"].tolist() == [4, 4]


def test_samples_are_those_of_the_ready_row_or_of_its_steps() -> None:
    trace = Trace()
    trace.append(Row("stage", ("stage", 0, 1), 0.0, 0.0, 1.0, 0, 1, place="0.0", samples=4))
    trace.append(Row("stage", ("stage", 0, 1, 1), 0.0, 0.0, 1.0, 0, 1, place="0.1", samples=4))
    trace.append(happened("ready", ("ready", 0, 1), 1.0, worker=0, clock=1, stale=0, samples=4))
    merge(trace, 0, (0,), 1.0, 1.0)
    assert metrics.staleness(run_of(trace))["samples"].tolist() == [4]  # stages share the rows
    assert metrics.staleness(bsp((1.0,), 1, 0.0))["samples"].tolist() == [8]


def test_traffic_adds_sends_and_hops_by_place() -> None:
    trace = Trace()
    for kind, src, dst, size in (("send", "s0", 0, 100.0), ("send", 0, "s0", 30.0), ("hop", 0, 1, 7.0)):
        trace.append(Row(kind, ("moved", src, dst), 0.0, 0.0, 1.0, place=src, peer=dst, nbytes=size))
    frame = metrics.traffic(run_of(trace))
    assert frame.to_dict("index") == {
        "0": {"sent": 37.0, "received": 100.0},
        "1": {"sent": 0.0, "received": 7.0},
        "s0": {"sent": 100.0, "received": 30.0},
    }
    assert frame["sent"].sum() == frame["received"].sum()


def test_the_time_to_a_value_knows_which_way_is_better() -> None:
    values = [
        *((float(t), t, 0, "loss", loss) for t, loss in enumerate((1.0, 0.4, 0.6, 0.2))),
        *((float(t), t, 0, "accuracy", share) for t, share in enumerate((0.1, 0.5, 0.4, 0.9))),
    ]
    run = run_of(Trace(), values)
    assert metrics.time_to(run, "loss", 0.5) == 1.0
    assert metrics.time_to(run, "accuracy", 0.5) == 1.0
    assert metrics.time_to(run, "accuracy", 0.6) == 3.0
    assert math.isnan(metrics.time_to(run, "loss", 0.1))
    with pytest.raises(ValueError, match="accuracy, loss"):
        metrics.time_to(run, "acuracy", 0.5)
    assert math.isnan(metrics.time_to(run_of(Trace()), "loss", 0.1))


def test_phases_cut_time_without_gaps() -> None:
    trace = Trace()
    trace.append(Row("send", ("pull", 0, 1, "s0"), 0.0, 0.5, 1.0, 0, 1, place="s0", peer=0))
    trace.append(Row("send", ("pull", 0, 1, "s1"), 0.0, 0.0, 0.5, 0, 1, place="s1", peer=0))
    trace.append(Row("compute", ("compute", 0, 1), 1.0, 1.0, 3.0, 0, 1, place=0))
    trace.append(Row("send", ("push", 0, 1, "s0"), 3.0, 3.0, 4.0, 0, 1, place=0, peer="s0"))
    ready = trace.append(happened("ready", ("ready", 0, 1), 4.0, worker=0, clock=1, stale=0))
    merge(trace, 0, (0,), 5.0, 5.25, ready)
    trace.append(Row("compute", ("compute", 0, 2), 6.0, 6.0, 7.0, 0, 2, place=0))
    run = run_of(trace)
    assert metrics.phases(run).loc[0].to_dict() == {"compute": 3.0, "send": 2.0, "apply": 0.25, "wait": 1.75}
    line = metrics.timeline(run)
    assert line["phase"].tolist() == ["send", "compute", "send", "wait", "apply", "wait", "compute"]
    assert line["began"].tolist()[1:] == line["ended"].tolist()[:-1]
    assert metrics.waiting(run)[0] == 1.75


def test_phases_add_up_to_the_time_of_each_worker() -> None:
    spent = metrics.phases(bsp((1.0, 2.0, 1.5), rounds=5, cost=0.25))
    assert spent.sum(axis=1).tolist() == [11.25] * 3
    assert spent["compute"].tolist() == [5.0, 10.0, 7.5]
    assert spent["apply"].tolist() == [1.25] * 3


def test_the_stages_of_a_worker_are_its_own() -> None:
    trace = Trace()
    trace.append(Row("stage", ("stage", 3, 1, 0), 0.0, 0.0, 1.0, 3, 1, place="3.0"))
    trace.append(Row("send", ("act", 3, 1), 1.0, 1.0, 1.5, 3, 1, place="3.0", peer="3.1"))
    trace.append(Row("stage", ("stage", 3, 1, 1), 1.5, 1.5, 2.5, 3, 1, place="3.1"))
    assert metrics.phases(run_of(trace)).loc[3].to_dict() == {"compute": 2.0, "send": 0.5, "apply": 0.0, "wait": 0.0}


def test_an_empty_trace_has_empty_metrics() -> None:
    run = run_of(Trace())
    assert seconds(run) == 0.0
    for frame in (iterations(run), metrics.waiting(run), metrics.staleness(run), metrics.timeline(run)):
        assert len(frame) == 0
    assert metrics.throughput(run)["iterations"].to_dict() == {"all": 0}
    assert len(metrics.traffic(run)) == len(metrics.phases(run)) == 0

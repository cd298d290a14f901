"""What a run has achieved, and the conditions on it."""

from __future__ import annotations

import math

import pytest

from toolkit.core.conditions import Condition, epochs, falls, iterations, reaches, seconds, updates
from toolkit.core.errors import Refused
from toolkit.core.messages import Committed, Done, Finished, Join, Joined, Left, Measured, Ready
from toolkit.core.tally import Tally


def ready(worker: int, time: float, samples: int | None) -> Done:
    return Done(Join(("ready", worker, 1), about=(worker,)), time, {} if samples is None else {"samples": samples})


HISTORY = (
    Joined(0, 0.0),
    Joined(1, 0.5),
    ready(0, 1.0, 8),
    Ready(0, 1.0, 0),
    ready(1, 2.0, 5),
    Committed(frozenset({0, 1}), 2.5),
    Measured("loss", 0.7, 0, 2.5),
    ready(1, 3.0, 3),
    Committed(frozenset({1}), 3.5),
    Finished(1, 3.5),
)


def after(*events, rows: int = 16) -> Tally:
    tally = Tally(rows=rows)
    for event in events:
        tally = tally.observe(event)
    return tally


def test_a_tally_counts_merges_rows_and_workers_and_keeps_the_latest_metrics():
    tally = after(*HISTORY, Measured("loss", 0.6, 1, 3.5))
    assert (tally.time, tally.updates, tally.samples, tally.iterations) == (3.5, 2, 16, 3)
    assert (tally.joined, tally.active) == (2, 1)
    assert dict(tally.metrics) == {"loss": 0.6}


def test_rows_count_when_they_are_merged_not_when_they_are_read():
    assert after(*HISTORY[:5]).samples == 0
    assert after(*HISTORY[:6]).samples == 13


def test_an_update_without_a_count_is_one_sample():
    assert after(Joined(0, 0.0), ready(0, 1.0, None), Committed(frozenset({0}), 1.0)).samples == 1


def test_a_worker_that_is_finished_and_then_leaves_is_gone_once():
    tally = after(Joined(0, 0.0), Joined(1, 0.0), Finished(0, 1.0), Left(0, 2.0))
    assert tally.active == 1
    assert not iterations(1).reached(tally)
    assert iterations(1).reached(tally.observe(Left(1, 3.0)))


def test_a_merge_of_nothing_is_no_update():
    assert after(Joined(0, 0.0), Committed(frozenset(), 1.0)).updates == 0


def test_time_never_runs_backwards():
    assert after(Joined(0, 5.0), Joined(1, 3.0)).time == 5.0


@pytest.mark.parametrize(
    ("condition", "before", "then"),
    [
        (seconds(2.5), HISTORY[:5], HISTORY[:6]),
        (updates(2), HISTORY[:8], HISTORY[:9]),
        (epochs(0.75), HISTORY[:5], HISTORY[:6]),  # 12 of 16 rows
        (epochs(1), HISTORY[:8], HISTORY[:9]),
        (reaches("loss", 0.7), HISTORY[:6], HISTORY[:7]),
        (iterations(1), HISTORY, (*HISTORY, Left(0, 4.0))),
        (updates(99) | seconds(3), HISTORY[:7], HISTORY[:8]),
        (seconds(3) | updates(99), HISTORY[:7], HISTORY[:8]),
    ],
    ids=repr,
)
def test_a_condition_becomes_true_at_the_event_that_fulfils_it(condition, before, then):
    assert not condition.reached(after(*before))
    assert condition.reached(after(*then))


def test_nothing_is_over_before_anyone_has_joined():
    assert not iterations(1).reached(Tally())
    assert not epochs(1).reached(Tally(rows=5))


def test_metrics_fall_or_rise_by_their_name():
    low, high = Tally().observe(Measured("accuracy", 0.8, 0, 1.0)), Tally().observe(Measured("accuracy", 0.91, 0, 1.0))
    assert not reaches("accuracy", 0.9).reached(low) and reaches("accuracy", 0.9).reached(high)
    assert not reaches("other", 0.1).reached(high)
    assert falls("loss") and falls("test_error") and not falls("accuracy")


def test_how_far_a_condition_has_come():
    tally = after(*HISTORY[:7])
    assert seconds(5).amount(tally) == 0.5
    assert updates(4).amount(tally) == 0.25
    assert epochs(1).amount(tally) == 13 / 16
    assert iterations(4).amount(tally) == 0.25  # one iteration of each of two workers
    assert iterations(4).amount(Tally()) == reaches("loss", 0.1).amount(tally) == 0.0
    assert (updates(4) | seconds(5)).amount(tally) == 0.5


def test_only_iterations_bound_the_budget_and_the_smallest_counts():
    assert iterations(8).budget == 8
    assert (iterations(8) | seconds(3) | iterations(5)).budget == 5
    assert (seconds(3) | updates(4)).budget is None


def test_epochs_need_rows():
    with pytest.raises(Refused, match=r"^epochs\(2\) was asked .+\. An epoch .+\. Use .+\.$"):
        epochs(2).reached(Tally())


def test_a_condition_of_ones_own_says_when_it_is_reached():
    with pytest.raises(NotImplementedError):
        Condition().reached(Tally())


@pytest.mark.parametrize("make", [seconds, updates, iterations, epochs], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("value", [0, -1, math.nan, True, "3", None])
def test_amounts_are_positive(make, value):
    with pytest.raises(Refused, match=r"^limit=.+ is not a (positive|whole) number of .+\. .+\. .+\.$"):
        make(value)


@pytest.mark.parametrize(
    ("make", "value"),
    [(iterations, 2.5), (iterations, math.inf), (updates, 2.5), (epochs, math.inf)],
)
def test_iterations_and_merges_are_whole_and_rows_have_an_end(make, value):
    with pytest.raises(Refused, match=r"is not a (positive|whole) number"):
        make(value)


@pytest.mark.parametrize("condition", [seconds(math.inf), updates(math.inf)], ids=repr)
def test_infinity_is_never_reached(condition):
    tally = after(*HISTORY)
    assert not condition.reached(tally) and condition.amount(tally) == 0
    assert repr(condition).endswith("(inf)")


def test_an_epoch_has_at_least_one_row():
    assert epochs(0.001).samples(256) == 1
    assert epochs(0.001).amount(after(*HISTORY[:6])) == 13
    assert (epochs(0.5).samples(7), epochs(2).samples(7)) == (4, 14)

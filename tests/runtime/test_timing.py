"""Step times and links: functions of worker, step, time and seed, whoever asks first."""

from __future__ import annotations

import math
from statistics import mean, median, pstdev

import pytest

from toolkit.core.errors import Refused
from toolkit.runtime.links import Link, Links
from toolkit.runtime.timing import constant, empirical, exponential, lognormal, recorded, slowed

DRAWN = [lognormal(0.5, 0.4), exponential(2.0), lognormal(1.0, 0.3, speeds=[1, 2])]


@pytest.mark.parametrize("step", DRAWN, ids=repr)
def test_a_draw_depends_on_worker_step_and_seed_only(step):
    values = {(w, i, s): step(w, i, 0.0, s) for w in range(4) for i in range(10) for s in range(3)}
    assert all(step(w, i, 99.0, s) == value for (w, i, s), value in reversed(values.items()))
    assert len(set(values.values())) == len(values)
    assert all(value > 0 for value in values.values())


def test_runs_of_neighbouring_seeds_do_not_share_the_steps_of_neighbouring_workers():
    step = lognormal(1.0, 0.5)
    assert not {step(w, i, 0.0, 0) for w in range(8) for i in range(20)} & {
        step(w, i, 0.0, 1) for w in range(8) for i in range(20)
    }


def test_medians_means_and_spreads():
    """Tolerances are four standard errors of 4000 draws."""
    many = [lognormal(0.5, 0.4)(w, i, 0.0, 7) for w in range(4) for i in range(1000)]
    logs = [math.log(value) for value in many]
    assert median(many) == pytest.approx(0.5, rel=4 * 0.4 * 1.2533 / 4000**0.5)
    assert pstdev(logs) == pytest.approx(0.4, rel=4 / (2 * 4000) ** 0.5)
    assert mean(exponential(2.0)(w, i, 0.0, 7) for w in range(4) for i in range(1000)) == pytest.approx(
        2.0, rel=4 / 4000**0.5
    )


def test_speeds_multiply_and_lists_start_over():
    assert [lognormal(0.5, 0.0, [1, 3])(w, 0, 0.0, 0) for w in range(4)] == [0.5, 1.5, 0.5, 1.5]
    assert exponential(1.0, [1, 4])(1, 5, 0.0, 0) == 4 * exponential(1.0)(1, 5, 0.0, 0)
    assert [constant([1, 2])(w, 0, 0.0, 0) for w in range(3)] == [1.0, 2.0, 1.0]
    assert constant(0.25)(7, 3, 0.0, 0) == 0.25


def test_recorded_steps_repeat():
    step = recorded({0: [0.1, 0.2], 1: [0.5]})
    assert [step(0, i, 0.0, 0) for i in range(4)] == [0.1, 0.2, 0.1, 0.2]


@pytest.mark.parametrize("kind", [recorded, empirical])
def test_a_worker_without_times_of_its_own_is_refused(kind):
    words = rf"^Worker 2 has no {kind.__name__} step time; those of the workers \[0, 1\] are known\. .+\. .+\.$"
    with pytest.raises(Refused, match=words):
        kind({0: [0.1, 0.2], 1: [0.5]})(2, 0, 0.0, 0)


def test_empirical_steps_are_drawn_by_worker_step_and_seed_with_equal_chance():
    times = [0.1, 0.2, 0.2, 0.5]
    step = empirical({0: times, 1: times})
    drawn = {(w, s): [step(w, i, 0.0, s) for i in range(4000)] for w in range(2) for s in range(2)}
    assert len({tuple(values) for values in drawn.values()}) == 4
    for (w, s), values in drawn.items():
        assert values == [step(w, i, 9.0, s) for i in range(4000)]
        for time, chance in ((0.1, 0.25), (0.2, 0.5), (0.5, 0.25)):
            error = 4 * (chance * (1 - chance) / 4000) ** 0.5  # four standard errors
            assert values.count(time) / 4000 == pytest.approx(chance, abs=error)


def test_a_window_of_time_is_half_open():
    step = slowed(constant(1.0), worker=1, factor=3.0, start=2.0, stop=4.0)
    assert [step(1, 0, now, 0) for now in (1.9, 2.0, 3.9, 4.0)] == [1.0, 3.0, 3.0, 1.0]
    assert step(0, 0, 3.0, 0) == 1.0
    assert slowed(step, 0, 0.5)(0, 0, 9.0, 0) == 0.5


def test_links_by_pair():
    far = Link(0.1, 1e3)
    links = Links(Link(0.01, 1e6), {(0, "s0"): far})
    assert links.between(0, "s0") == far
    assert links.between("s0", 0) == links.between(1, "s0") == Link(0.01, 1e6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: constant(0),
        lambda: constant(-1.0),
        lambda: constant([]),
        lambda: constant([1.0, 0.0]),
        lambda: constant(math.inf),
        lambda: lognormal(0, 0.1),
        lambda: lognormal(1.0, -0.1),
        lambda: lognormal(1.0, math.nan),
        lambda: lognormal(1.0, 0.1, []),
        lambda: lognormal(1.0, 0.1, [1, -2]),
        lambda: exponential(0.0),
        lambda: exponential(1.0, [0]),
        lambda: recorded({0: []}),
        lambda: recorded({0: [0.1, -0.1]}),
        lambda: empirical({}),
        lambda: empirical({0: []}),
        lambda: empirical({0: [0.1, math.nan]}),
        lambda: slowed(constant(1.0), 0, 0.0),
        lambda: Link(-0.1, 1.0),
        lambda: Link(math.nan, 1.0),
        lambda: Link(math.inf, 1.0),
        lambda: Link(0.0, 0.0),
        lambda: Link(0.0, -1.0),
        lambda: Link(0.0, math.nan),
    ],
)
def test_times_that_cannot_be_are_refused(make):
    with pytest.raises(Refused, match=r"\. .+\. .+\.$"):
        make()

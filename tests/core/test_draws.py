"""Draws depend on their counters alone."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from toolkit.core.checks import fraction, positive, seeding, whole
from toolkit.core.draws import choose, mixed, uniform
from toolkit.core.errors import Refused

COUNTERS = list(itertools.product(range(10), range(20), range(20)))


def test_draws_are_numbers_between_zero_and_one_spread_evenly():
    values = [uniform(*counters) for counters in COUNTERS]
    assert all(0 < value < 1 for value in values)
    tenths = Counter(int(value * 10) for value in values)
    assert all(abs(tenths[k] - 400) < 5 * (400 * 0.9) ** 0.5 for k in range(10))


def test_every_counter_and_their_order_matter():
    assert len({mixed(*counters) for counters in COUNTERS}) == len(COUNTERS)
    assert mixed(0, 1, 2) != mixed(0, 2, 1) != mixed(0, 1)
    assert mixed(-1, 3) == mixed(-1, 3) and mixed(2**70, -5) >= 0


def test_the_numbers_stay_what_they_are():
    """Recorded runs are replayed by later versions."""
    assert (mixed(0), mixed(1)) == (0xE220A8397B1DCDAF, 0x910A2DEC89025CC1)  # the first of SplitMix64 from these seeds


def test_choices_cover_the_range():
    assert {choose(5, *counters) for counters in COUNTERS[:200]} == set(range(5))
    assert choose(1, 4, 4) == 0


@pytest.mark.parametrize("value", [0, -1, 2.5, 3.0, float("nan"), float("inf"), True, "3", None])
def test_whole_numbers_are_checked(value):
    with pytest.raises(Refused, match=r"is not a whole number of workers from 1 on\. .+\. .+\.$"):
        whole("workers", value, 1, "workers")


def test_infinity_is_whole_where_it_has_a_meaning():
    whole("staleness", float("inf"), 0, "updates", infinite=True)
    positive("limit", float("inf"), "seconds", infinite=True)


def test_whole_numbers_may_have_a_largest():
    whole("levels", 127, 1, "levels", most=127)
    with pytest.raises(
        Refused, match=r"levels=128 is not a whole number of levels from 1 to 127\. .+ from 1 to 127\.$"
    ):
        whole("levels", 128, 1, "levels", most=127)


@pytest.mark.parametrize("value", [-1, 2**64, 0.5, True, "3"])
def test_seeds_are_checked(value):
    with pytest.raises(Refused, match=r"^seed=.+ is no seed\. .+\. .+\.$"):
        seeding(value)
    seeding(0), seeding(2**64 - 1)


@pytest.mark.parametrize("value", [0, -0.1, float("nan"), float("inf"), True, "3"])
def test_positive_numbers_are_checked(value):
    with pytest.raises(Refused, match=r"is not a positive number of seconds\. .+\. .+\.$"):
        positive("time", value, "seconds")


@pytest.mark.parametrize("value", [0, -0.1, 1.0001, float("nan"), True, "0.5"])
def test_fractions_are_checked(value):
    with pytest.raises(Refused, match=r"lies outside \(0, 1\]\. .+\. .+\.$"):
        fraction("share", value)
    fraction("share", 1)

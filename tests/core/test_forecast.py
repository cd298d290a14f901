"""Forecasts, and the choice of a barrier against exhaustive search and published instances."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.core.forecast import best_extra, forecast, zipline

PUBLISHED = Path(__file__).parents[2] / "../shared/data/elasticbsp"


def spread(forecasts, chosen) -> float:
    ends = [forecasts[worker][k - 1] for worker, k in chosen.items()]
    return max(ends) - min(ends)


def exhaustive(forecasts) -> tuple[float, float]:
    """The smallest spread, and the earliest end that has it."""
    return min((max(ends) - min(ends), max(ends)) for ends in itertools.product(*forecasts.values()))


@pytest.mark.parametrize(
    ("forecasts", "ends", "wanted"),
    [
        ({"A": [1, 2, 3, 4], "B": [4, 8], "C": [3.5, 7]}, (4, 4, 3.5), 0.5),
        ({"A": [2, 4, 6, 8], "B": [3, 6, 9], "C": [5, 10]}, (6, 6, 5), 1),
        ({"A": [1, 2, 3]}, (1,), 0),
        ({"A": [5], "B": [1, 2]}, (5, 2), 3),
        ({"A": [1, 5], "B": [1, 5]}, (1, 1), 0),  # the earliest of several
    ],
)
def test_instances_solved_by_hand(forecasts, ends, wanted):
    chosen = zipline(forecasts)
    assert tuple(forecasts[worker][k - 1] for worker, k in chosen.items()) == ends
    assert spread(forecasts, chosen) == wanted
    assert list(chosen) == list(forecasts)


@pytest.mark.parametrize("ties", [False, True])
def test_250_random_instances_against_exhaustive_search(ties):
    draw = random.Random(15 + ties)
    for _ in range(250):
        n, r = draw.randint(1, 5), draw.randint(1, 5)
        forecasts = {
            w: sorted(draw.randint(0, 9) if ties else draw.uniform(0, 9) for _ in range(draw.randint(1, r)))
            for w in range(n)
        }
        chosen = zipline(forecasts)
        best, end = exhaustive(forecasts)
        assert spread(forecasts, chosen) == best
        assert max(forecasts[w][k - 1] for w, k in chosen.items()) == end


@pytest.mark.parametrize(("columns", "wanted"), [(150, 698), (15, 736)])
def test_the_published_instance_of_ten_workers(columns, wanted):
    path = PUBLISHED / "data_gen_future_iteration_workers_n10_R150.txt"
    if not path.exists():
        pytest.skip(f"the published instance is not at {path}")
    rows = [line.strip(",").split(",") for line in path.read_text().split()]
    rows = [[int(word[-13:]) for word in row] for row in rows]  # the number of the worker stands before its first time
    forecasts = {i: row[:columns] for i, row in enumerate(rows)}
    assert len(forecasts) == 10
    assert spread(forecasts, zipline(forecasts)) == wanted


def test_the_published_instance_of_a_thousand_workers():
    """Fifteen predictions from each worker's last gap; the first is its last observed push."""
    path = PUBLISHED / "data_gen_matrix_w1000_R20.txt"
    if not path.exists():
        pytest.skip(f"the published instance is not at {path}")
    rows = [list(map(int, line.split(":")[1].strip(",").split(","))) for line in path.read_text().split()]
    forecasts = {i: [row[-1], *forecast(row[-2:], 14)] for i, row in enumerate(rows)}
    assert len(forecasts) == 1000
    assert spread(forecasts, zipline(forecasts)) == 1403


@pytest.mark.parametrize(
    "forecasts", [{0: []}, {0: [1.0], 1: []}, {0: [2.0, 1.0]}, {0: [math.nan]}, {0: [1.0, math.inf]}]
)
def test_forecasts_that_cannot_be_are_refused(forecasts):
    with pytest.raises(ValueError, match=r"^Worker \d has .+\. Times are finite .+\. Predict .+\.$"):
        zipline(forecasts)


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=4).map(sorted), st.integers(0, 9))
def test_a_forecast_repeats_the_last_gap(times, count):
    ahead = forecast(times, count)
    gaps = [b - a for a, b in itertools.pairwise([times[-1], *ahead])]
    assert len(ahead) == count
    assert gaps == pytest.approx([times[-1] - times[-2]] * count, abs=1e-9)


pushes = st.tuples(st.integers(0, 20), st.integers(1, 9)).map(lambda pair: (float(pair[0]), float(pair[0] + pair[1])))


@given(pushes, pushes, st.integers(0, 12))
def test_the_extra_iterations_are_those_of_the_closest_pair_of_pushes(fast, slow, limit):
    """All pairs tried; the slow worker's predictions reach past the fast one's, and the smallest number wins."""
    ahead, behind = [fast[-1], *forecast(fast, limit)], forecast(slow, limit + 1)
    wanted = min(range(limit + 1), key=lambda r: (min(abs(ahead[r] - t) for t in behind), r)) if limit else 0
    assert best_extra(fast, slow, limit) == wanted


def test_without_two_pushes_of_each_nothing_is_granted():
    assert (
        best_extra((1.0, 2.0), (3.0,), 5) == best_extra((), (3.0, 6.0), 5) == best_extra((1.0, 2.0), (3.0, 6.0), 0) == 0
    )
    assert best_extra((3.0, 4.0), (3.0, 6.0), 5) == 5

"""The laws of dealing rows: every row at one worker, as a function of the arguments alone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toolkit.prepare  # noqa: F401  gives the ways their names
from toolkit.core.errors import Refused
from toolkit.core.parse import parse
from toolkit.data.partition import WAYS, Way, by_label, by_speed, contiguous, dirichlet, full_copy, shuffled

EXCLUSIVE = [
    shuffled(),
    contiguous(),
    by_label(),
    dirichlet(0.01),
    dirichlet(100),
    by_speed((1.0, 0.0, 2.5, 1, 1, 1, 3)),
]
ALL = [*EXCLUSIVE, full_copy()]
members = st.sets(st.integers(0, 6), min_size=1).filter(lambda workers: workers != {1}).map(sorted)


def labels(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(4, size=rows)


@given(rows=st.integers(1, 60), workers=members, seed=st.integers(0, 2**64 - 1), way=st.sampled_from(EXCLUSIVE))
def test_every_row_at_exactly_one_worker(rows: int, workers: list[int], seed: int, way: Way) -> None:
    dealt = way(rows, workers, seed, labels(rows, 0))
    assert list(dealt) == workers
    np.testing.assert_array_equal(np.sort(np.concatenate(list(dealt.values()))), np.arange(rows))
    assert all((np.diff(own) > 0).all() for own in dealt.values()), "positions ascend"


@given(rows=st.integers(1, 30), workers=members)
def test_full_copy_gives_every_row_to_each(rows: int, workers: list[int]) -> None:
    for own in full_copy()(rows, workers, seed=0).values():
        np.testing.assert_array_equal(own, np.arange(rows))


@given(rows=st.integers(1, 200), workers=members, way=st.sampled_from([shuffled(), contiguous(), by_label()]))
def test_equal_shares_differ_by_at_most_one_row(rows: int, workers: list[int], way: Way) -> None:
    sizes = [own.size for own in way(rows, workers, 0, labels(rows, 1)).values()]
    assert max(sizes) - min(sizes) <= 1


@given(speeds=st.lists(st.floats(0.01, 100), min_size=1, max_size=6), rows=st.integers(1, 500))
def test_by_speed_is_proportional_up_to_one_row(speeds: list[float], rows: int) -> None:
    for worker, own in by_speed(speeds)(rows, range(len(speeds)), seed=0).items():
        assert abs(own.size - rows * speeds[worker] / sum(speeds)) <= 1 + 1e-9


@pytest.mark.parametrize("way", ALL, ids=repr)
def test_ways_parse_back_pickle_and_repeat(way: Way) -> None:
    arguments = 40, [4, 0, 2], 7, labels(40, 2)
    for copy in parse(repr(way)), pickle.loads(pickle.dumps(way)):
        assert copy == way and repr(copy) == repr(way)
        for order in [4, 0, 2], [0, 2, 4]:
            again = copy(40, order, 7, labels(40, 2))
            assert {w: own.tolist() for w, own in again.items()} == {
                w: own.tolist() for w, own in way(*arguments).items()
            }


def test_ways_are_equal_if_their_calls_are() -> None:
    assert dirichlet(1) == dirichlet(np.float64(1.0)) != dirichlet(2)
    assert by_speed(np.array([1, 2])) == by_speed((1.0, 2.0)) != by_speed((2.0, 1.0))


@pytest.mark.parametrize("way", [shuffled(), dirichlet(1.0)], ids=repr)
def test_seeds_deal_differently(way: Way) -> None:
    assert way(40, [0, 1], 0, labels(40, 0))[0].tolist() != way(40, [0, 1], 1, labels(40, 0))[0].tolist()


def test_by_label_shows_each_worker_few_labels() -> None:
    shown = labels(400, 0)
    assert all(np.unique(shown[own]).size <= 2 for own in by_label()(400, range(4), 0, shown).values())


def test_dirichlet_goes_from_disjoint_to_equal() -> None:
    def share_of_largest(alpha: float) -> float:
        shown = np.arange(4000) % 4
        dealt = dirichlet(alpha)(4000, range(4), seed=0, labels=shown)
        counts = np.array([np.bincount(shown[own], minlength=4) for own in dealt.values()])
        return float((counts.max(axis=0) / counts.sum(axis=0)).mean())

    assert share_of_largest(1e-3) > 0.99 and abs(share_of_largest(1e6) - 0.25) < 0.01


def test_a_worker_may_own_nothing() -> None:
    assert shuffled()(2, range(5), seed=0).keys() == set(range(5))
    assert by_speed((0.0, 1.0))(9, [0, 1], seed=0)[0].size == 0


def test_bad_arguments_are_refused() -> None:
    for alpha in 0, -1, float("nan"), float("inf"), "a", None, True, [1.0], 10**400:
        with pytest.raises(Refused, match="alpha"):
            dirichlet(alpha)
    for speeds in (), (0, 0), (1, -1), (1, float("nan")), 3, None, "3", ["3"], [[1.0]], (1, 10**400):
        with pytest.raises(Refused, match=r"speed(s .+ Each worker has one|=.+ is not a finite number)"):
            by_speed(speeds)
    with pytest.raises(ValueError, match="a speed for every worker"):
        by_speed((1.0, 2.0))(9, [0, 5], seed=0)
    for rows, workers in (9, []), (9, [1, 1]), (0, [0]):
        with pytest.raises(ValueError, match="needs an owner"):
            shuffled()(rows, workers, seed=0)
    for wrong in None, np.zeros(3, int), np.zeros(4), np.zeros((4, 2), int):
        with pytest.raises(ValueError, match="one whole-number label per row"):
            by_label()(4, [0], 0, wrong)


def test_every_way_is_known_by_name() -> None:
    assert {way.maker for way in ALL} == set(WAYS)

"""Benchmarks are run by hand; here only what their figures mean."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.measuring import bounded, compared, in_turns


@pytest.mark.parametrize(("less", "ratio"), [(True, 2.0), (False, 0.5)])
def test_a_ratio_above_one_is_better_whatever_the_unit(less, ratio):
    result = compared("case", [(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)], "ms", target=1.0, less=less)
    assert (result.ours, result.rival, result.ratio, result.spread) == (2.0, 4.0, ratio, 0.0)
    assert result.met is (ratio >= 1.0)


def test_the_ratio_is_the_median_of_those_of_the_turns_and_not_of_the_medians():
    result = compared("case", [(1.0, 4.0), (2.0, 2.0), (4.0, 4.0)], "s")
    assert (result.ratio, result.met) == (1.0, None)


def test_a_figure_meets_a_bound_from_below():
    assert bounded("case", [1.0, 2.0, 3.0], 2.0, "s").met
    assert not bounded("case", [3.0, 3.0, 3.0], 2.0, "s").met


def test_turns_alternate_and_the_first_do_not_count():
    order: list[str] = []

    def ours() -> float:
        order.append("ours")
        return len(order)

    def rival() -> float:
        order.append("rival")
        return len(order)

    pairs = in_turns(ours, rival, turns=2, warm=1)
    assert order == ["ours", "rival", "rival", "ours", "ours", "rival"]
    assert pairs == [(4, 3), (5, 6)]


def test_every_comparison_of_the_table_exists():
    from benchmarks.__main__ import COLUMNS, MODULES

    assert COLUMNS == ["case", "ours", "rival", "unit", "ratio", "spread", "target", "met"]
    assert all(importlib.util.find_spec(f"benchmarks.{name}") for name in MODULES)

"""Schedules of all-reduce, executed on multisets of ranks."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from toolkit.core.errors import Refused
from toolkit.core.parse import parse
from toolkit.core.strategy import NAMES
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.schedules import SCHEDULES, Hop, halving_doubling, hops, ring, schedule, tree

ALL = (ring, tree, halving_doubling)
SIZES = [*range(1, 18), 24, 40]


def executed(function, n: int) -> list[list[Counter]]:
    """What each rank holds in each chunk in the end, one hop after the other."""
    chunks, plan = function(n)
    held = [[Counter({rank: 1}) for _ in range(chunks)] for rank in range(n)]
    for hop in plan:
        for c in range(hop.start, hop.stop):
            held[hop.dst][c] = held[hop.dst][c] + held[hop.src][c] if hop.adds else held[hop.src][c]
    return held


@pytest.mark.parametrize("function", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", SIZES)
def test_every_rank_ends_with_the_sum_of_every_rank_exactly_once(function, n):
    everyone = Counter(dict.fromkeys(range(n), 1))
    assert all(chunk == everyone for rank in executed(function, n) for chunk in rank)


@pytest.mark.parametrize("function", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", SIZES)
def test_hops_stay_within_ranks_and_chunks(function, n):
    chunks, plan = function(n)
    for hop in plan:
        assert hop.src != hop.dst
        assert 0 <= hop.src < n and 0 <= hop.dst < n
        assert 0 <= hop.start < hop.stop <= chunks


@pytest.mark.parametrize("n", SIZES)
def test_a_ring_sends_only_to_the_next_and_the_same_amount_everywhere(n):
    chunks, plan = ring(n)
    assert chunks == n and len(plan) == 2 * n * (n - 1)
    assert all(hop.dst == (hop.src + 1) % n and hop.stop - hop.start == 1 for hop in plan)
    assert set(Counter(hop.src for hop in plan).values()) <= {2 * (n - 1)}


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_halving_doubling_of_powers_of_two_takes_two_log_n_hops_per_rank(n):
    chunks, plan = halving_doubling(n)
    assert Counter(hop.src for hop in plan) == dict.fromkeys(range(n), 2 * int(math.log2(n)))
    sent = Counter()
    for hop in plan:
        sent[hop.src] += hop.stop - hop.start
    assert sent == dict.fromkeys(range(n), 2 * (n - 1) * chunks // n)


@pytest.mark.parametrize("n", SIZES)
def test_a_tree_has_one_hop_up_and_one_down_per_rank_but_the_root(n):
    chunks, plan = tree(n)
    assert chunks == 1
    assert Counter(hop.src for hop in plan if hop.adds) == Counter(range(1, n))
    assert Counter(hop.dst for hop in plan if not hop.adds) == Counter(range(1, n))


@pytest.mark.parametrize("n", [3, 5, 6, 7, 12])
def test_other_numbers_of_ranks_are_cut_into_binary_blocks(n):
    chunks, plan = halving_doubling(n)
    assert chunks == 1 << (n.bit_length() - 1)
    assert sum(hop.adds for hop in plan) == sum(not hop.adds for hop in plan)


def test_a_schedule_of_ones_own_is_looked_up_by_its_name():
    @schedule
    def star_of_a_test(n):
        up = [Hop(r, 0, 0, 1, True) for r in range(1, n)]
        return 1, up + [Hop(0, r, 0, 1, False) for r in range(1, n)]

    try:
        assert repr(all_reduce(star_of_a_test)) == "all_reduce(star_of_a_test)"
        assert parse("all_reduce(star_of_a_test)") == all_reduce(star_of_a_test)
        assert hops("star_of_a_test", 3)[1][0] == Hop(1, 0, 0, 1, True)
    finally:
        del SCHEDULES["star_of_a_test"], NAMES["star_of_a_test"]


@pytest.mark.parametrize("given", [lambda n: (1, []), "ring", 3, None, len])
def test_unknown_schedules_are_refused(given):
    with pytest.raises(Refused, match=r"\. .+\. .+\.$"):
        all_reduce(given)

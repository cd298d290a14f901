"""Ways of cutting the model vector: each covers it once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.core.cluster import Cluster, Home, hosts
from toolkit.core.errors import Refused
from toolkit.core.layout import Layout, Piece, cuts, overlap

NET = Layout(
    (
        Piece("conv/w", 9, "conv"),
        Piece("conv/b", 3, "conv"),
        Piece("conv/mean", 3, "conv", trainable=False),
        Piece("hidden/w", 20, "hidden"),
        Piece("head/w", 6, "head"),
        Piece("head/b", 1, "head"),
    )
)
layouts = st.lists(st.tuples(st.integers(0, 40), st.sampled_from("abcd"), st.booleans()), min_size=1, max_size=8).map(
    lambda rows: Layout(
        tuple(Piece(str(i), n, block, on) for i, (n, block, on) in enumerate(sorted(rows, key=lambda r: r[1])))
    )
)


def covers(spans, whole) -> bool:
    """Whether spans follow each other from the begin to the end of the whole."""
    edges = [whole[0], *(edge for span in spans for edge in span), whole[1]]
    return edges[::2] == edges[1::2]


def test_a_layout_knows_its_size_and_its_pieces():
    assert NET.size == 42 and NET.whole == (0, 42)
    assert [span for _, span in NET.spans()][:3] == [(0, 9), (9, 12), (12, 15)]
    assert NET.blocks() == {"conv": (0, 15), "hidden": (15, 35), "head": (35, 42)}
    assert Layout(()).whole == (0, 0)


@given(layouts, st.integers(1, 9))
def test_shards_cover_the_vector_and_differ_by_at_most_one_value(layout, count):
    if 0 < layout.size < count:
        with pytest.raises(Refused, match=rf"{count} shards .* {layout.size} values"):
            layout.shards(count)
        return
    shards = layout.shards(count)
    sizes = [stop - start for start, stop in shards]
    assert covers(shards, layout.whole) and len(shards) == count
    assert max(sizes) - min(sizes) <= 1


@given(layouts, st.floats(1, 200))
def test_buckets_cover_the_vector_backwards_and_are_large_enough(layout, nbytes):
    buckets = layout.buckets(nbytes)
    assert covers(reversed(buckets), layout.whole)
    assert all((stop - start) * layout.itemsize >= nbytes for start, stop in buckets[:-1])
    edges = {edge for _, span in layout.spans() for edge in span}
    assert all(edge in edges for span in buckets for edge in span)


@given(layouts)
def test_tensors_blocks_and_state_add_up(layout):
    assert covers(layout.tensors(), layout.whole)
    assert covers(layout.blocks().values(), layout.whole)
    frozen = sum(piece.size for piece in layout.pieces if not piece.trainable)
    assert layout.state(layout.whole) == frozen == sum(map(layout.state, cuts(layout.whole, 5)))


@given(layouts, st.integers(1, 4))
def test_stages_are_whole_blocks(layout, count):
    blocks = layout.blocks()
    if len(blocks) < count:
        with pytest.raises(Refused, match="block"):
            layout.stages(count)
        return
    stages = layout.stages(count)
    edges = {edge for span in blocks.values() for edge in span}
    assert covers(stages, layout.whole) and len(stages) == count
    assert all(edge in edges for span in stages for edge in span)


def test_stages_of_a_model_of_known_size_only_may_cut_anywhere():
    assert Layout((Piece("model", 10, ""),)).stages(3) == ((0, 3), (3, 6), (6, 10))
    assert NET.stages(3) == ((0, 15), (15, 35), (35, 42))
    assert NET.stages(2) == ((0, 15), (15, 42))


def test_one_big_tensor_is_split_so_that_shards_have_equal_bytes():
    layout = Layout(tuple(Piece(str(i), n) for i, n in enumerate((1_000_000, 10, 10, 10))))
    sizes = [stop - start for start, stop in layout.shards(4)]
    assert max(sizes) / min(sizes) <= 1.2
    assert sum(sizes) == layout.size


@given(st.tuples(st.integers(0, 9), st.integers(0, 9)), st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_an_overlap_is_what_both_hold(a, b):
    common = set(range(*a)) & set(range(*b))
    found = overlap(a, b)
    assert common == (set(range(*found)) if found else set())


def test_hosts_are_given_shared_or_of_their_own():
    homes = {
        0: Home("worker", (0, 4), 0),
        "s0": Home("server", (0, 4), beside=0),
        "s1": Home("server", (0, 4)),
        "x": Home("server", (0, 4), beside="s0"),
    }
    cluster = Cluster((0,), homes=homes)
    assert hosts(cluster) == {0: 0, "s0": 0, "s1": "s1", "x": 0}
    assert hosts(cluster, {"s0": "box", 0: "box"}) == {0: "box", "s0": "box", "s1": "s1", "x": "box"}

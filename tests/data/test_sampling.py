"""The law of tickets: over an epoch each row exactly once, for any chunks, batches and tails."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.core.messages import Ticket
from toolkit.data import sampling
from toolkit.data.cache import Cache
from toolkit.data.partition import dirichlet, shuffled
from toolkit.data.sampling import order, positions

chunked = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any).map(tuple)
seeds = st.integers(0, 2**64 - 1)


class Stored:
    """A source of which only the chunks matter."""

    def __init__(self, chunks: tuple[int, ...], window: int) -> None:
        self.rows, self.chunks, self.window = sum(chunks), chunks, window

    def take(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return positions, positions


def tickets(rows: int, batch: int, epoch: int, shard: int | None = None) -> list[Ticket]:
    return [Ticket(epoch, first, min(batch, rows - first), shard) for first in range(0, rows, batch)]


@given(chunks=chunked, window=st.integers(1, 5), seed=seeds, epoch=st.integers(0, 99), batch=st.integers(1, 20))
def test_each_row_exactly_once_per_epoch(
    chunks: tuple[int, ...], window: int, seed: int, epoch: int, batch: int
) -> None:
    source = Stored(chunks, window)
    read = np.concatenate([positions(ticket, source, seed) for ticket in tickets(source.rows, batch, epoch)])
    np.testing.assert_array_equal(np.sort(read), np.arange(source.rows))


@given(chunks=chunked, window=st.integers(1, 5), seed=seeds, batch=st.integers(1, 20), workers=st.integers(1, 5))
def test_each_row_once_per_epoch_of_its_worker(
    chunks: tuple[int, ...], window: int, seed: int, batch: int, workers: int
) -> None:
    source = Stored(chunks, window)
    shards = shuffled()(source.rows, range(workers), seed)
    read = [
        positions(ticket, source, seed, shards)
        for worker, own in shards.items()
        for ticket in tickets(own.size, batch, epoch=worker, shard=worker)
    ]
    np.testing.assert_array_equal(np.sort(np.concatenate(read)), np.arange(source.rows))


@given(chunks=chunked, window=st.integers(1, 5), seed=seeds)
def test_windows_come_one_after_the_other(chunks: tuple[int, ...], window: int, seed: int) -> None:
    chunk_of = np.repeat(np.arange(len(chunks)), chunks)[order(seed, 0, chunks, window)]
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, c in enumerate(chunk_of.tolist()):
        first.setdefault(c, place)
        last[c] = place
    for place in range(len(chunk_of)):
        assert sum(first[c] <= place <= last[c] for c in first) <= window, "a reader needs one window at a time"


def test_arrays_in_memory_are_permuted_uniformly() -> None:
    """Each row comes to each place equally often: chi-square of 600 epochs of 6 rows, 25 degrees of freedom."""
    counts = np.zeros((6, 6))
    for epoch in range(600):
        counts[np.arange(6), order(1, epoch, (6,))] += 1
    assert ((counts - 100) ** 2 / 100).sum() < 53  # the 99.9 % quantile


def test_order_depends_on_seed_epoch_and_worker_and_on_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [(0, 0, None), (1, 0, None), (0, 1, None), (0, 0, 0), (0, 0, 1), (1, 1, 0), (2**63, 0, None)]
    before = [order(seed, epoch, (50, 50), shard=shard).tolist() for seed, epoch, shard in keys]
    assert len(set(map(tuple, before))) == len(keys)
    monkeypatch.setattr(sampling, "_orders", Cache(0))
    again = [order(seed, epoch, (50, 50), shard=shard).tolist() for seed, epoch, shard in reversed(keys)]
    assert again[::-1] == before


def test_an_order_cannot_be_spoiled_by_its_reader() -> None:
    with pytest.raises(ValueError, match="read-only"):
        order(0, 0, (4,))[0] = 9


def test_a_ticket_without_rows_reads_none() -> None:
    source = Stored((3, 2), window=1)
    assert positions(Ticket(0, 5, 0), source, seed=0).size == 0
    assert positions(Ticket(0, 0, 0, shard=1), source, 0, {1: np.empty(0, np.int64)}).size == 0


def test_shards_stay_with_their_worker() -> None:
    source = Stored((7, 7, 7), window=2)
    shards = dirichlet(0.2)(21, [3, 5], seed=0, labels=np.arange(21) % 3)
    for worker, own in shards.items():
        assert set(positions(Ticket(4, 0, own.size, worker), source, 0, shards)) == set(own)


@pytest.mark.parametrize("ticket", [Ticket(0, 4, 2), Ticket(0, -1, 2), Ticket(0, 0, 1, shard=9), Ticket(0, 3, -1)])
def test_a_ticket_outside_its_epoch_is_refused(ticket: Ticket) -> None:
    with pytest.raises(ValueError, match="Ticket"):
        positions(ticket, Stored((5,), window=1), seed=0, shards={0: np.arange(5)})


def test_bad_seeds_and_windows_are_refused() -> None:
    for seed in -1, 2**64:
        with pytest.raises(ValueError, match="seed"):
            order(seed, 0, (3,))
    with pytest.raises(ValueError, match="window"):
        order(0, 0, (3,), window=0)

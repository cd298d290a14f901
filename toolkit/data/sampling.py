"""Which rows a ticket reads: the order of the rows in every epoch, as a function of counters.

Nothing is drawn from a stream: the order of an epoch follows from (seed, epoch, worker) and the chunks alone, so every
process finds the same order for itself and no order ever travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.core.errors import Refused
from toolkit.core.messages import Ticket, Worker
from toolkit.data.cache import Cache
from toolkit.data.sources import Source

WINDOW = 16  # chunks whose rows are mixed with each other
ORDER, DEAL = 1, 2  # what randomness is for: a key of its own each

_orders: Cache[NDArray[np.int64]] = Cache(limit=64 * 2**20)


def generator(seed: int, purpose: int, epoch: int = 0, lane: int = 0) -> np.random.Generator:
    """The random numbers of (seed, purpose, epoch, lane): the counter words of a Philox cipher, no shared stream.

    Examples
    --------
    >>> bool(generator(0, ORDER, epoch=3).random() == generator(0, ORDER, epoch=3).random())
    True
    """
    if not 0 <= seed < 2**64:
        raise Refused(f"The seed is {seed}. A seed is a key of 64 bits. Use a whole number from 0 to 2**64 - 1.")
    key, counter = np.array([seed, purpose], np.uint64), np.array([0, 0, epoch, lane], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def order(
    seed: int, epoch: int, chunks: tuple[int, ...], window: int = WINDOW, shard: Worker | None = None
) -> NDArray[np.int64]:
    r"""The order in which an epoch visits the rows: chunks in random order, rows mixed within windows of them.

    With chunks :math:`c_1, c_2, \ldots` drawn without replacement, rows are permuted uniformly within each
    :math:`c_{kw+1} \cup \ldots \cup c_{(k+1)w}`. With at most `window` chunks, as for arrays in memory, that is a
    uniform permutation of all rows; with window 1, chunks are visited one after the other.

    Parameters
    ----------
    seed : int, 0 to 2**64 - 1
    epoch : int, >= 0
    chunks : tuple of int [rows]
        Sizes of the consecutive chunks in which the rows are stored.
    window : int [chunks], >= 1
        A reader needs the chunks of one window at a time.
    shard : int, optional
        The worker whose own rows these are: each has an order of its own.

    Returns
    -------
    array [rows]
        Each position once. Read-only, because it is kept for the next ticket.

    Examples
    --------
    >>> order(0, 0, (2, 2, 2), window=1).reshape(3, 2).max(axis=1) % 2
    array([1, 1, 1])
    >>> sorted(order(seed=0, epoch=1, chunks=(5,)).tolist())
    [0, 1, 2, 3, 4]
    """
    if window < 1:
        raise Refused(f"The window is {window} chunks. Rows are mixed within at least one. Use 1 or more.")
    key, nbytes = (seed, epoch, chunks, window, shard), 8 * sum(chunks)
    return _orders.get(key, nbytes, lambda: _draw(seed, epoch, chunks, window, shard))


def _draw(seed: int, epoch: int, chunks: tuple[int, ...], window: int, shard: Worker | None) -> NDArray[np.int64]:
    rng = generator(seed, ORDER, epoch, 0 if shard is None else shard + 1)
    stops = np.cumsum(chunks, dtype=np.int64)
    drawn = rng.permutation(len(chunks))
    parts = [np.arange(stops[c] - chunks[c], stops[c]) for c in drawn]
    mixed = [rng.permutation(np.concatenate(parts[k : k + window])) for k in range(0, len(parts), window)]
    rows = np.concatenate([np.empty(0, np.int64), *mixed])
    rows.flags.writeable = False
    return rows


def positions(
    ticket: Ticket, source: Source, seed: int, shards: Mapping[Worker, NDArray[np.int64]] | None = None
) -> NDArray[np.int64]:
    r"""The rows that a ticket reads, in the order in which it reads them.

    Over the tickets of an epoch that cover :math:`0, \ldots, n - 1` without overlap, each row comes exactly once.

    Parameters
    ----------
    ticket : Ticket
        `count` rows from position `first` of the order of its epoch; of the worker's own rows if it names a `shard`.
    source : Source
        Its `chunks` shape the order; its `window` too, if it says how many chunks it can keep (:data:`WINDOW` if not).
    seed : int, 0 to 2**64 - 1
    shards : mapping of worker to array, optional
        The ascending positions that each worker owns, from a way of :mod:`toolkit.data.partition`.

    Returns
    -------
    array [count]

    Raises
    ------
    ValueError
        A ticket beyond the end of its epoch, or for a worker that owns no shard.

    Examples
    --------
    >>> from toolkit.data.sources import Arrays
    >>> data = Arrays(np.zeros((5, 1)), np.arange(5))
    >>> first, last = Ticket(epoch=0, first=0, count=3), Ticket(epoch=0, first=3, count=2)
    >>> sorted([*positions(first, data, seed=0).tolist(), *positions(last, data, seed=0).tolist()])
    [0, 1, 2, 3, 4]
    """
    chunks, window = tuple(source.chunks), int(getattr(source, "window", WINDOW))
    if ticket.shard is None:
        return _cut(ticket, order(seed, ticket.epoch, chunks, window))
    if shards is None or ticket.shard not in shards:
        raise Refused(
            f"{ticket} asks for rows of worker {ticket.shard}, which owns none. Rows are dealt to workers before they "
            f"are read. Deal shards to worker {ticket.shard} too (now: {sorted(shards or ())}), "
            "or issue tickets without a shard."
        )
    own = shards[ticket.shard]
    held = np.diff(np.searchsorted(own, np.cumsum((0, *chunks))))
    local = order(seed, ticket.epoch, tuple(held[held > 0].tolist()), window, ticket.shard)
    return own[_cut(ticket, local)]


def _cut(ticket: Ticket, rows: NDArray[Any]) -> NDArray[Any]:
    stop = ticket.first + ticket.count
    if not 0 <= ticket.first <= stop <= len(rows):
        raise Refused(
            f"{ticket} reads rows {ticket.first} to {stop} of an epoch of {len(rows)}. A ticket lies within its epoch. "
            "Issue a shorter last ticket and go on in the next epoch."
        )
    return rows[ticket.first : stop]

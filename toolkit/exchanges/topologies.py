"""Topologies of gossip: who averages with whom, as functions that return neighbours."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

from toolkit.core.draws import choose
from toolkit.core.messages import Worker
from toolkit.core.strategy import named

#: (worker, clock, live workers in order, seed) -> neighbours
Neighbours: TypeAlias = Callable[[Worker, int, Sequence[Worker], int], tuple[Worker, ...]]
Edges: TypeAlias = Sequence[Sequence[Worker]]


@named
def ring_neighbours(worker: Worker, clock: int, live: Sequence[Worker], seed: int) -> tuple[Worker, ...]:
    """The two next to a worker on a ring of the live workers.

    Parameters
    ----------
    worker : int
    clock : int
        Without effect: the neighbours stay the same.
    live : sequence of int
        In the order of the ring, `worker` among them; of two each has one neighbour, of one none.
    seed : int
        Without effect.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.ring_neighbours(0, 1, (0, 1, 2, 3), seed=0)
    (1, 3)
    """
    i, n = bisect_left(live, worker), len(live)
    return others(worker, (live[(i + 1) % n], live[(i - 1) % n]))


@named
def torus_neighbours(worker: Worker, clock: int, live: Sequence[Worker], seed: int) -> tuple[Worker, ...]:
    """The four next to a worker on the most nearly square torus that the live workers fill.

    Parameters
    ----------
    worker : int
    clock : int
        Without effect: the neighbours stay the same.
    live : sequence of int
        Row by row, `worker` among them. A prime number makes a ring; sides of 2 have fewer neighbours.
    seed : int
        Without effect.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.torus_neighbours(0, 1, tuple(range(6)), seed=0)
    (1, 2, 3)
    """
    n, i = len(live), bisect_left(live, worker)
    height = rows(n)
    width = n // height
    row, column = divmod(i, width)
    beside = [row * width + (column + step) % width for step in (1, -1)]
    across = [(row + step) % height * width + column for step in (1, -1)]
    return others(worker, [live[j] for j in beside + across])


@named
def complete_neighbours(worker: Worker, clock: int, live: Sequence[Worker], seed: int) -> tuple[Worker, ...]:
    """All other live workers.

    Parameters
    ----------
    worker : int
    clock : int
        Without effect: the neighbours stay the same.
    live : sequence of int
        `worker` is among them.
    seed : int
        Without effect.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.complete_neighbours(1, 1, (0, 1, 2), seed=0)
    (0, 2)
    """
    return others(worker, live)


@named
def random_peer(worker: Worker, clock: int, live: Sequence[Worker], seed: int) -> tuple[Worker, ...]:
    """One other live worker, drawn anew for each iteration from (seed, worker, clock).

    Parameters
    ----------
    worker : int
    clock : int, >= 0
        Iteration of a worker that merges alone, number of the merge of a group.
    live : sequence of int
        `worker` is among them; nobody is drawn if it is alone.
    seed : int, >= 0

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.random_peer(0, 1, (0, 1), seed=0)
    (1,)
    """
    rest = len(live) - 1
    if rest < 1:
        return ()
    drawn = choose(rest, seed, worker, clock)
    return (live[drawn + (drawn >= bisect_left(live, worker))],)


@lru_cache
def rows(count: int) -> int:
    """How many rows the most nearly square torus of `count` workers has."""
    return next(rows for rows in range(math.isqrt(count), 0, -1) if count % rows == 0)


def others(worker: Worker, group: Iterable[Worker]) -> tuple[Worker, ...]:
    """A group without a worker, in order, each once."""
    return tuple(sorted(set(group) - {worker}))

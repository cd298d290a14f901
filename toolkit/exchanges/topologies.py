"""Topologies of gossip: who averages with whom, as functions that return neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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
    i, n = live.index(worker), len(live)
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
    n, i = len(live), live.index(worker)
    width = next(w for w in range(math.isqrt(n), 0, -1) if n % w == 0)
    width, height = n // width, width
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
    rest = [other for other in live if other != worker]
    return (rest[choose(len(rest), seed, worker, clock)],) if rest else ()


def others(worker: Worker, group: Iterable[Worker]) -> tuple[Worker, ...]:
    """A group without a worker, in order, each once."""
    return tuple(sorted(set(group) - {worker}))

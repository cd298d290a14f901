"""Schedules of all-reduce: who sends which chunks to whom, as lists of hops.

A schedule maps a number of ranks to a number of chunks and a list of hops. Each chunk of a rank takes the hops that
write to it in the order of the list, so that a sum has the same bits whatever arrives first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from toolkit.core import checks
from toolkit.core.errors import Refused
from toolkit.core.strategy import named


class Hop(NamedTuple):
    r"""One message of an all-reduce: chunks ``[start, stop)`` go from one rank to another.

    For each chunk k of them :math:`x_{dst,k} \leftarrow x_{dst,k} + x_{src,k}` if it adds, else
    :math:`x_{dst,k} \leftarrow x_{src,k}`.

    Parameters
    ----------
    src, dst : int, in 0..n-1
        Ranks that send and receive.
    start, stop : int [chunks], 0 <= start < stop
    adds : bool
        Whether the receiver adds the chunks to its own, or replaces its own.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.Hop(src=0, dst=1, start=2, stop=3, adds=True)
    Hop(src=0, dst=1, start=2, stop=3, adds=True)
    """

    src: int
    dst: int
    start: int
    stop: int
    adds: bool


Schedule: TypeAlias = Callable[[int], tuple[int, list[Hop]]]

#: At most so many ranks: a ring among n has 2 n (n - 1) hops.
RANKS: Final = 2000

SCHEDULES: dict[str, Schedule] = {}


def schedule(function: Schedule) -> Schedule:
    """Make a function from ranks to ``(chunks, hops)`` usable in :func:`all_reduce`.

    Parameters
    ----------
    function : int [ranks] -> (int [chunks], list of Hop)
        After its hops every rank must hold the sum over all ranks in every chunk.

    Returns
    -------
    callable
        `function` itself, its name known to :func:`parse`.

    Examples
    --------
    >>> import toolkit as tk
    >>> @tk.schedule
    ... def star(n):
    ...     "Everybody sends to rank 0, which sends back."
    ...     up = [tk.Hop(r, 0, 0, 1, True) for r in range(1, n)]
    ...     return 1, up + [tk.Hop(0, r, 0, 1, False) for r in range(1, n)]
    >>> tk.all_reduce(star)
    all_reduce(star)
    """
    checks.function("schedule", function, "n")
    SCHEDULES[function.__name__] = named(function)
    return function


@lru_cache(maxsize=256)
def hops(name: str, ranks: int) -> tuple[int, tuple[Hop, ...]]:
    """Chunks and hops of a schedule by name."""
    made = SCHEDULES[name](ranks)
    try:
        chunks, plan = made[0], tuple(Hop(*hop) for hop in made[1])
        fits = all(
            0 <= min(h.src, h.dst) <= max(h.src, h.dst) < ranks and 0 <= h.start < h.stop <= chunks for h in plan
        )
    except (TypeError, ValueError, IndexError):
        fits = False
    if not fits:
        raise Refused(
            f"The schedule {name} made of {ranks} ranks {str(made)[:200]}. That is not chunks and hops between these "
            f"ranks, counted from 0. Return the number of chunks and a list of hops within both."
        )
    return chunks, plan


def ranked(n: int) -> int:
    """Refuse what is not a number of ranks."""
    return checks.whole("n", n, 1, "ranks", most=RANKS, why="The hops of a ring grow with the square of the ranks")


@schedule
def ring(n: int) -> tuple[int, list[Hop]]:
    r"""Reduce-scatter, then all-gather, around a ring: :math:`2(n-1)(\alpha + M / nB)`.

    This is its time [s] with latency :math:`\alpha` [s], bandwidth B [byte/s] and M bytes. Each rank sends
    :math:`2 M (n-1)/n` bytes, the least possible.

    Parameters
    ----------
    n : int [ranks], in 1..2000
        1 takes no hop.

    References
    ----------
    Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

    Examples
    --------
    >>> import toolkit as tk
    >>> chunks, hops = tk.ring(4)
    >>> chunks, len(hops)
    (4, 24)
    """
    n = ranked(n)

    def hop(rank: int, chunk: int, adds: bool) -> Hop:
        return Hop(rank, (rank + 1) % n, chunk % n, chunk % n + 1, adds)

    scatter = [hop(r, r - s, True) for s in range(n - 1) for r in range(n)]
    gather = [hop(r, r + 1 - s, False) for s in range(n - 1) for r in range(n)]
    return n, scatter + gather


@schedule
def tree(n: int) -> tuple[int, list[Hop]]:
    r"""Reduce up a binary tree, then broadcast down it.

    It takes about :math:`4 \log_2 n\,(\alpha + M/B)` seconds with latency :math:`\alpha` [s], bandwidth B [byte/s]
    and M bytes: for small messages among many ranks less than a :func:`ring`, for large ones more.

    Parameters
    ----------
    n : int [ranks], in 1..2000
        1 takes no hop.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.tree(3)[1][0]
    Hop(src=2, dst=0, start=0, stop=1, adds=True)
    """
    n = ranked(n)
    up = [Hop(r, (r - 1) // 2, 0, 1, True) for r in range(n - 1, 0, -1)]
    down = [Hop((r - 1) // 2, r, 0, 1, False) for r in range(1, n)]
    return 1, up + down


@schedule
def halving_doubling(n: int) -> tuple[int, list[Hop]]:
    r"""Recursive halving, then recursive doubling, among blocks of ranks.

    A power of two of ranks takes :math:`2 \alpha \log_2 n + 2 M (n-1)/nB` seconds with latency :math:`\alpha` [s],
    bandwidth B [byte/s] and M bytes. Other numbers of ranks are split into binary blocks, the powers of two that sum to
    n: each block reduces by itself, sums go from the smallest block up to the largest and back down.

    Parameters
    ----------
    n : int [ranks], in 1..2000
        1 takes no hop.

    References
    ----------
    Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", 2005.

    Examples
    --------
    >>> import toolkit as tk
    >>> chunks, hops = tk.halving_doubling(6)
    >>> chunks, len(hops)
    (4, 28)
    """
    n = ranked(n)
    sizes = [1 << bit for bit in reversed(range(n.bit_length())) if n >> bit & 1]
    chunks = sizes[0]
    bases = [sum(sizes[:i]) for i in range(len(sizes))]
    blocks = list(zip(bases, sizes, strict=True))
    halving = [hop for base, size in blocks for hop in _halve(base, size, chunks)]
    up = [
        hop
        for small, large in reversed(list(zip(blocks[1:], blocks, strict=False)))
        for hop in _between(small, large, chunks)
    ]
    down = [Hop(h.dst, h.src, h.start, h.stop, False) for h in reversed(up)]
    doubling = [
        Hop(h.dst, h.src, h.start, h.stop, False) for base, size in blocks for h in reversed(_halve(base, size, chunks))
    ]
    return chunks, [*halving, *up, *down, *doubling]


def _halve(base: int, size: int, chunks: int) -> list[Hop]:
    """Recursive halving inside the block of `size` ranks from `base`: rank i ends with the i-th part of the chunks."""
    hops, unit = [], chunks // size
    width = size // 2
    while width:
        for i in range(size):
            start = (i ^ width) // width * width * unit  # the half that the partner keeps
            hops.append(Hop(base + i, base + (i ^ width), start, start + width * unit, True))
        width //= 2
    return hops


def _between(small: tuple[int, int], large: tuple[int, int], chunks: int) -> list[Hop]:
    """Each rank of a smaller block adds its chunks to those of the ranks that hold them in the larger block."""
    (base, size), (above, more) = small, large
    ratio, unit = more // size, chunks // more
    return [
        Hop(base + i, above + i * ratio + j, (i * ratio + j) * unit, (i * ratio + j + 1) * unit, True)
        for i in range(size)
        for j in range(ratio)
    ]

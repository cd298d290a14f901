"""All-reduce in buckets, of which one travels while the next is added, against one piece."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import toolkit as tk
from benchmarks.agents import Agents, flat
from benchmarks.all_reduce import MIB, Rounds, name, repeats
from benchmarks.measuring import Result, compared, in_turns, middle

SIZES, BUCKETS = (16 * MIB, 64 * MIB), (1 * MIB, 4 * MIB)


def results() -> Iterator[Result]:
    """Milliseconds by shared memory and by Dask's connections; without a target: it is kept where it gains."""
    with tk.Dask(workers=2) as on:
        agents = Agents(on)
        yield from over(agents, "shared memory")
        agents.by_dask()
        yield from over(agents, "Dask's connections")


def over(agents: Agents, way: str) -> Iterator[Result]:
    """The rows of one way to travel."""
    for nbytes in SIZES:
        with agents.holding(flat(nbytes), tk.chain(tk.bsp(), tk.all_reduce(tk.ring))):
            rounds = Rounds(agents)
            for bucket in BUCKETS:
                pairs = in_turns(partial(took, rounds, nbytes, bucket), partial(took, rounds, nbytes, None), turns=9)
                yield compared(f"buckets of {name(bucket)}, {name(nbytes)}, {way}, against one piece", pairs, "ms")


def took(rounds: Rounds, nbytes: int, bucket: float | None) -> float:
    """Milliseconds of an all-reduce."""
    return 1e3 * middle(rounds.seconds(repeats(nbytes), bucket=bucket))


if __name__ == "__main__":
    for result in results():
        print(result, flush=True)

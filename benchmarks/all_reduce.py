"""All-reduce of two agents on two cores, against torch gloo and JAX gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import toolkit as tk
from benchmarks.agents import Agents, flat
from benchmarks.gloo import Gloo
from benchmarks.measuring import Result, compared, in_turns, middle
from toolkit.core.messages import Reduce

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)

#: What the ratio is to reach, by bytes: of shared memory, and of Dask's connections.
SHARED = {64 * KIB: 1.0, MIB: 1.0, 4 * MIB: 1.5, 16 * MIB: 1.5, 64 * MIB: 1.5}
DASK = {64 * KIB: 1 / 3}


def rounds(nbytes: int) -> int:
    """All-reduces in one turn."""
    return 100 if nbytes <= MIB else 30 if nbytes <= 16 * MIB else 8


def name(nbytes: int) -> str:
    """Bytes in words."""
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


def results() -> Iterator[Result]:
    """Bus bandwidths [GB/s] (for two, bytes per second) in turns."""
    torch, jax = Gloo("torch"), Gloo("jax")
    try:
        with tk.Dask(workers=2) as on:
            agents = Agents(on)
            for nbytes in SIZES:
                yield from over(agents, nbytes, "shared memory", torch, jax)
            agents.by_dask()
            for nbytes in SIZES:
                yield from over(agents, nbytes, "Dask's connections", torch, jax)
    finally:
        torch.close()
        jax.close()


class Rounds:
    """All-reduces of two agents, one after the other.

    Parameters
    ----------
    agents : Agents
        That hold replicas.
    """

    def __init__(self, agents: Agents) -> None:
        self._agents, self._number = agents, 0

    def seconds(self, rounds: int, asked: bool = False) -> np.ndarray:
        """From the end of one to the end of the next, at the later agent; if `asked`, each waits for a message."""
        tasks: list[Reduce] = []
        group, span = self._agents.cluster.workers, self._agents.cluster.layout.whole
        for _ in range(rounds + 1):
            self._number += 1
            after = (tasks[-1].key,) if tasks else ()
            tasks.append(Reduce(("reduce", self._number), group, "ring", span, (1.0, 1.0), after=after, round=1))
        rows: list[tuple[Any, ...]] = []
        for batch in [[task] for task in tasks] if asked else [tasks]:
            rows += self._agents.perform(batch, 2 * len(batch))
        return np.diff([max(row[3][2] for row in rows if row[1] == task.key) for task in tasks])


def over(agents: Agents, nbytes: int, way: str, torch: Gloo, jax: Gloo) -> Iterator[Result]:
    """The rows of one size."""
    repeats = rounds(nbytes)

    def ours(asked: bool) -> Callable[[], float]:
        return lambda: nbytes / middle(reduces.seconds(repeats, asked)) / 1e9

    def rival(gloo: Gloo) -> Callable[[], float]:
        return lambda: nbytes / middle(gloo.all_reduce(nbytes, repeats)) / 1e9

    case, targets = f"all-reduce, {name(nbytes)}, {way}", SHARED if way == "shared memory" else DASK
    with agents.holding(flat(nbytes), tk.chain(tk.bsp(), tk.all_reduce(tk.ring))):
        reduces = Rounds(agents)
        pairs = in_turns(ours(False), rival(torch))
        yield compared(f"{case}, against torch gloo", pairs, "GB/s", targets.get(nbytes), less=False)
        if way == "shared memory":
            pairs = in_turns(ours(False), rival(jax))
            yield compared(f"{case}, against JAX gloo", pairs, "GB/s", targets.get(nbytes), less=False)
            pairs = in_turns(ours(True), rival(torch))
            yield compared(f"{case}, asked for by a coordinator, against torch gloo", pairs, "GB/s", less=False)


if __name__ == "__main__":
    for result in results():
        print(result, flush=True)

"""All-reduce of two agents on two cores, against torch gloo and JAX gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import toolkit as tk
from benchmarks.agents import Agents, flat
from benchmarks.gloo import Gloo
from benchmarks.measuring import Result, compared, in_turns, middle
from toolkit.core.messages import Reduce, Task
from toolkit.core.strategy import keys
from toolkit.exchanges.all_reduce import parts

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)

#: What the ratio is to reach, by bytes: of shared memory, and of Dask's connections.
SHARED = {64 * KIB: 1.0, MIB: 1.0, 4 * MIB: 1.5, 16 * MIB: 1.5, 64 * MIB: 1.5}
DASK = {64 * KIB: 1 / 3}


def repeats(nbytes: int) -> int:
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

    def seconds(self, count: int, asked: bool = False, bucket: float | None = None) -> np.ndarray:
        """From the end of one to the end of the next, at the later agent; if `asked`, each waits for a message."""
        rounds: list[list[Task]] = []
        group, layout = self._agents.cluster.workers, self._agents.cluster.layout
        for _ in range(count + 1):
            self._number += 1
            rounds.append(
                [
                    Reduce(
                        ("reduce", self._number, *k),
                        group,
                        "ring",
                        part,
                        (1.0, 1.0),
                        after=keys(rounds[-1]) if rounds else (),
                        round=self._number,
                    )
                    for k, part in parts(layout, bucket)
                ]
            )
        tasks = [task for sums in rounds for task in sums]
        rows: list[tuple[Any, ...]] = []
        for batch in rounds if asked else [tasks]:
            rows += self._agents.perform(batch, 2 * len(batch))
        ends: dict[int, float] = {}
        for _, key, _, times, *_ in rows:
            ends[key[1]] = max(ends.get(key[1], 0.0), times[2])
        return np.diff([ends[task[0].key[1]] for task in rounds])


def over(agents: Agents, nbytes: int, way: str, torch: Gloo, jax: Gloo) -> Iterator[Result]:
    """The rows of one size."""
    count = repeats(nbytes)

    def ours(asked: bool) -> Callable[[], float]:
        return lambda: nbytes / middle(rounds.seconds(count, asked)) / 1e9

    def rival(gloo: Gloo) -> Callable[[], float]:
        return lambda: nbytes / middle(gloo.all_reduce(nbytes, count)) / 1e9

    case, targets = f"all-reduce, {name(nbytes)}, {way}", SHARED if way == "shared memory" else DASK
    with agents.holding(flat(nbytes), tk.chain(tk.bsp(), tk.all_reduce(tk.ring))):
        rounds = Rounds(agents)
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

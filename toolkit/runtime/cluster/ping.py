"""The link between two processes of a cluster, measured by sending messages to and fro."""

from __future__ import annotations

import statistics
import time

import numpy as np
from distributed import Client
from distributed import Worker as DaskWorker

from toolkit.core.errors import Refused
from toolkit.runtime.cluster.agent import NAME, Agent, card
from toolkit.runtime.cluster.channel import Channel
from toolkit.runtime.cluster.processes import asked, equipped
from toolkit.runtime.links import Link

#: Seconds in which an answer must come.
ANSWER = 10.0


async def measure(peer: str, nbytes: int, repeats: int, dask_worker: DaskWorker) -> tuple[float, float]:
    """Median seconds until an empty message, and one of `nbytes`, has been answered; runs beside a Dask worker."""
    agent = dask_worker.plugins[NAME]
    assert isinstance(agent, Agent)
    channel = Channel(lambda channel, message: None).open(peer, agent.connection)
    spent: dict[int, list[float]] = {0: [], nbytes: []}
    try:
        for _ in range(repeats + 1):
            for size, times in spent.items():
                began = time.perf_counter()
                await channel.ask("ping", ANSWER, arrays=[np.zeros(size, np.uint8)] if size else [])
                times.append(time.perf_counter() - began)
    finally:
        await channel.close()
    empty, full = (statistics.median(times[1:]) for times in spent.values())  # the first finds the connection
    return empty, full


def ping(client: Client, nbytes: int, repeats: int) -> Link:
    """The link from one process of a cluster to another: half a round trip, and the bytes per second beyond it."""
    equipped(client)
    found = {process: known for process, known in asked(client, card)[0].items() if known is not None}
    if len(found) < 2:
        raise Refused(
            f"A ping was asked of a cluster of {len(found)} process. A link has two ends. Start one more Dask worker."
        )
    here, there = sorted(found)[:2]
    empty, full = client.run(measure, found[there]["address"], nbytes, repeats, workers=[here])[here]
    return Link(latency=empty / 2, bandwidth=nbytes / max(full - empty, 1e-9))

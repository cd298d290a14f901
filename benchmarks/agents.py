"""Agents that are driven by hand: the data plane of a real run without its strategy."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import toolkit as tk
from toolkit.core.cluster import hosts
from toolkit.core.messages import COORDINATOR, Compute, PlaceName, Task, Ticket
from toolkit.core.plain import plain
from toolkit.prepare import prepare
from toolkit.runtime.cluster.agent import NAME, card
from toolkit.runtime.cluster.channel import Message, blob
from toolkit.runtime.cluster.crew import Crew
from toolkit.runtime.cluster.job import Job, pack
from toolkit.runtime.cluster.pending import concerned
from toolkit.runtime.cluster.processes import asked, cards, equipped

#: Seconds for whatever is waited for.
PATIENCE = 120.0


class Flat(nnx.Module):
    """A model of which only the number of values matters."""

    def __init__(self, rngs: nnx.Rngs, *, size: int) -> None:
        self.values = nnx.Param(jnp.zeros(size, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.values[0]


def flat(nbytes: int) -> tk.Problem:
    """A problem with a model of so many bytes and hardly any arithmetic."""

    def model(rngs: nnx.Rngs) -> nnx.Module:
        return Flat(rngs, size=nbytes // 4)

    def loss(outputs: jax.Array, targets: jax.Array) -> jax.Array:
        return (outputs - targets) ** 2

    rows = np.ones(64, np.float32)
    return tk.problem(model, loss, train=(rows, rows), test=(rows[:8], rows[:8]), batch=4, name="flat")


class Agents:
    """Agents that hold the places of a run and do what they are told.

    Parameters
    ----------
    on : tk.Dask
        Within its block.
    """

    def __init__(self, on: tk.Dask) -> None:
        self.on, self._number = on, 0
        self._rows: list[tuple[Any, ...]] = []
        self._news = asyncio.Event()

    def by_dask(self) -> None:
        """From now on, let agents meet by Dask's connections alone."""

        def shut(dask_worker: Any) -> None:
            dask_worker.loop.add_callback(dask_worker.plugins[NAME].listener._door.close)

        equipped(self.on.client)
        self.on.client.run(shut)

    @contextlib.contextmanager
    def holding(self, problem: tk.Problem, strategy: tk.Strategy) -> Iterator[Agents]:
        """With the places of a strategy at them, and an update at every worker."""
        recipe = prepare(problem, strategy, self.on.describe(), tk.updates(1), optimizer="sgd(0.1)")
        self.cluster = recipe.setup.cluster
        where = hosts(self.cluster, self.on.hosts)
        job = Job("benchmark", recipe.strategy, recipe.setup, recipe.until, where, recipe=recipe)
        self.names = [host for host in dict.fromkeys(where.values()) if host != COORDINATOR]
        self.hosts = where
        found = cards(self.on.client, len(self.names), self.on._owned)
        addresses = {host: one["address"] for host, one in zip(self.names, found, strict=True)}
        known = {one["address"]: process for process, one in asked(self.on.client, card)[0].items() if one is not None}
        self.processes = {host: known[address] for host, address in addresses.items()}
        self._call(self._begin(job, addresses))
        try:
            first = [Compute(("compute", w, 0), w, tickets=(Ticket(0, 0, 4),)) for w in self.cluster.workers]
            self.perform(first, len(first))
            yield self
        finally:
            self._call(self.crew.release())

    def perform(self, tasks: Sequence[Task], reports: int) -> list[tuple[Any, ...]]:
        """Tell the hosts of some tasks; the rows of what they did, once so many tasks are reported."""
        return self._call(self._perform(tasks, reports))  # type: ignore[no-any-return]

    # -- within -------------------------------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.on.client.loop.asyncio_loop).result(PATIENCE)

    def _heard(self, host: PlaceName, message: Message) -> None:
        if message["op"] == "failed":
            raise pickle.loads(message["error"])
        if message["op"] == "done":
            self._rows.extend(message["rows"])
            self._news.set()

    async def _begin(self, job: Job, addresses: dict[PlaceName, str]) -> None:
        arguments = self.on.client.security.get_connection_args("client")
        self.crew = Crew(uuid.uuid4().hex, "benchmark", addresses, arguments, self._heard, lambda host, reason: None)
        await self.crew.claim(PATIENCE, lambda: False, asyncio.get_running_loop().create_future())
        packed, known = blob(pack(job)), list(addresses.items())
        for rank, host in enumerate(addresses):
            await self.crew.ask(host, "prepare", PATIENCE, arrays=[packed], host=host, addresses=known, rank=rank)
        for host in addresses:
            self.crew.tell([host], "begin", shift=await self.crew.difference(host))

    async def _perform(self, tasks: Sequence[Task], reports: int) -> list[tuple[Any, ...]]:
        self._rows = []
        letters: dict[PlaceName, list[Any]] = {}
        for task in tasks:
            for host in dict.fromkeys(self.hosts.get(place, place) for place in concerned(task)[0]):
                letters.setdefault(host, []).append(plain(task))
        for host, letter in letters.items():
            self.crew.tell([host], "tasks", tasks=letter)
        while sum(row[0] == "task" for row in self._rows) < reports:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), PATIENCE)
        return [row for row in self._rows if row[0] == "task"]

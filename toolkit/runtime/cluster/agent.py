"""The agent of a process: one per Dask worker, for as long as that lives; it takes part in one run at a time."""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Mapping
from typing import Any

from distributed import Worker as DaskWorker
from distributed.diagnostics.plugin import WorkerPlugin

from toolkit.runtime.cluster.channel import Channel, Listening, Message
from toolkit.runtime.cluster.lanes import Lane, allowed
from toolkit.runtime.cluster.leader import Leader
from toolkit.runtime.cluster.member import Member

NAME = "toolkit-agent"


class Agent(WorkerPlugin):
    """Listens for clients, coordinators and other agents, and holds what this process does for them.

    A process can hold the places of one run (it is a *member* of it) and lead runs as their coordinator.
    """

    name = NAME
    idempotent = True

    async def setup(self, worker: DaskWorker) -> None:
        """Begin to listen beside a Dask worker."""
        self.worker, self.loop = worker, asyncio.get_running_loop()
        self.cores = allowed()
        self.member: Member | None = None
        self.leaders: dict[str, Leader] = {}
        self._channels: set[Channel] = set()
        self._lanes: tuple[Lane, Lane] | None = None
        if multiprocessing.parent_process() is not None:
            atexit.register(leave)
        self.listener = Listening(self._heard, self._closed)
        await self.listener.start(worker.address, worker.security.get_listen_args("worker"))
        self.address = self.listener.address

    async def teardown(self, worker: DaskWorker) -> None:
        """End with the worker: whoever waits for this process sees its connections close."""
        self.listener.stop()
        for leader in list(self.leaders.values()):
            leader.cancel()
        if self.member is not None:
            self.release(self.member.run)
        for channel in list(self._channels):
            channel.abort()
        for lane in self._lanes or ():
            lane.close()

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """Threads for steps and for merges, made when first needed."""
        if self._lanes is None:
            soon = self.loop.call_soon_threadsafe
            self._lanes = (Lane("toolkit-steps", soon), Lane("toolkit-merges", soon))
        return self._lanes

    @property
    def connection(self) -> Mapping[str, Any]:
        """What connections to other agents need."""
        arguments: Mapping[str, Any] = self.worker.security.get_connection_args("worker")
        return arguments

    def card(self) -> dict[str, Any]:
        """Who this is, where it listens, and what it is busy with."""
        return {
            "address": self.address,
            "machine": platform.node(),
            "pid": os.getpid(),
            "cores": self.cores,
            "member": None if self.member is None else self.member.title,
            "leads": {run: leader.card() for run, leader in self.leaders.items()},
        }

    # -- membership ---------------------------------------------------------------------------------------------------

    def claim(self, run: str, title: str, channel: Channel | None) -> dict[str, Any]:
        """Take part in a run, unless this process takes part in another."""
        if self.member is not None and self.member.run != run:
            return {"busy": self.member.title}
        self.member = Member(self, run, title, channel)
        return {"busy": None}

    def release(self, run: str) -> None:
        """Leave a run."""
        if self.member is not None and self.member.run == run:
            member, self.member = self.member, None
            member.close()

    # -- messages -----------------------------------------------------------------------------------------------------

    def _heard(self, channel: Channel, message: Message) -> Any:
        self._channels.add(channel)
        run, op = str(message.get("run")), message["op"]
        match op:
            case "lead":
                leader = self.leaders[run] = Leader(self, run, message)
                return leader.accepted()
            case "claim":
                return self.claim(run, message["title"], channel)
            case "release":
                return self.release(run)
            case "ping":
                return {"time": self.time()}
            case "model" | "wait" | "stop" | "forget" | "keep" if run in self.leaders:
                return self.leaders[run].heard(op, message)
        if self.member is not None and self.member.run == run:
            return self.member.heard(op, message)
        if "ask" in message:
            raise ConnectionError(f"{op!r} was asked of an agent that does not take part in the run {run}.")
        return None  # a late message of a run that is over

    def _closed(self, channel: Channel) -> None:
        self._channels.discard(channel)
        if self.member is not None and self.member.channel is channel:
            self.release(self.member.run)  # its coordinator is gone

    def time(self) -> float:
        """The clock of this process [s]."""
        return time.monotonic()


def leave() -> None:
    """End a process that a nanny started without taking apart what JAX has loaded, which costs a second of CPU."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def card(dask_worker: DaskWorker) -> dict[str, Any] | None:
    """The card of the agent beside a Dask worker, if there is one; for ``client.run``."""
    agent = dask_worker.plugins.get(NAME)
    return agent.card() if isinstance(agent, Agent) else None

"""What a process does for a run in which it takes part: it holds a station and connects it with others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psutil

from toolkit.core.messages import COORDINATOR, Compute, Evaluate, PlaceName, Ticket
from toolkit.core.plain import restore
from toolkit.place import Places
from toolkit.runtime.cluster import job as jobs
from toolkit.runtime.cluster.channel import Channel, Message, nbytes, packed
from toolkit.runtime.cluster.lanes import Pace, pin
from toolkit.runtime.cluster.operations import Arrival
from toolkit.runtime.cluster.station import Station, frozen
from toolkit.runtime.settings import adopt, describe

if TYPE_CHECKING:
    from toolkit.runtime.cluster.agent import Agent

#: Seconds between two looks at the resources of a process.
LOOK = 1.0


class Member:
    """The part of one process in one run.

    Parameters
    ----------
    agent : Agent
    run : token of the run, which every message carries
    title : name of the run, for others that wait
    channel : to the coordinator; None in its own process
    """

    def __init__(self, agent: Agent, run: str, title: str, channel: Channel | None) -> None:
        self.agent, self.run, self.title, self.channel = agent, run, title, channel
        self.station: Station | None = None
        self._peers: dict[PlaceName, Channel] = {}  # host -> connection
        self._addresses: Mapping[PlaceName, str] = {}
        self._look: asyncio.Task[None] | None = None
        self._received = 0

    def heard(self, op: str, message: Message) -> Any:
        """A message of the run."""
        if op == "prepare":
            return self.prepare(message)
        station = self.station
        if station is None and op == "begin":
            return None  # the coordinator's process, without places
        if station is None:
            raise ConnectionError(f"{op!r} came before the process was prepared.")
        match op:
            case "tasks":
                station.perform(restore(message["tasks"]))
            case "value":
                value = tuple(message.get("arrays", ()))
                self._received += nbytes(value)
                names = ("wanted", "began", "nbytes", "reads")
                station.arrive(
                    Arrival(message["key"], message["dst"], message["round"], value, *(message[name] for name in names))
                )
            case "begin":
                station.shift = message["shift"]
                self._look = asyncio.ensure_future(self._resources())
            case "gone":
                station.lose(message["places"])
            case "halt":
                return self._halt(station, message["sources"])
        return None

    async def prepare(self, message: Message) -> dict[str, Any]:
        """Make the places of this host and compile what they need, in the thread of steps."""
        pin(self.agent.cores, message["rank"])
        adopt()
        self._addresses = {host: address for host, address in message["addresses"]}
        lane, _ = self.agent.lanes
        return await asyncio.wrap_future(lane.run(self._make, bytes(message["arrays"][0]), message["host"]))

    def _make(self, blob: bytes, host: PlaceName) -> dict[str, Any]:
        job: jobs.Job = jobs.unpack(blob)
        names = [place for place, where in job.hosts.items() if where == host and place in job.setup.cluster.homes]
        places = Places(job.setup, names)
        seconds = places.compile()
        pace = Pace(job.slowdown, job.pace)
        for name in names:
            home = places.home(name)
            if home.role == "worker" and home.worker is not None:
                pace.calibrate(home.worker, _step(places, home.worker))
        made = asyncio.run_coroutine_threadsafe(self._place(places, job, host, pace), self.agent.loop)
        made.result()
        return {"seconds": seconds, "settings": {**describe(), "steps": {str(w): s for w, s in pace.steps.items()}}}

    async def _place(self, places: Places, job: jobs.Job, host: PlaceName, pace: Pace) -> None:
        self.station = Station(places, job.hosts, host, self, self.agent.lanes, pace)

    def close(self) -> None:
        """Leave the run."""
        if self._look is not None:
            self._look.cancel()
        if self.station is not None:
            self.station.halt((), Evaluate(("left",), COORDINATOR, ()))
            self.station = None
        for peer in self._peers.values():
            peer.abort()

    # -- wires of the station -----------------------------------------------------------------------------------------

    def copies(self, host: PlaceName) -> bool:
        """Whether what is sent to a host has left its arrays once :meth:`deliver` returns."""
        return self._peer(host).copies

    def deliver(self, host: PlaceName, op: str, value: Sequence[Any], stamp: Callable[[], float], **data: Any) -> None:
        """Send a value to a host."""
        self._peer(host).send(op, value, stamp, run=self.run, nbytes=nbytes(value), **data)

    def _peer(self, host: PlaceName) -> Channel:
        """The connection to a host, made when it is first needed."""
        peer = self._peers.get(host)
        if peer is None:
            peer = Channel(lambda channel, message: None).open(self._addresses[host], self.agent.connection)
            self._peers[host] = peer
        return peer

    def report(self, rows: list[tuple[Any, ...]]) -> None:
        """Tell the coordinator what was done."""
        assert self.channel is not None
        self.channel.send("done", rows=rows)

    def fail(self, error: BaseException) -> None:
        """Tell the coordinator that something went wrong."""
        if self.channel is not None:
            self.channel.send("failed", error=packed(error))

    def _halt(self, station: Station, sources: Sequence[PlaceName]) -> dict[str, Any]:
        values = station.halt(sources, Evaluate(("halt",), COORDINATOR, ()))
        for place, value in values.items():
            self.deliver(COORDINATOR, "model", value, station.now, key=("halt",), place=place)
        return {"places": list(values)}

    async def _resources(self) -> None:
        process = psutil.Process()
        process.cpu_percent()
        while self.station is not None and self.channel is not None:
            await asyncio.sleep(LOOK)
            with contextlib.suppress(psutil.Error):
                known = {"cpu": process.cpu_percent(), "memory": process.memory_info().rss}
                sent = sum(peer.sent for peer in self._peers.values())
                self.channel.send("resources", time=self.station.now(), sent=sent, received=self._received, **known)


def _step(places: Places, worker: int) -> Callable[[], Any]:
    """A step on real rows that leaves nothing behind."""
    setup = places.setup
    shard = worker if setup.way is not None else None
    count = min(setup.problem.batch, (setup.shards or {}).get(worker, setup.problem.train.rows))
    task = Compute(("calibrate", worker, 0), worker, tickets=(Ticket(0, 0, count, shard),), local=setup.local)

    return lambda: frozen(places, worker).read(worker, task)

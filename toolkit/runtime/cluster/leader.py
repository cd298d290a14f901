"""A run from its coordinator's side: claim processes, prepare them, drive, put together what is left."""

from __future__ import annotations

import asyncio
import pickle
import random
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from toolkit.core.errors import Lost, Overdue
from toolkit.core.messages import COORDINATOR, Evaluate, Measured, PlaceName
from toolkit.place import Places, sources
from toolkit.runtime import numerics
from toolkit.runtime.cluster import job as jobs
from toolkit.runtime.cluster.channel import Channel, Message, packed
from toolkit.runtime.cluster.coordinator import Coordinator
from toolkit.runtime.drive import Drive
from toolkit.runtime.outcome import Outcome
from toolkit.runtime.record import Recorder
from toolkit.runtime.settings import adopt, describe
from toolkit.trace import Trace

if TYPE_CHECKING:
    from toolkit.runtime.cluster.agent import Agent

#: Seconds between two messages to those who watch a run.
PACE = 0.25
#: Seconds in which a process must have loaded its rows and compiled its kernels.
PREPARE = 900.0
#: Round trips of which the shortest tells the difference of two clocks.
PINGS = 8


class Leader:
    """Leads one run in the process of its coordinator.

    Parameters
    ----------
    agent : Agent
    run : token
    message : what the client asked: the job, and the address of each host's agent
    """

    def __init__(self, agent: Agent, run: str, message: Message) -> None:
        self.agent, self.run, self.title = agent, run, str(message["title"])
        self.status, self.outcome = "waiting", Outcome()
        self._blob, self._keep = message["arrays"][0], message["keep"]
        self._addresses: dict[PlaceName, str] = dict(message["addresses"])
        self._channels: dict[PlaceName, Channel] = {}
        self._final: dict[PlaceName, asyncio.Future[Any]] = {}
        self._coordinator: Coordinator | None = None
        self._drive: Drive | None = None
        self._stopped = False
        self._quiet = asyncio.Event()  # nothing of the run is performed any more
        self._told: tuple[float, int] = (-1.0, 0)
        self._task = asyncio.ensure_future(self._lead())

    def card(self) -> dict[str, Any]:
        """What a client is told."""
        return {"title": self.title, "status": self.status}

    def cancel(self) -> None:
        """End with the process."""
        self._task.cancel()
        for channel in self._channels.values():
            channel.abort()

    def heard(self, op: str, message: Message) -> Any:
        """A message of the run, from a host or a client."""
        match op:
            case "model":
                self._model(message)
            case "stop":
                return self._stop()
            case "wait":
                return self._wait()
            case "keep":
                return {"keep": self._keep, "job": self._blob.tobytes()}
            case "forget":
                self.agent.leaders.pop(self.run, None)
        return None

    async def _wait(self) -> dict[str, Any]:
        await asyncio.shield(self._task)
        if self.outcome.error is not None:
            self.outcome.error = pickle.loads(packed(self.outcome.error))
        return {"outcome": jobs.pack(self.outcome)}

    async def _stop(self) -> dict[str, Any]:
        self._stopped = True
        if self._coordinator is not None:
            self._coordinator.stop()
        await self._quiet.wait()
        return {}

    # -- the run --------------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        threads = ThreadPoolExecutor(1, "toolkit-drive")
        watch = asyncio.ensure_future(self._publish())
        try:
            job: jobs.Job = jobs.unpack(bytes(self._blob))
            await self._claim(job.deadline)
            places = await self._prepare(job)
            coordinator, drive = self._driver(job, places)
            await self._begin(coordinator)
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(threads, drive.run, coordinator)
                drive.status = "stopped" if self._stopped and drive.status == "idle" else drive.status
                if drive.status == "idle":
                    raise idle(drive)
            except Exception as error:
                self.outcome.error, drive.status = error, f"stopped: {error}"
            await self._end(job, places, coordinator, drive)
        except Exception as error:
            self.outcome.error = self.outcome.error or error
            self.outcome.status = f"stopped: {error}"
        finally:
            self._quiet.set()
            watch.cancel()
            threads.shutdown(wait=False)
            await self._release()
            self.status = "ended"
            self._tell({"ended": True})

    async def _claim(self, deadline: float) -> None:
        """Take all processes of the run, or none and wait for whoever has them; always in the same order."""
        began, hosts = time.monotonic(), sorted(self._addresses, key=lambda host: self._addresses[host])
        while not self._stopped:
            busy = None
            for host in hosts:
                channel = self._channels[host] = Channel(self._reported, self._closed)
                channel.open(self._addresses[host], self.agent.connection)
                busy = (await self._ask(host, "claim", deadline, title=self.title))["busy"]
                if busy is not None:
                    break
            if busy is None:
                return
            await self._release()
            self.status = f"waiting for the run {busy!r}"
            if time.monotonic() - began > deadline:
                raise Overdue(
                    f"The run {self.title!r} waited {deadline:g} s for processes that take part in the run {busy!r}. A process takes "
                    f"part in one run at a time. Wait for that run, stop it, or add processes to the cluster."
                )
            await asyncio.sleep(random.uniform(0.1, 0.3))
        raise Lost(f"The run {self.title!r} was stopped before it began. Nothing was computed. Start it again.")

    async def _prepare(self, job: jobs.Job) -> Places:
        """Let every host make and compile its places, and make what measures here."""
        self.status = "preparing"
        addresses = [(host, address) for host, address in self._addresses.items()]
        lane, _ = self.agent.lanes
        adopt()

        def make() -> Places:
            places = Places(job.setup, ())
            self.outcome.compile_seconds = {COORDINATOR: places.compile()}
            return places

        hosts = [host for host in self._addresses if host in job.hosts.values()]
        asked = [
            self._ask(host, "prepare", PREPARE, arrays=[self._blob], host=host, addresses=addresses, rank=rank)
            for rank, host in enumerate(hosts)
        ]
        places, *answers = await asyncio.gather(asyncio.wrap_future(lane.run(make)), *asked)
        seconds = {host: answer["seconds"] for host, answer in zip(hosts, answers, strict=True)}
        self.outcome.compile_seconds = {**self.outcome.compile_seconds, **seconds}
        settings = {str(host): dict(answer["settings"]) for host, answer in zip(hosts, answers, strict=True)}
        cores = {tuple(setting["affinity"] or ()) for setting in settings.values()}
        self.outcome.settings = {**describe(), "processes": settings, "oversubscribed": len(hosts) > len(cores)}
        self.outcome.hosts = {place: self._addresses[host] for place, host in job.hosts.items()}
        return places

    def _driver(self, job: jobs.Job, places: Places) -> tuple[Coordinator, Drive]:
        loop, recorder = asyncio.get_running_loop(), Recorder(Trace())
        steps, _ = self.agent.lanes

        def post(letters: dict[PlaceName, list[Any]]) -> None:
            loop.call_soon_threadsafe(self._post, letters)

        def measure(task: Evaluate, values: Mapping[PlaceName, Any]) -> None:
            steps.run(measured, task, values)

        def measured(task: Evaluate, values: Mapping[PlaceName, Any]) -> None:
            try:
                found = places.measure(task, values)
                number = -1 if task.round is None else task.round
                coordinator.put("measured", [Measured(n, v, number, coordinator.now()) for n, v in found.items()])
            except Exception as error:
                coordinator.put("failed", error)

        homes = job.setup.cluster.homes
        coordinator = Coordinator(homes, job.hosts, recorder, post, measure, job.on_loss, job.deadline)
        drive = Drive(job.strategy, job.setup.cluster, recorder, job.until, lambda tally: not self._stopped)
        self._drive = drive
        numerics.begin(drive, places, self.outcome)
        return coordinator, drive

    async def _begin(self, coordinator: Coordinator) -> None:
        """Compare the clocks and begin."""
        shifts = {host: await self._difference(host) for host in self._addresses}
        coordinator.origin = time.monotonic()
        self._coordinator, self.status = coordinator, "running"
        for host, difference in shifts.items():
            self._channels[host].send("begin", run=self.run, shift=difference - coordinator.origin)
        if self._stopped:
            coordinator.stop()

    async def _difference(self, host: PlaceName) -> float:
        """What to add to the clock of a host to get that of this process."""
        trips = []
        for _ in range(PINGS):
            began = time.monotonic()
            there = (await self._ask(host, "ping", 10.0))["time"]
            ended = time.monotonic()
            trips.append((ended - began, (began + ended) / 2 - there))
        return min(trips)[1]

    async def _end(self, job: jobs.Job, places: Places, coordinator: Coordinator, drive: Drive) -> None:
        """Halt every host, read the model and put together what the run leaves."""
        away = {place for place, host in job.hosts.items() if self._channels[host].over}
        homes = {place: home for place, home in job.setup.cluster.homes.items() if place not in coordinator.gone}
        live = {home.worker for place, home in homes.items() if place not in away} - {None}
        held = sources(homes, live, bool(places.learner.vector.local_size))  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        self._final = {place: loop.create_future() for place in held if place not in away}
        hosts = [host for host, channel in self._channels.items() if host in job.hosts.values() and not channel.over]
        asked = [self._ask(host, "halt", job.deadline, sources=list(self._final)) for host in hosts]
        await asyncio.gather(*asked, return_exceptions=True)
        self._quiet.set()
        coordinator.drain()
        self.outcome.rows, self.outcome.events = drive.recorder.trace.rows, drive.log
        self.outcome.tally, self.outcome.status = drive.tally, drive.status
        self.outcome.metrics = numerics.metrics(drive.measured)
        if self._final and len(self._final) == len(held):  # else a part of the model is lost
            values = await asyncio.wait_for(asyncio.gather(*self._final.values()), job.deadline)
            named = dict(zip(self._final, values, strict=True))
            await asyncio.wrap_future(self.agent.lanes[0].run(numerics.finish, drive, places, self.outcome, named))

    async def _release(self) -> None:
        for channel in self._channels.values():
            if not channel.over:
                channel.send("release", run=self.run)
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
        self._channels.clear()

    # -- messages -------------------------------------------------------------------------------------------------------

    async def _ask(self, host: PlaceName, op: str, timeout: float, /, **data: Any) -> Message:
        try:
            return await self._channels[host].ask(op, timeout, run=self.run, **data)
        except (ConnectionError, TimeoutError) as error:
            raise Lost(
                f"The process of {host} at {self._addresses[host]} did not answer {op!r}: {error or f'{timeout:g} s passed'}. A run "
                f"needs all its processes. Look at the log of that worker, and start the run again."
            ) from error

    def _post(self, letters: dict[PlaceName, list[Any]]) -> None:
        """One message to each host that a reply concerns."""
        gone = letters.pop("gone", None)
        for host, channel in self._channels.items():
            if gone is not None and not channel.over:
                channel.send("gone", run=self.run, places=gone)
        for host, tasks in letters.items():
            if not self._channels[host].over:
                self._channels[host].send("tasks", run=self.run, tasks=tasks)

    def _reported(self, channel: Channel, message: Message) -> None:
        coordinator = self._coordinator
        if coordinator is None:
            return
        match message["op"]:
            case "done":
                coordinator.put("rows", message["rows"])
            case "failed":
                coordinator.put("failed", pickle.loads(message["error"]))
            case "resources":
                host = next(host for host, other in self._channels.items() if other is channel)
                names = ("time", "cpu", "memory", "received", "sent")
                row = {"place": str(host), "host": self._addresses[host], **{name: message[name] for name in names}}
                self.outcome.resources.append(row)

    def _closed(self, channel: Channel) -> None:
        host = next((host for host, other in self._channels.items() if other is channel), None)
        if host is not None and self._coordinator is not None:
            self._coordinator.put("lost", (host, f"the connection to {self._addresses[host]} broke"))

    def _model(self, message: Message) -> None:
        key, place, value = message["key"], message["place"], tuple(message["arrays"])
        if key != ("halt",):
            assert self._coordinator is not None
            self._coordinator.put("model", (key, place, value))
        elif place in self._final and not self._final[place].done():
            self._final[place].set_result(value)

    async def _publish(self) -> None:
        """Tell those who watch how far the run has come, when that has changed."""
        while True:
            await asyncio.sleep(PACE)
            if self._drive is None:
                self._tell({"status": self.status})
            elif self._told != (state := (self._drive.tally.time, len(self._drive.measured))):
                known, self._told = self._told[1], state
                tally, fresh = self._drive.tally, numerics.metrics(self._drive.measured[known : state[1]])
                numbers = {name: getattr(tally, name) for name in ("rows", "time", "updates", "samples", "active")}
                self._tell({"status": self.status, "tally": numbers, "last": dict(tally.metrics), "metrics": fresh})

    def _tell(self, news: dict[str, Any]) -> None:
        self.agent.worker.log_event(topic(self.run), news)


def topic(run: str) -> str:
    """The topic of the scheduler's events under which a run tells how far it has come."""
    return f"toolkit-{run}"


def idle(drive: Drive) -> Overdue:
    """The error of a run in which nothing more can happen."""
    return Overdue(
        f"Nothing more happens although {drive.until!r} does not hold. Every worker waits, has left or is finished: "
        f"{drive.tally.updates} updates, {drive.tally.active} workers active. Ask for less, or let a policy go on without those "
        f"who left."
    )

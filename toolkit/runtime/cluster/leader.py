"""A run from its coordinator's side: claim processes, prepare them, drive, put together what is left."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from toolkit.core.messages import COORDINATOR, Evaluate, Measured, PlaceName
from toolkit.place import Places, sources
from toolkit.runtime import numerics
from toolkit.runtime.cluster import job as jobs
from toolkit.runtime.cluster.channel import Message, packed
from toolkit.runtime.cluster.coordinator import Coordinator
from toolkit.runtime.cluster.crew import Crew
from toolkit.runtime.cluster.news import News
from toolkit.runtime.cluster.pending import idle
from toolkit.runtime.drive import Drive
from toolkit.runtime.outcome import Outcome
from toolkit.runtime.record import Recorder
from toolkit.runtime.settings import adopt, describe
from toolkit.trace import Trace

if TYPE_CHECKING:
    from toolkit.runtime.cluster.agent import Agent

#: Seconds in which a process must have loaded its rows and compiled its kernels.
PREPARE = 900.0


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
        self.outcome = Outcome()
        self._status, self._news = "waiting", News(run, agent.worker.log_event)
        self._blob, self._keep = message["arrays"][0], message["keep"]
        addresses = dict(message["addresses"])
        self._crew = Crew(run, self.title, addresses, agent.connection, self._reported, self._lost)
        self._final: dict[PlaceName, asyncio.Future[Any]] = {}
        self._coordinator: Coordinator | None = None
        self._drive: Drive | None = None
        self._stopped = False
        self._quiet = asyncio.Event()  # nothing of the run is performed any more
        self._met = asyncio.get_running_loop().create_future()  # whether all processes could be reached
        self._task = asyncio.ensure_future(self._lead())

    @property
    def status(self) -> str:
        """What the run is about."""
        busy = self._crew.busy
        return f"waiting for the run {busy!r}" if busy is not None else self._status

    def card(self) -> dict[str, Any]:
        """What a client is told."""
        return {"title": self.title, "status": self.status}

    async def accepted(self) -> dict[str, Any]:
        """The card, once every process was reached; an error if one is gone, and then nothing of the run is left."""
        await self._met
        return self.card()

    def cancel(self) -> None:
        """End with the process."""
        self._task.cancel()
        self._crew.abort()

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

    # -- the run ------------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        watch = asyncio.ensure_future(self._news.publish(lambda: (self.status, self._drive)))
        try:
            job: jobs.Job = jobs.unpack(bytes(self._blob))
            await self._crew.claim(job.deadline, lambda: self._stopped, self._met)
            places = await self._prepare(job)
            coordinator, drive = self._driver(job, places)
            await self._begin(coordinator)
            await self._run(coordinator, drive)
            await self._end(job, places, coordinator, drive)
        except Exception as error:
            self.outcome.error = self.outcome.error or error
            self.outcome.status = f"stopped: {self.outcome.error}"
            if not self._met.done():
                self._met.set_exception(error)
                self.agent.leaders.pop(self.run, None)
        finally:
            self._quiet.set()
            watch.cancel()
            await self._crew.release()
            self._status = "ended"
            self._news.tell(self.status)

    async def _run(self, coordinator: Coordinator, drive: Drive) -> None:
        """Drive in a thread, so that messages go on meanwhile."""
        thread = ThreadPoolExecutor(1, "toolkit-drive")
        try:
            await asyncio.get_running_loop().run_in_executor(thread, drive.run, coordinator)
            if drive.status == "idle" and not self._stopped:
                raise idle(drive)
            drive.status = "stopped" if self._stopped and drive.status == "idle" else drive.status
        except Exception as error:
            self.outcome.error, drive.status = error, f"stopped: {error}"
        finally:
            thread.shutdown(wait=False)

    async def _prepare(self, job: jobs.Job) -> Places:
        """Let every host make and compile its places, and make what measures here."""
        self._status, addresses = "preparing", list(self._crew.addresses.items())
        adopt()

        def make() -> tuple[Places, float]:
            places = Places(job.setup, ())
            return places, places.compile()

        hosts = [host for host in self._crew.addresses if host in job.hosts.values()]
        asked = [
            self._crew.ask(host, "prepare", PREPARE, arrays=[self._blob], host=host, addresses=addresses, rank=rank)
            for rank, host in enumerate(hosts)
        ]
        (places, own), *answers = await asyncio.gather(asyncio.wrap_future(self.agent.lanes[0].run(make)), *asked)
        seconds = {host: answer["seconds"] for host, answer in zip(hosts, answers, strict=True)}
        self.outcome.compile_seconds = {COORDINATOR: own, **seconds}
        settings = {str(host): dict(answer["settings"]) for host, answer in zip(hosts, answers, strict=True)}
        cores = {tuple(setting["affinity"] or ()) for setting in settings.values()}
        self.outcome.settings = {**describe(), "processes": settings, "oversubscribed": len(hosts) > len(cores)}
        self.outcome.hosts = {place: self._crew.addresses[host] for place, host in job.hosts.items()}
        return places

    def _driver(self, job: jobs.Job, places: Places) -> tuple[Coordinator, Drive]:
        loop, recorder = asyncio.get_running_loop(), Recorder(Trace())

        def post(letters: dict[PlaceName, dict[str, Any]]) -> None:
            loop.call_soon_threadsafe(self._post, letters)

        def measured(task: Evaluate, values: Mapping[PlaceName, Any]) -> None:
            try:
                found = places.measure(task, values)
                number = -1 if task.round is None else task.round
                coordinator.put("measured", [Measured(n, v, number, coordinator.now()) for n, v in found.items()])
            except Exception as error:
                coordinator.put("failed", error)

        homes = job.setup.cluster.homes
        measure = partial(self.agent.lanes[0].run, measured)
        coordinator = Coordinator(homes, job.hosts, recorder, post, measure, job.on_loss, job.deadline)
        drive = Drive(job.strategy, job.setup.cluster, recorder, job.until, lambda tally: not self._stopped)
        numerics.begin(drive, places)
        self._drive = drive
        return coordinator, drive

    async def _begin(self, coordinator: Coordinator) -> None:
        """Compare the clocks and begin."""
        shifts = {host: await self._crew.difference(host) for host in self._crew.addresses}
        coordinator.origin = time.monotonic()
        self._coordinator, self._status = coordinator, "running"
        for host, difference in shifts.items():
            self._crew.tell([host], "begin", shift=difference - coordinator.origin)
        if self._stopped:
            coordinator.stop()

    async def _end(self, job: jobs.Job, places: Places, coordinator: Coordinator, drive: Drive) -> None:
        """Halt every host, read the model and put together what the run leaves."""
        homes = {place: home for place, home in job.setup.cluster.homes.items() if place not in coordinator.gone}
        here = {place for place in homes if self._crew.alive(job.hosts.get(place, place))}
        live = {worker for place in here if (worker := homes[place].worker) is not None}
        held = sources(homes, live, bool(places.learner.vector.local_size))
        loop, whole = asyncio.get_running_loop(), here.issuperset(held)
        self._final = {place: loop.create_future() for place in held if place in here}
        hosts = [host for host in dict.fromkeys(job.hosts.values()) if self._crew.alive(host)]
        asked = [self._crew.ask(host, "halt", job.deadline, sources=list(self._final)) for host in hosts]
        await asyncio.gather(*asked, return_exceptions=True)
        self._quiet.set()
        coordinator.drain()
        self.outcome.rows, self.outcome.events = drive.recorder.trace.rows, drive.log
        self.outcome.tally, self.outcome.status = drive.tally, drive.status
        self.outcome.metrics = numerics.metrics(drive.measured)
        if self._final and whole:  # else a part of the model is lost
            values = await asyncio.wait_for(asyncio.gather(*self._final.values()), job.deadline)
            named = dict(zip(self._final, values, strict=True))
            await asyncio.wrap_future(self.agent.lanes[0].run(numerics.finish, drive, places, self.outcome, named))

    # -- messages -----------------------------------------------------------------------------------------------------

    def _post(self, letters: dict[PlaceName, dict[str, Any]]) -> None:
        for host, letter in letters.items():
            self._crew.tell([host], **letter)

    def _reported(self, host: PlaceName, message: Message) -> None:
        if (coordinator := self._coordinator) is None:
            return
        match message["op"]:
            case "done":
                coordinator.put("rows", message["rows"])
            case "failed":
                coordinator.put("failed", pickle.loads(message["error"]))
            case "resources":
                known = {name: message[name] for name in ("time", "cpu", "memory", "received", "sent")}
                self.outcome.resources.append({"place": str(host), "host": self._crew.addresses[host], **known})

    def _lost(self, host: PlaceName, reason: str) -> None:
        if self._coordinator:
            self._coordinator.put("lost", (host, reason))

    def _model(self, message: Message) -> None:
        key, place, value = message["key"], message["place"], tuple(message["arrays"])
        if key != ("halt",) and self._coordinator is not None:
            self._coordinator.put("model", (key, place, value))
        elif place in self._final and not self._final[place].done():
            self._final[place].set_result(value)

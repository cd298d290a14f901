"""The station of a host: performs operations on the arrays of its places and reports what it did."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from toolkit.core.messages import COORDINATOR, Apply, Cancel, Chunk, Compute, Mix, PlaceName, Send, Stage, Task
from toolkit.place import Places
from toolkit.runtime.cluster.channel import nbytes
from toolkit.runtime.cluster.lanes import Lane, Pace, steps_in
from toolkit.runtime.cluster.ledger import Ledger
from toolkit.runtime.cluster.operations import Arrival, Op, Operations


class Wires(Protocol):
    """How a station reaches others."""

    def copies(self, host: PlaceName) -> bool:
        """Whether what is sent to a host has left its arrays once :meth:`deliver` returns."""
        ...

    def deliver(self, host: PlaceName, op: str, value: Sequence[Any], stamp: Callable[[], float], **data: Any) -> None:
        """Send a value to a host."""

    def report(self, rows: list[tuple[Any, ...]]) -> None:
        """Tell the coordinator what was done."""

    def fail(self, error: BaseException) -> None:
        """Tell the coordinator that something went wrong."""


class Station:
    """Performs tasks at the places of one host.

    Parameters
    ----------
    places : Places
    hosts : {place: host}
    host : name of this host
    wires : Wires
    lanes : (steps, what touches a model)
    pace : Pace
    """

    def __init__(
        self,
        places: Places,
        hosts: Mapping[PlaceName, PlaceName],
        host: PlaceName,
        wires: Wires,
        lanes: tuple[Lane, Lane],
        pace: Pace,
    ) -> None:
        self.places, self.hosts, self.host, self.wires, self.pace = places, hosts, host, wires, pace
        self.shift = 0.0  # from the clock of this process to the time of the run
        self._steps, self._merges = lanes
        self._loop = asyncio.get_running_loop()
        self._ops = Operations(self._here)
        self._ledger = Ledger(self._loop.call_soon, wires.report)
        self._version: dict[PlaceName, int] = {}  # place -> the last merge applied there
        self._halted = False

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() + self.shift

    def perform(self, tasks: Iterable[Task]) -> None:
        """Take up the tasks of a reply, in order."""
        tasks = list(tasks)
        for task in tasks:
            if isinstance(task, Cancel):
                self._begin(self._ops.drop(task))
        self._begin(self._ops.add(tasks))

    def arrive(self, arrival: Arrival) -> None:
        """A value came from elsewhere."""
        op = None if self._halted else self._ops.arrive(arrival)
        if op is not None:
            self._begin([op])

    def lose(self, places: Iterable[PlaceName]) -> None:
        """Some places are gone."""
        self._ops.lose(frozenset(places))

    def halt(self, sources: Iterable[PlaceName], task: Task) -> dict[PlaceName, tuple[Any, ...]]:
        """Begin nothing more, report what was done, and read the model as it is now."""
        self._halted = True
        self.pace.halted.set()
        self._steps.clear()
        self._merges.clear()
        self._ledger.flush()
        return {place: self.places.read(place, task) for place in sources if self._here(place)}

    # -- operations ---------------------------------------------------------------------------------------------------

    def _here(self, place: PlaceName) -> bool:
        return self.hosts.get(place, place) == self.host

    def _begin(self, ops: list[Op]) -> None:
        """Everything these waited for is done."""
        for op in ops:
            if self._halted or not self._ops.knows(op):
                continue
            op.wanted = self.now()
            try:
                self._start(op)
            except Exception as error:
                self.wires.fail(error)

    def _start(self, op: Op) -> None:
        heavy = getattr(op.task, "codec", None) is not None
        match op.role:
            case "work":
                lane = self._merges if isinstance(op.task, (Apply, Mix)) else self._steps
                lane.add(lambda: self._work(op))
            case "out" if heavy and isinstance(op.task, Send):
                self._merges.add(lambda: self._encode(op, lambda: self.places.read(op.place, op.task), self._send))
            case "out":
                op.reads = self._ledger.stamp(op.place)
                self._send(op, self._read(op.place, op.task))
            case "in":
                self._land(op)
            case "start" if heavy:
                write = lambda: self.places.write(op.place, op.task, None)  # noqa: E731
                self._merges.add(lambda: self._encode(op, write, self._started))
            case "start":
                self.places.write(op.place, op.task, None)
                self._started(op, None)
            case "end":
                self._done(op, self.now(), (-1, -1))
            case "read":
                self._evaluate(op)
            case "cancel":
                assert isinstance(op.task, Cancel)
                applied = self._version.get(op.place, -1) >= op.task.of
                worker = self.places.home(op.place).worker
                self._done(op, self.now(), (-1, -1), facts={"applied": (worker,)} if applied else {})

    def _work(self, op: Op) -> Callable[[], None]:
        """The turn of an operation in its lane: what it reads is what is there now."""
        if self._halted or not self._ops.knows(op):
            return lambda: None
        op.running, op.reads, task = True, self._ledger.stamp(op.place), op.task
        places = frozen(self.places, op.place) if isinstance(task, (Compute, Stage)) else self.places
        began = time.monotonic()

        def work() -> None:
            op.began = began + self.shift
            try:
                value = places.read(op.place, task)
                if isinstance(task, (Compute, Stage)):
                    self.pace.pad(self.places.home(task.at).worker, began, steps_in(task))
            except Exception as error:
                self._soon(self.wires.fail, error)
                return
            self._soon(self._worked, op, value, self.now())

        return work

    def _worked(self, op: Op, value: Any, ended: float) -> None:
        op.running = False
        if self._halted:
            return
        writes = self._ledger.stamp(op.place)
        self.places.write(op.place, op.task, value)
        if isinstance(op.task, (Apply, Mix)):
            if op.task.round is not None:
                self._version[op.place] = op.task.round
            self._done(op, ended, (op.reads, writes))
        else:
            self._done(op, ended, (op.reads, writes), facts=self.places.facts(op.task, value))

    def _encode(self, op: Op, function: Callable[[], Any], then: Callable[[Op, Any], None]) -> Callable[[], None]:
        """What costs time but takes part in no order: reading or adding an update that is encoded on the way."""
        op.reads = self._ledger.stamp(op.place) if op.role == "out" else -1

        def work() -> None:
            try:
                value = function()
            except Exception as error:
                self._soon(self.wires.fail, error)
                return
            self._soon(lambda: then(op, value) if self._ops.knows(op) and not self._halted else None)

        return work

    def _started(self, op: Op, value: None) -> None:
        """A member has put its own part into the sum."""
        self._ledger.start(op, self.now())
        self._begin(self._ops.done(op))

    def _read(self, place: PlaceName, task: Task) -> Any:
        """What a message takes with it; a hop lends it from the sum to those who copy it at once."""
        if isinstance(task, Chunk) and (host := self.hosts.get(task.dst, task.dst)) != self.host:
            return self.places.lent(place, task) if self.wires.copies(host) else self.places.read(place, task)
        return self.places.read(place, task)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _send(self, op: Op, value: Sequence[Any]) -> None:
        task = op.task
        assert isinstance(task, (Send, Chunk))
        target = self.hosts.get(task.dst, task.dst)
        if target == self.host:
            arrival = Arrival(
                task.key, task.dst, task.round, tuple(value), op.wanted, self.now(), nbytes(value), op.reads
            )
            self._begin(self._ops.done(op))
            self.arrive(arrival)
            return
        names = {"key": task.key, "dst": task.dst, "round": task.round, "wanted": op.wanted, "reads": op.reads}
        self.wires.deliver(target, "value", value, self.now, **names)
        self._begin(self._ops.done(op))

    def _land(self, op: Op) -> None:
        """What arrived is written, now that its turn has come."""
        arrival, task = op.arrived, op.task
        assert arrival is not None
        op.wanted, op.began = arrival.wanted, max(arrival.wanted, arrival.began)
        writes = self._ledger.stamp(op.place)
        self.places.write(op.place, task, arrival.value)
        self._done(op, self.now(), (arrival.reads, writes), arrival.nbytes)

    def _evaluate(self, op: Op) -> None:
        op.reads = self._ledger.stamp(op.place)
        value = self.places.read(op.place, op.task)
        self.wires.deliver(COORDINATOR, "model", value, self.now, key=op.task.key, place=op.place)
        self._done(op, self.now(), (op.reads, -1))

    def _done(self, op: Op, ended: float, stamps: tuple[int, int], nbytes: int = 0, facts: Any = None) -> None:
        self._ledger.done(op, ended, stamps, nbytes, facts)
        self._begin(self._ops.done(op))

    def _soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)


def frozen(places: Places, name: PlaceName) -> Places:
    """The places with one as it is now, for work in a thread while messages go on arriving."""
    view = copy.copy(places)
    view.places = {**places.places, name: copy.copy(places.at(name))}
    return view

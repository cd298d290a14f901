"""The engine of virtual time: operations, the lanes they occupy, and a heap of what happens when.

The order is total, by (time, sequence). How operations share a host is told in :mod:`toolkit.runtime.lanes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from toolkit.core.messages import (
    Apply,
    Cancel,
    Chunk,
    Compute,
    Evaluate,
    Event,
    Facts,
    Join,
    Joined,
    Key,
    Left,
    Measured,
    Mix,
    PlaceName,
    Reduce,
    Send,
    Stage,
    Task,
    Worker,
)
from toolkit.runtime.costs import Costs
from toolkit.runtime.graph import Graph, Op
from toolkit.runtime.joins import Joins, Report
from toolkit.runtime.lanes import Lanes
from toolkit.runtime.record import Recorder


class Data(Protocol):
    """The arrays of all places, where a run has any."""

    def read(self, place: PlaceName, task: Task) -> Any:
        """What a task takes from a place."""
        ...

    def write(self, place: PlaceName, task: Task, value: Any) -> None:
        """Leave what a task produced at a place."""
        ...

    def facts(self, task: Task, value: Any) -> Facts:
        """What is reported of a task."""
        ...

    def measure(self, task: Evaluate, values: dict[PlaceName, Any]) -> dict[str, float]:
        """The metrics of the model read at some places."""
        ...


class Engine:
    """Performs tasks in virtual time and yields events in order.

    Parameters
    ----------
    costs : Costs
        Seconds and bytes of every task.
    recorder : Recorder
        Takes a row per task.
    data : Data, optional
        The arrays; without, only time passes.
    joins, leaves : list of (time [s], worker)
        Those that are there from the start join at 0.
    """

    def __init__(
        self,
        costs: Costs,
        recorder: Recorder,
        data: Data | None,
        joins: Sequence[tuple[float, Worker]],
        leaves: Sequence[tuple[float, Worker]],
    ) -> None:
        self.costs, self.recorder, self.data = costs, recorder, data
        self.now, self._count = 0.0, 0
        self._heap: list[tuple[float, int, Op | Event | Report]] = []
        self._graph = Graph()
        self._ops = self._graph.ops
        self._joins = Joins()
        self._lanes = Lanes(costs)
        self._version: dict[PlaceName, int] = {}  # place -> the last merge applied there
        self._skipped: set[tuple[PlaceName, int]] = set()  # merges that were cancelled there before they were applied
        self._seen: dict[PlaceName, int] = {}  # place -> reads and writes so far
        self._gone: set[PlaceName] = set()
        self._snapshots: dict[Key, dict[PlaceName, Any]] = {}
        for time, worker in joins:
            self._push(time, Joined(worker, time))
        for time, worker in leaves:
            self._push(time, Left(worker, time))

    def events(self) -> Iterator[Event]:
        """What happens, in order, until nothing more can."""
        while self._heap:
            self.now, _, item = heappop(self._heap)
            if isinstance(item, Left):
                self._gone.update(self.costs.places_of(item.worker))
                yield item
                self._forget()  # after the merges in which it took part have been cancelled
            elif isinstance(item, Event):
                yield item
            elif isinstance(item, Report):
                yield from self._joins.done(*item)
            elif item.token in self._ops:
                yield from self._arrive(item)

    def perform(self, tasks: Sequence[Task], cause: int) -> None:
        """Take up the tasks of a reply."""
        for done in self._joins.add([task for task in tasks if isinstance(task, Join)], self.now):
            self._push(self.now, done)
        made: list[Op] = []
        for task in tasks:
            if not isinstance(task, Join):
                made.extend(self._taken_up(task, cause))
        for op in made:
            if not op.missing and op.token in self._ops:
                self._start(op)

    def _taken_up(self, task: Task, cause: int) -> list[Op]:
        match task:
            case Evaluate():
                self._snapshots[task.key] = {}
                return self._graph.read(task, cause, self._gone)
            case Cancel(at=place, of=number):
                self._drop(task)
                (op,) = self._graph.add(task, cause)
                if (other := self._lanes.merging(place, number)) is not None:
                    self._graph.wait(op, other)
                return [op]
        return self._graph.add(task, cause)

    # -- in time ------------------------------------------------------------------------------------------------

    def _push(self, time: float, item: Op | Event | Report) -> None:
        heappush(self._heap, (time, self._count, item))
        self._count += 1

    def _start(self, op: Op) -> None:
        """Everything an operation waited for is done."""
        op.wanted, task = self.now, op.task
        if op.place in self._gone:
            del self._ops[op.token]
        elif isinstance(task, (Send, Chunk)):
            self._read(op, op.place)
            op.began, arrival = self._lanes.send(task, self.now)
            self._push(arrival, op)
        elif isinstance(task, (Reduce, Evaluate, Cancel)):
            op.began = self.now
            if isinstance(task, Evaluate):
                self._read(op, op.place)
            self._push(self.now, op)
        elif self._lanes.enter(op):
            self._begin(op)

    def _begin(self, op: Op) -> None:
        """The CPU takes up an operation."""
        op.began = self.now
        self._read(op, op.place)
        work = self.costs.work(op.task, self.now)
        self._lanes.interrupt(op, work)
        self._push(self.now + work, op)

    def _arrive(self, op: Op) -> Iterator[Event]:
        """An operation ends, unless another must be written at its target first."""
        task = op.task
        if op.debt:
            self._push(self.now + op.debt, op)
            op.debt = 0.0
            return
        if op.held:
            first = next((self._ops[token] for token in op.held if token in self._ops), None)
            if first is not None:
                op.missing += 1
                first.then.append(op)
                return
        del self._ops[op.token]
        target = task.dst if isinstance(task, (Send, Chunk)) else op.place
        if isinstance(task, (Compute, Stage, Apply, Mix)):
            following = self._lanes.leave(op, lambda o: o.token in self._ops and o.place not in self._gone)
            if following is not None:
                self._begin(following)
        if target in self._gone or op.place in self._gone:
            self._release(op.then)
            return
        yield from self._finish(op, target)
        self._release(op.then)

    def _release(self, waiting: Iterable[Op]) -> None:
        """One thing less to wait for."""
        for op in waiting:
            op.missing -= 1
            if not op.missing and op.token in self._ops:
                if op.held and op.reads >= 0:
                    self._push(self.now, op)  # it had arrived and was held
                else:
                    self._start(op)

    def _finish(self, op: Op, target: PlaceName) -> Iterator[Event]:
        """Leave the result, write the row, and say what is reached."""
        task = op.task
        facts: Facts | None = None
        if isinstance(task, Evaluate):
            yield from self._evaluated(op, task)
            return
        if isinstance(task, Reduce) and op.token[-1] == "start":
            self._write(op, target)
            self.recorder.start(task, op.place, self.now, op.writes)
            return
        if not isinstance(task, (Cancel, Reduce)):
            self._write(op, target)
        if _takes_in(task) and task.round is not None:
            self._version[target] = task.round
        if isinstance(task, Cancel):
            applied = self._version.get(op.place, -1) >= task.of and (op.place, task.of) not in self._skipped
            facts = {"applied": (self.costs.worker(op.place),)} if applied else {}
        elif isinstance(task, (Compute, Stage)):
            facts = self.data.facts(task, op.value) if self.data else {"samples": self.costs.samples(task)}
        op.value = None
        times, stamps = (op.wanted, op.began, self.now), (op.reads, op.writes)
        self.recorder.task(task, op.place, op.cause, times, self.costs.nbytes(task), stamps, facts)
        if not isinstance(task, Reduce) or not any((task.key, place) in self._ops for place in task.group):
            if control := self.costs.control:
                self._push(self.now + control, Report(task.key, self.now, facts))
                return
            yield from self._joins.done(task.key, self.now, facts)

    def _evaluated(self, op: Op, task: Evaluate) -> Iterator[Event]:
        values = self._snapshots.get(task.key)
        if values is None:
            return  # its merge was cancelled
        values[op.place] = op.value
        self.recorder.task(task, op.place, op.cause, (op.wanted, op.began, self.now), 0, (op.reads, -1), None)
        if any((task.key, place) in self._ops for place in task.sources):
            return
        del self._snapshots[task.key]
        if self.data:
            for name, value in self.data.measure(task, values).items():
                yield Measured(name, value, -1 if task.round is None else task.round, self.now)

    # -- arrays ---------------------------------------------------------------------------------------------------

    def _stamp(self, place: PlaceName) -> int:
        count = self._seen.get(place, 0)
        self._seen[place] = count + 1
        return count

    def _read(self, op: Op, place: PlaceName) -> None:
        op.reads = self._stamp(place)
        if self.data:
            op.value = self.data.read(place, op.task)

    def _write(self, op: Op, place: PlaceName) -> None:
        op.writes = self._stamp(place)
        if self.data:
            self.data.write(place, op.task, op.value)

    def _drop(self, cancel: Cancel) -> None:
        """Forget what a place still had to do for a merge, and what others would send it."""
        self._joins.forget(cancel.of)
        dropped = [op for op in self._ops.values() if self._concerns(cancel, op)]
        for op in dropped:
            del self._ops[op.token]
            self._snapshots.pop(op.task.key, None)
            if _takes_in(op.task):
                self._skipped.add((getattr(op.task, "dst", op.place), cancel.of))
        for op in dropped:
            self._release(other for other in op.then if other.task.round != cancel.of)

    def _forget(self) -> None:
        """Drop what places that are gone had still to do, or would be sent; what runs there comes to its end."""
        lost = [
            op
            for op in self._ops.values()
            if (op.place in self._gone or getattr(op.task, "dst", None) in self._gone) and not self._lanes.runs(op)
        ]
        for op in lost:
            del self._ops[op.token]
        for op in lost:
            self._release(op.then)

    def _concerns(self, cancel: Cancel, op: Op) -> bool:
        """Whether an operation is dropped by a cancel: of its merge, to or from its place, and not being applied."""
        if op.task.round != cancel.of or isinstance(op.task, Cancel):
            return False
        if isinstance(op.task, (Apply, Mix)) and self._lanes.merging(op.place, cancel.of) is op:
            return False
        return cancel.at in (op.place, getattr(op.task, "dst", None))


def _takes_in(task: Task) -> bool:
    """Whether a place has a merge in its model once this is done there."""
    return isinstance(task, (Apply, Mix)) or (isinstance(task, Send) and task.item == "replica")

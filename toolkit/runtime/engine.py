"""The engine of virtual time: operations, the lanes they occupy, and a heap of what happens when.

The order is total, by (time, sequence). How operations share a host is told in :mod:`toolkit.runtime.lanes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

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
from toolkit.runtime.data import Data
from toolkit.runtime.graph import Graph
from toolkit.runtime.joins import Joins, Report
from toolkit.runtime.lanes import Op, Place, Places, takes_in
from toolkit.runtime.record import Recorder


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
        self._places = Places(costs)
        self._graph, self._joins = Graph(self._places), Joins()
        self._skipped: set[tuple[Place, int]] = set()  # merges that were cancelled there before they were applied
        self._snapshots: dict[Key, dict[PlaceName, Any]] = {}
        self._starts: dict[Any, Callable[[Op], None]] = {
            **dict.fromkeys((Send, Chunk), self._leave),
            **dict.fromkeys((Compute, Stage, Apply, Mix), self._queue),
            **dict.fromkeys((Reduce, Evaluate, Cancel), self._at_once),
        }
        self._ends: dict[Any, Callable[[Op], Sequence[Event]]] = {
            **dict.fromkeys((Compute, Stage), self._computed),
            **dict.fromkeys((Apply, Mix), self._merged),
            **{Send: self._arrived, Chunk: self._hopped, Reduce: self._reduced},
            **{Evaluate: self._evaluated, Cancel: self._cancelled},
        }
        for time, worker in joins:
            self._push(time, Joined(worker, time))
        for time, worker in leaves:
            self._push(time, Left(worker, time))

    def events(self) -> Iterator[Event]:
        """What happens, in order, until nothing more can."""
        heap, ends = self._heap, self._ends
        while heap:
            self.now, _, item = heappop(heap)
            if type(item) is Op:
                if not item.over:
                    reached = ends[type(item.task)](item)
                    if item.over:  # it was not put off
                        yield from reached
                        self._release(item.then)
            elif isinstance(item, Left):
                for name in self.costs.places_of(item.worker):
                    self._places[name].gone = True
                yield item
                self._forget()  # after the merges in which it took part have been cancelled
            elif isinstance(item, Report):
                yield from self._joins.done(*item)
            elif isinstance(item, Event):
                yield item

    def perform(self, tasks: Sequence[Task], cause: int) -> None:
        """Take up the tasks of a reply."""
        for done in self._joins.add([task for task in tasks if type(task) is Join], self.now):
            self._push(self.now, done)
        made: list[Op] = []
        for task in tasks:
            if type(task) is Evaluate:
                self._snapshots[task.key] = {}
                made += self._graph.read(task, cause)
            elif type(task) is Cancel:
                self._drop(task)
                (op,) = self._graph.add(task, cause)
                if (other := op.place.merging(task.of)) is not None:
                    self._graph.wait(op, other)
                made.append(op)
            elif type(task) is not Join:
                made += self._graph.add(task, cause)
        for op in made:
            if not op.missing and not op.over:
                self._start(op)

    # -- beginnings -----------------------------------------------------------------------------------------------

    def _push(self, time: float, item: Op | Event | Report) -> None:
        heappush(self._heap, (time, self._count, item))
        self._count += 1

    def _start(self, op: Op) -> None:
        """Everything an operation waited for is done."""
        op.wanted = self.now
        if op.place.gone:
            self._graph.remove(op)
        else:
            self._starts[type(op.task)](op)

    def _leave(self, op: Op) -> None:
        self._read(op)
        heappush(self._heap, (op.send(self.costs, self.now), self._count, op))
        self._count += 1

    def _queue(self, op: Op) -> None:
        if op.place.lanes.enter(op):
            self._begin(op)

    def _begin(self, op: Op) -> None:
        """The CPU takes up an operation."""
        op.began = self.now
        self._read(op)
        work = self.costs.work(op.task, self.now)
        if work and op.merges and (steps := op.place.lanes.steps):
            steps[0].debt += work  # what touches a model takes its time from the step that runs
        self._push(self.now + work, op)

    def _at_once(self, op: Op) -> None:
        op.began = self.now
        if isinstance(op.task, Evaluate):
            self._read(op)
        self._push(self.now, op)

    # -- ends: what is reached, if the operation is over and nobody who is gone took part -------------------------

    def _release(self, waiting: Iterable[Op]) -> None:
        """One thing less to wait for."""
        for op in waiting:
            op.missing -= 1
            if not op.missing and not op.over:
                if op.held and op.reads >= 0:
                    self._push(self.now, op)  # it had arrived and was held
                else:
                    self._start(op)

    def _arrived(self, op: Op) -> Sequence[Event]:
        self._graph.remove(op)
        if op.lost():
            return ()
        self._write(op)
        if op.task.round is not None and takes_in(op.task):
            op.target.version = op.task.round
        return self._done(op)

    def _hopped(self, op: Op) -> Sequence[Event]:
        """Another may have to be written at the target first."""
        if (first := next((other for other in op.held if not other.over), None)) is not None:
            self._graph.wait(op, first)
            return ()
        op.held = ()
        return self._arrived(op)

    def _computed(self, op: Op) -> Sequence[Event]:
        if op.debt:
            self._push(self.now + op.debt, op)
            op.debt = 0.0
            return ()
        self._vacate(op)
        if op.lost():
            return ()
        self._write(op)
        facts = self.data.facts(op.task, op.value) if self.data else {"samples": self.costs.samples(op.task)}
        return self._done(op, facts)

    def _merged(self, op: Op) -> Sequence[Event]:
        self._vacate(op)
        if op.lost():
            return ()
        self._write(op)
        if op.task.round is not None:
            op.target.version = op.task.round
        return self._done(op)

    def _vacate(self, op: Op) -> None:
        """The CPU takes up what waits for it."""
        self._graph.remove(op)
        if (following := op.place.lanes.leave(op)) is not None:
            self._begin(following)

    def _reduced(self, op: Op) -> Sequence[Event]:
        self._graph.remove(op)
        if op.lost():
            return ()
        if op.token[-1] == "start":
            self._write(op)
            self.recorder.start(op.task, op.place.name, self.now, op.writes)
            return ()
        return self._done(op)

    def _cancelled(self, op: Op) -> Sequence[Event]:
        self._graph.remove(op)
        if op.lost():
            return ()
        place, number = op.place, op.task.of
        applied = place.version >= number and (place, number) not in self._skipped
        return self._done(op, {"applied": (self.costs.worker(place.name),)} if applied else {})

    def _done(self, op: Op, facts: Facts | None = None) -> Sequence[Event]:
        """Write the row, and say what is reached once all places have done their part."""
        op.value = None
        times, stamps = (op.wanted, op.began, self.now), (op.reads, op.writes)
        self.recorder.task(op.task, op.place.name, op.cause, times, op.nbytes, stamps, facts)
        if op.parts:
            return ()
        if not self.costs.control:
            return self._joins.done(op.task.key, self.now, facts)
        self._push(self.now + self.costs.control, Report(op.task.key, self.now, facts))
        return ()

    def _evaluated(self, op: Op) -> Sequence[Event]:
        self._graph.remove(op)
        task, values = op.task, self._snapshots.get(op.task.key)
        if values is None or op.lost():
            return ()  # also if its merge was cancelled
        values[op.place.name] = op.value
        self.recorder.task(task, op.place.name, op.cause, (op.wanted, op.began, self.now), 0, (op.reads, -1), None)
        if op.parts:
            return ()
        del self._snapshots[task.key]
        measured = self.data.measure(task, values) if self.data else {}
        number = -1 if task.round is None else task.round
        return [Measured(name, value, number, self.now) for name, value in measured.items()]

    # -- arrays ---------------------------------------------------------------------------------------------------

    def _read(self, op: Op) -> None:
        op.reads = op.place.stamp()
        if self.data:
            op.value = self.data.read(op.place.name, op.task)

    def _write(self, op: Op) -> None:
        op.writes = op.target.stamp()
        if self.data:
            self.data.write(op.target.name, op.task, op.value)

    # -- losses ---------------------------------------------------------------------------------------------------

    def _drop(self, cancel: Cancel) -> None:
        """Forget what a place still had to do for a merge, and what others would send it, but not what runs."""
        self._joins.forget(cancel.of)
        concerned = self._graph.of_merge(cancel.of, self._places[cancel.at])
        dropped = [op for op in concerned if not (op.merges and op.place.merging(cancel.of) is op)]
        for op in dropped:
            self._graph.remove(op)
            self._snapshots.pop(op.task.key, None)
            if takes_in(op.task):
                self._skipped.add((op.target, cancel.of))
        for op in dropped:
            self._release(other for other in op.then if other.task.round != cancel.of)

    def _forget(self) -> None:
        """Drop what places that are gone had still to do, or would be sent; what runs there comes to its end."""
        lost = [op for op in self._graph.ops.values() if op.lost() and not op.place.lanes.runs(op)]
        for op in lost:
            self._graph.remove(op)
        for op in lost:
            self._release(op.then)

"""The coordinator as a runtime: tasks go out, one message per host and reply; what hosts report comes back as events.

All but :meth:`Coordinator.put` and :meth:`Coordinator.stop` runs in the thread that drives.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from toolkit.core.cluster import Home
from toolkit.core.messages import (
    Cancel,
    Done,
    Evaluate,
    Event,
    Facts,
    Join,
    Joined,
    Key,
    Left,
    PlaceName,
    Reduce,
    Task,
    Worker,
)
from toolkit.core.plain import plain
from toolkit.core.records import replace
from toolkit.runtime.cluster.pending import Pending, concerned, lost, overdue
from toolkit.runtime.collective import chunk
from toolkit.runtime.joins import Joins, unite
from toolkit.runtime.record import Recorder

Post = Callable[[dict[PlaceName, dict[str, Any]]], Any]
Measure = Callable[[Evaluate, Mapping[PlaceName, Any]], Any]


class Coordinator:
    """Performs tasks by asking the hosts of a cluster.

    Parameters
    ----------
    homes : {place: Home}
    hosts : {place: host}
    recorder : Recorder
    post : {host: message} -> None
        Sends them, from any thread.
    measure : (task, values) -> None
        Measures a model somewhere else and puts the result back.
    on_loss : {"stop", "continue"}
    deadline : float [s]
    """

    def __init__(
        self,
        homes: Mapping[PlaceName, Home],
        hosts: Mapping[PlaceName, PlaceName],
        recorder: Recorder,
        post: Post,
        measure: Measure,
        on_loss: str,
        deadline: float,
    ) -> None:
        self.homes, self.hosts, self.recorder = homes, hosts, recorder
        self.on_loss, self.deadline = on_loss, deadline
        self.gone: set[PlaceName] = set()  # places
        self.origin, self.merged = time.monotonic(), 0
        self._post, self._measure = post, measure
        self._reports: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._under_way: dict[Key, Pending] = {}
        self._past: dict[Key, Pending] = {}  # cancelled or measured; some of it may yet be reported
        self._measuring = 0
        self._joins = Joins()
        self._latest = 0.0
        self._stopped = False

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.origin

    def put(self, kind: str, item: Any) -> None:
        """Hand over what a host reports, from any thread."""
        self._reports.put((kind, item))

    def stop(self) -> None:
        """End the events, from any thread."""
        self._stopped = True
        self._reports.put(("stop", None))

    # -- tasks --------------------------------------------------------------------------------------------------------

    def perform(self, tasks: Sequence[Task], cause: int) -> None:
        """Send the tasks of a reply to the hosts they concern."""
        for done in self._joins.add([task for task in tasks if isinstance(task, Join)], self._latest):
            self.put("event", done)
        letters: dict[PlaceName, list[Any]] = {}
        for task in tasks:
            if isinstance(task, Join):
                continue
            places, reporting = concerned(task)
            if here := set(reporting) - self.gone:
                self._under_way[task.key] = Pending(task, cause, here)
            if isinstance(task, Cancel):
                self._cancel(task)
            words = plain(task)
            for host in dict.fromkeys(self.hosts.get(place, place) for place in places if place not in self.gone):
                letters.setdefault(host, []).append(words)
        if letters:
            self._post({host: {"op": "tasks", "tasks": words} for host, words in letters.items()})

    def _cancel(self, cancel: Cancel) -> None:
        self._joins.forget(cancel.of)
        for key, pending in list(self._under_way.items()):
            if pending.task.round == cancel.of and not isinstance(pending.task, (Cancel, Evaluate)):
                self._past[key] = self._under_way.pop(key)

    # -- events -------------------------------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        """What happens, in order, until nothing is under way, or the run is stopped."""
        for worker in sorted({home.worker for home in self.homes.values() if home.worker is not None}):
            yield Joined(worker, 0.0)
        while not self._stopped and (self._under_way or self._measuring or not self._reports.empty()):
            try:
                kind, item = self._reports.get(timeout=self.deadline)
            except queue.Empty:
                raise overdue(self._under_way.values(), self.homes, self.deadline, self.merged) from None
            match kind:
                case "rows":
                    for row in item:
                        yield from self._row(row)
                case "event":
                    yield self._timed(item)
                case "measured":
                    self._measuring -= 1
                    yield from map(self._timed, item)
                case "model":
                    self._model(*item)
                case "lost":
                    yield from self._lost(*item)
                case "failed":
                    raise item

    def _timed(self, event: Any) -> Event:
        """Events rise in order of time."""
        self.merged += isinstance(event, Done) and event.task.key[0] == "merged"
        self._latest = max(self._latest, event.time)
        late: Event = event if event.time == self._latest else replace(event, time=self._latest)
        return late

    def _row(self, row: tuple[Any, ...]) -> Iterator[Event]:
        """What a host did."""
        kind, key, place, *rest = row
        pending = self._under_way.get(key) or self._past.get(key)
        if pending is None:
            return
        task = pending.task
        if kind == "start":
            assert isinstance(task, Reduce)
            self.recorder.start(task, place, *rest)
        elif kind == "hop":
            assert isinstance(task, Reduce)
            part, (times, nbytes, stamps) = chunk(task, place), rest
            self.recorder.task(part, part.src, pending.cause, times, nbytes, stamps, None)
        else:
            times, nbytes, stamps, facts = rest
            self.recorder.task(task, place, pending.cause, times, nbytes, stamps, facts)
            if not isinstance(task, Evaluate):
                yield from self._performed(pending, place, times[2], facts)

    def _performed(self, pending: Pending, place: PlaceName, time: float, facts: Facts | None) -> Iterator[Event]:
        key = pending.task.key
        pending.places.discard(place)
        if facts:
            unite(pending.facts, facts)
        if not pending.places and key in self._under_way:
            del self._under_way[key]
            for done in self._joins.done(key, time, pending.facts):
                yield self._timed(done)

    def _model(self, key: Key, place: PlaceName, value: Any) -> None:
        """The model as it was read at one place for an evaluation."""
        pending = self._under_way.get(key)
        if pending is not None:
            pending.values[place] = value
            pending.places.discard(place)
            self._evaluated(pending)

    def _evaluated(self, pending: Pending) -> None:
        if not pending.places:
            self._past[pending.task.key] = self._under_way.pop(pending.task.key)
            self._measuring += 1
            assert isinstance(pending.task, Evaluate)
            self._measure(pending.task, pending.values)

    def drain(self) -> None:
        """Record what was still reported after the last event."""
        while not self._reports.empty():
            kind, item = self._reports.get()
            if kind == "rows":
                for row in item:
                    list(self._row(row))

    # -- losses -------------------------------------------------------------------------------------------------------

    def _lost(self, host: PlaceName, reason: str) -> Iterator[Event]:
        """A host is gone, and with it all places of the workers who lived there."""
        held = [p for p in self.homes if self.hosts.get(p, p) == host and p not in self.gone]
        servers = [p for p in held if self.homes[p].worker is None]
        workers = sorted({w for p in held if (w := self.homes[p].worker) is not None})
        rest = {h.worker for p, h in self.homes.items() if p not in self.gone} - {None, *workers}
        if self.on_loss != "continue" or servers or not rest:
            raise lost(host, reason, workers, servers, self.merged, self.on_loss)
        yield from self._leave(workers)

    def _leave(self, workers: list[Worker]) -> Iterator[Event]:
        now = self.now()
        left = {p for p, home in self.homes.items() if home.worker in workers}
        self.gone |= left
        for key, pending in list(self._under_way.items()):
            pending.places -= left
            if isinstance(pending.task, Evaluate):
                self._evaluated(pending)
            elif not pending.places or left & set(concerned(pending.task)[0]):
                self._past[key] = self._under_way.pop(key)
        self._post({host: {"op": "gone", "places": list(left)} for host in self.hosts.values()})
        for worker in workers:
            yield self._timed(Left(worker, now))

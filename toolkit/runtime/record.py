"""From what a runtime performs and what a strategy says to the rows of a trace."""

from __future__ import annotations

import math

from toolkit.core.messages import (
    Apply,
    Cancel,
    Chunk,
    Committed,
    Compute,
    Done,
    Evaluate,
    Event,
    Facts,
    Finished,
    Joined,
    Key,
    Left,
    Measured,
    Mix,
    PlaceName,
    Ready,
    Reduce,
    Send,
    Stage,
    Task,
    Worker,
)
from toolkit.trace import Row, Trace, happened

_KINDS = {
    Compute: "compute",
    Stage: "stage",
    Send: "send",
    Chunk: "hop",
    Reduce: "reduce",
    Apply: "apply",
    Mix: "mix",
    Evaluate: "evaluate",
    Cancel: "cancel",
}


class Recorder:
    """Writes a row per performed task and per event into a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._ready: dict[Worker, tuple[int, int]] = {}  # clock and samples of the update that is ready
        self._round: int | None = None  # of the merge that is done
        self._starts: dict[tuple[Key, PlaceName], tuple[float, int]] = {}

    def start(self, task: Reduce, place: PlaceName, time: float, stamp: int) -> None:
        """A member of a collective has put its own part into the sum, at `time`, as write number `stamp`."""
        self._starts[task.key, place] = (time, stamp)

    def task(
        self,
        task: Task,
        place: PlaceName,
        cause: int,
        times: tuple[float, float, float],
        nbytes: float,
        stamps: tuple[int, int],
        facts: Facts | None,
    ) -> None:
        """The row of a task: `times` it was wanted, begun and ended; `stamps` of its read and its write."""
        key, peer, worker, clock = task.key, None, None, None
        if isinstance(task, (Send, Chunk)):
            peer = task.dst
        if task.round is None and len(key) > 2 and key[0] != "welcome":
            worker, clock = key[1], key[2]
        elif isinstance(place, int):
            worker = place
        if isinstance(task, Reduce):
            began, stamp = self._starts.pop((key, place), (times[1], -1))
            times, stamps = (began, began, times[2]), (-1, stamp)
        known = facts or {}
        self.trace.append(
            Row(
                _KINDS[type(task)],
                key,
                *times,
                worker,  # type: ignore[arg-type]
                clock,  # type: ignore[arg-type]
                task.round,
                place,
                peer,
                nbytes,
                None,
                known.get("samples", 0),
                cause,
                *stamps,
                known.get("loss", math.nan),
            )
        )

    def event(self, event: Event) -> int:
        """The row of an event that left the top of the strategy."""
        match event:
            case Joined(worker, time) | Left(worker, time) | Finished(worker, time):
                kind = type(event).__name__.lower()
                return self.trace.append(happened(kind, (kind, worker), time, worker=worker))
            case Ready(worker, time, stale):
                clock, samples = self._ready.get(worker, (0, 0))
                key: Key = ("ready", worker, clock)
                return self.trace.append(
                    happened("ready", key, time, worker=worker, clock=clock, stale=stale, samples=samples)
                )
            case Committed(group, time):
                return self.trace.append(happened("committed", ("committed", *sorted(group)), time, round=self._round))
            case Measured(name, _, number, time):
                return self.trace.append(happened("measured", ("measured", name), time, round=number))
            case Done(task, time, facts):
                if task.key[0] == "ready":
                    self._ready[task.about[0]] = (int(task.key[2]), facts.get("samples", 0))
                self._round = task.round
                return self.trace.append(
                    happened("done", task.key, time, round=task.round, samples=facts.get("samples", 0))
                )
        raise TypeError(f"{event!r} has no row. Only the events of the vocabulary are recorded. Use one of them.")

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
from toolkit.trace import Trace

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
        self._rows = trace.rows
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
        kind, key = _KINDS[type(task)], task.key
        worker, clock = place if type(place) is int else None, None
        if task.round is None and len(key) > 2 and key[0] != "welcome":
            worker, clock = key[1], key[2]  # type: ignore[assignment]
        peer = task.dst if kind in ("send", "hop") else None  # type: ignore[attr-defined]
        wanted, began, ended = times
        reads, writes = stamps
        if kind == "reduce":
            wanted, writes = self._starts.pop((key, place), (began, -1))
            began, reads = wanted, -1
        samples, loss = (facts.get("samples", 0), facts.get("loss", math.nan)) if facts else (0, math.nan)
        self._rows.append(
            (
                kind,
                key,
                wanted,
                began,
                ended,
                worker,
                clock,
                task.round,
                place,
                peer,
                nbytes,
                None,
                samples,
                cause,
                reads,
                writes,
                loss,
            )
        )

    def event(self, event: Event) -> int:
        """The row of an event that left the top of the strategy."""
        if type(event) is Done:
            samples = event.facts.get("samples", 0)
            if event.task.key[0] == "ready":
                self._ready[event.task.about[0]] = (int(event.task.key[2]), samples)
            self._round = event.task.round
            return self._happened("done", event.task.key, event.time, round=event.task.round, samples=samples)
        if type(event) is Ready:
            clock, samples = self._ready.get(event.worker, (0, 0))
            key: Key = ("ready", event.worker, clock)
            return self._happened("ready", key, event.time, event.worker, clock, None, event.stale, samples)
        if type(event) is Committed:
            key = ("committed", *sorted(event.group))
            return self._happened("committed", key, event.time, round=self._round)
        match event:
            case Joined(worker, time) | Left(worker, time) | Finished(worker, time):
                name = type(event).__name__.lower()
                return self._happened(name, (name, worker), time, worker)
            case Measured(name, _, number, time):
                return self._happened("measured", ("measured", name), time, round=number)
        raise TypeError(f"{event!r} has no row. Only the events of the vocabulary are recorded. Use one of them.")

    def _happened(
        self,
        kind: str,
        key: Key,
        time: float,
        worker: Worker | None = None,
        clock: int | None = None,
        round: int | None = None,
        stale: int | None = None,
        samples: int = 0,
    ) -> int:
        rows = self._rows
        rows.append(
            (kind, key, time, time, time, worker, clock, round, None, None, 0.0, stale, samples, -1, -1, -1, math.nan)
        )
        return len(rows) - 1

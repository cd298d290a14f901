"""What a run has achieved so far, gathered from its events."""

from __future__ import annotations

from immutables import Map

from toolkit.core.messages import Committed, Done, Event, Finished, Joined, Left, Measured, Ready, Worker
from toolkit.core.records import Record, field, replace


class Tally(Record):
    """Time, updates, samples and metrics of a run, gathered from its events.

    Attributes
    ----------
    time : float [s]
    updates : int
        Merges.
    samples : int [rows]
        Rows whose updates are in the model.
    iterations : int
        Of all workers together; also those whose updates are not merged, or not yet.
    joined, active : int [workers]
        How many have ever joined, and how many of them neither left nor are finished.
    metrics : Map of name to the last measured value
    """

    rows: int = 0
    time: float = 0.0
    updates: int = 0
    samples: int = 0
    iterations: int = 0
    joined: int = 0
    active: int = 0
    metrics: Map[str, float] = field(default_factory=Map)
    pending: Map[Worker, int] = field(default_factory=Map)
    finished: Map[Worker, bool] = field(default_factory=Map)

    @property
    def over(self) -> bool:
        """Whether there were workers and none of them is active any more."""
        return self.joined > 0 and self.active == 0

    def observe(self, event: Event) -> Tally:
        """The tally after an event."""
        if type(event) is Ready:  # the Done before it said the same
            return self if event.time <= self.time else replace(self, time=event.time)
        time = max(self.time, getattr(event, "time", self.time))
        match event:
            case Done(task, _, facts):
                if task.key[0] == "ready":
                    pending = self.pending.set(task.about[0], facts.get("samples", 1))
                    return replace(self, time=time, iterations=self.iterations + 1, pending=pending)
            case Committed(group) if group:
                rows = sum([self.pending.get(worker, 0) for worker in group])
                return replace(self, time=time, updates=self.updates + 1, samples=self.samples + rows)
            case Joined():
                return replace(self, time=time, active=self.active + 1, joined=self.joined + 1)
            case Finished(worker):
                return replace(self, time=time, active=self.active - 1, finished=self.finished.set(worker, True))
            case Left(worker) if worker not in self.finished:
                return replace(self, time=time, active=self.active - 1)
            case Measured(name, value):
                return replace(self, time=time, metrics=self.metrics.set(name, value))
        return self if time == self.time else replace(self, time=time)

"""What a run has achieved so far, gathered from its events."""

from __future__ import annotations

from dataclasses import field

from immutables import Map

from toolkit.core.messages import Committed, Done, Event, Finished, Joined, Left, Measured, Worker, message


@message
class Tally:
    """Time, updates, samples and metrics of a run, gathered from its events.

    Attributes
    ----------
    time : float [s]
    updates : int
        Merges.
    samples : int [rows]
        Rows whose updates are in the model.
    metrics : Map of name to the last measured value
    """

    rows: int = 0
    time: float = 0.0
    updates: int = 0
    samples: int = 0
    active: int = 0
    joined: bool = False
    metrics: Map[str, float] = field(default_factory=Map)
    pending: Map[Worker, int] = field(default_factory=Map)

    def observe(self, event: Event) -> Tally:
        """The tally after an event."""
        time = max(self.time, getattr(event, "time", self.time))
        updates, samples, active, metrics, pending = self.updates, self.samples, self.active, self.metrics, self.pending
        match event:
            case Joined():
                active += 1
            case Left() | Finished():
                active -= 1
            case Done(task, _, facts) if task.key[0] == "ready":
                pending = pending.set(task.about[0], facts.get("samples", 1))
            case Committed(group) if group:
                updates += 1
                samples += sum(pending.get(worker, 0) for worker in group)
            case Measured(name, value):
                metrics = metrics.set(name, value)
            case _:
                return (
                    self
                    if time == self.time
                    else Tally(self.rows, time, updates, samples, active, self.joined, metrics, pending)
                )
        return Tally(self.rows, time, updates, samples, active, self.joined or active > 0, metrics, pending)

"""The only loop: feed a runtime's events to a strategy and let it perform the tasks that come back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolkit.core.cluster import Cluster
from toolkit.core.conditions import Condition
from toolkit.core.errors import Diverged
from toolkit.core.messages import RISING, Done, Event, Facts, Measured, Ready, Task
from toolkit.core.strategy import Strategy
from toolkit.core.tally import Tally
from toolkit.runtime.record import Recorder


class Runtime(Protocol):
    """Something that performs tasks, in virtual time or for real."""

    def perform(self, tasks: Sequence[Task], cause: int) -> None:
        """Begin each task once everything in its `after` is done; `cause` is the event's row."""
        ...

    def events(self) -> Iterator[Event]:
        """What happens, in order."""
        ...


@dataclass
class Drive:
    """A run under way: what it was told so far and what it has achieved.

    `log` holds the runtime's events, from which everything else follows.
    """

    strategy: Strategy
    cluster: Cluster
    recorder: Recorder
    until: Condition
    watch: Callable[[Tally], bool] = lambda tally: True

    def __post_init__(self) -> None:
        self.log: list[Event] = []
        self.measured: list[tuple[Measured, int]] = []  # with the samples merged by then
        self.tally = Tally(rows=self.cluster.rows)
        self.status = "running"
        self._state: Any = self.strategy.init(self.cluster)

    def run(self, runtime: Runtime) -> None:
        """Until the condition holds, the watcher says stop, or nothing more happens."""
        for event in runtime.events():
            tasks, cause = self.feed(event)
            runtime.perform(tasks, cause)
            if self.until.reached(self.tally):
                self.status = "finished"
                return
            if not self.watch(self.tally):
                self.status = "stopped"
                return
        self.status = "idle"

    def feed(self, event: Event) -> tuple[list[Task], int]:
        """One event through the strategy: the tasks it asks for, and the row of the event."""
        self.log.append(event)
        self._state, replies = self.strategy.step(self._state, event)
        tasks: list[Task] = []
        cause = -1
        reply: Any
        for reply in replies:
            if not RISING[type(reply)]:
                tasks.append(reply)
            else:
                self.tally = self.tally.observe(reply)
                row = self.recorder.event(reply)
                cause = row if reply is event else cause
                if type(reply) is Measured:
                    self.measured.append((reply, self.tally.samples))
                elif type(reply) is Ready and type(event) is Done:
                    healthy(reply, event.facts)
        return tasks, cause


def healthy(ready: Ready, facts: Facts) -> None:
    """Refuse an update that is not finite."""
    loss, norm = facts.get("loss", 0.0), facts.get("norm", 0.0)
    if not math.isfinite(norm) or (facts.get("samples", 1) and not math.isfinite(loss)):
        clock = facts.get("clock", "")
        raise Diverged(
            f"The update of worker {ready.worker} in its iteration {clock} is not finite: "
            f"loss {loss}, norm {norm}, staleness {ready.stale}. "
            f"Training has diverged, and merging it would spoil the model. "
            f"Use a smaller learning rate, scaling='mean', or a bound on staleness."
        )

"""Who is here, how far each has come, who waits: the bookkeeping that policies and exchanges share.

Immutable records, not base classes. Every update costs at most O(log n) in the number of workers, amortised.
"""

from __future__ import annotations

from collections.abc import Iterable

from immutables import Map

from toolkit.core.messages import Committed, Event, Finished, Joined, Left, Worker
from toolkit.core.records import Record, field, replace


class Progress(Record):
    """What a policy knows of its workers.

    Attributes
    ----------
    clock : Map of worker to updates
        How many of its updates are in the model. A newcomer starts at the slowest clock.
    waiting : Map of worker to clock
        Workers that have not been released since their last update.
    slowest, highest : int [updates]
        The smallest and the largest clock.
    """

    clock: Map[Worker, int] = field(default_factory=Map)
    waiting: Map[Worker, int] = field(default_factory=Map)
    slowest: int = 0
    highest: int = 0
    at: Map[int, int] = field(default_factory=Map)  # clock -> number of workers at it

    def observe(self, event: Event) -> Progress:
        """The progress after an event."""
        match event:
            case Committed(group):
                return self._advance(group)
            case Joined(worker) if worker not in self.clock:
                clock = self.slowest
                return replace(
                    self,
                    clock=self.clock.set(worker, clock),
                    waiting=self.waiting.set(worker, clock),
                    at=self.at.set(clock, self.at.get(clock, 0) + 1),
                )
            case Left(worker) | Finished(worker) if worker in self.clock:
                return self._without(worker)
        return self

    def _advance(self, group: Iterable[Worker]) -> Progress:
        clock, waiting, at, highest = self.clock, self.waiting, self.at, self.highest
        for worker in group:
            if worker in clock:
                old = clock[worker]
                clock, waiting = clock.set(worker, old + 1), waiting.set(worker, old + 1)
                left = at[old] - 1
                at = at.set(old, left) if left else at.delete(old)
                at = at.set(old + 1, at.get(old + 1, 0) + 1)
                highest = max(highest, old + 1)
        slowest = self.slowest
        while at and slowest not in at:
            slowest += 1
        return replace(self, clock=clock, waiting=waiting, slowest=slowest, highest=highest, at=at)

    def _without(self, worker: Worker) -> Progress:
        old = self.clock[worker]
        left = self.at[old] - 1
        at = self.at.set(old, left) if left else self.at.delete(old)
        waiting = self.waiting.delete(worker) if worker in self.waiting else self.waiting
        ends = at if not left and old in (self.slowest, self.highest) else None
        return replace(
            self,
            clock=self.clock.delete(worker),
            waiting=waiting,
            at=at,
            slowest=min(ends, default=self.slowest) if ends is not None else self.slowest,
            highest=max(ends, default=self.highest) if ends is not None else self.highest,
        )

    @property
    def count(self) -> int:
        """Number of workers."""
        return len(self.clock)

    def lead(self, worker: Worker) -> int:
        """How many updates `worker` is ahead of the slowest."""
        return int(self.clock[worker]) - self.slowest

    @property
    def fastest(self) -> frozenset[Worker]:
        """The workers with the largest clock."""
        return frozenset(worker for worker, clock in self.clock.items() if clock == self.highest)

    def wait(self, worker: Worker) -> Progress:
        """The same with `worker` among the waiting (its update was dropped)."""
        return replace(self, waiting=self.waiting.set(worker, self.clock[worker])) if worker in self.clock else self

    def release(self, workers: Iterable[Worker]) -> Progress:
        """The same without `workers` among the waiting."""
        waiting = self.waiting
        for worker in workers:
            waiting = waiting.delete(worker)
        return replace(self, waiting=waiting)

    def moved(self, before: Progress) -> bool:
        """Whether the slowest or highest clock or the membership changed: then a waiting worker may go on."""
        return (self.slowest, self.highest, self.count) != (before.slowest, before.highest, before.count)

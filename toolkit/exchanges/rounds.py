"""The names of iterations and merges, and what an exchange remembers of them."""

from __future__ import annotations

from collections.abc import Sequence

from immutables import Map

from toolkit.core.cluster import Cluster
from toolkit.core.messages import PlaceName, Worker
from toolkit.core.records import Record, field, replace


class Merge(Record):
    """One merge: which updates it takes, and all that its tasks need to say of them.

    `weights` are the rows behind each update; `staleness` counts the merges between each pull and this one; `samples`
    is the number of rows merged before; `live` are the workers present, `guests` those of them that still wait for a
    replica; `applied` the places known to have it already.
    """

    round: int
    group: tuple[Worker, ...]
    clocks: tuple[int, ...]
    weights: tuple[float, ...]
    staleness: tuple[int, ...]
    samples: int
    live: Map[Worker, bool]
    applied: tuple[PlaceName, ...] = ()
    guests: tuple[Worker, ...] = ()

    @property
    def share(self) -> float:
        """The part of the live workers that the group makes up."""
        return len(self.group) / max(1, len(self.live))

    def over(self, workers: Sequence[Worker], round: int, live: Map[Worker, bool]) -> Merge:
        """The same merge over some of its group, under a new number."""
        kept = [i for i, worker in enumerate(self.group) if worker in workers]
        return replace(
            self,
            round=round,
            group=tuple(self.group[i] for i in kept),
            clocks=tuple(self.clocks[i] for i in kept),
            weights=tuple(self.weights[i] for i in kept),
            staleness=tuple(self.staleness[i] for i in kept),
            live=live,
        )


class Rounds(Record):
    """The names of iterations and merges, and the model version from which each worker started."""

    cluster: Cluster
    live: Map[Worker, bool] = field(default_factory=Map)
    clock: Map[Worker, int] = field(default_factory=Map)  # iterations started
    pulled: Map[Worker, int] = field(default_factory=Map)  # merges done when it started
    rows: Map[Worker, float] = field(default_factory=Map)  # behind the update that is ready
    finished: Map[Worker, bool] = field(default_factory=Map)
    flight: Map[int, Merge] = field(default_factory=Map)
    busy: Map[Worker, int] = field(default_factory=Map)  # worker -> the merge under way that needs it alone
    needed: Map[int, tuple[Worker, ...]] = field(default_factory=Map)  # merge under way -> whom it needs alone, if any
    held: tuple[frozenset[Worker], ...] = ()  # groups that wait for a busy worker
    #: merge -> where it was applied, if known
    cancelled: Map[int, tuple[PlaceName, ...] | None] = field(default_factory=Map)
    #: newcomer -> who sends it a replica (itself: not asked yet)
    guests: Map[Worker, Worker] = field(default_factory=Map)
    issued: int = 0
    merged: int = 0
    samples: int = 0
    time: float = 0.0  # of the latest event

    def start(self, workers: Sequence[Worker]) -> Rounds:
        """After these have begun an iteration."""
        clock, pulled = self.clock, self.pulled
        for worker in workers:
            clock, pulled = clock.set(worker, clock.get(worker, 0) + 1), pulled.set(worker, self.merged)
        return replace(self, clock=clock, pulled=pulled) if workers else self

    def stale(self, worker: Worker) -> int:
        """Merges issued since the worker's parameters were read."""
        return self.issued - int(self.pulled[worker])

    def exhausted(self, worker: Worker) -> bool:
        """Whether a worker has run its budget, or found no row left."""
        budget = self.cluster.budget.get(worker)
        return (budget is not None and self.clock.get(worker, 0) >= budget) or self.rows.get(worker) == 0

    def merge(self, group: Sequence[Worker]) -> Merge:
        """The next merge."""
        return Merge(
            self.issued,
            tuple(group),
            tuple([self.clock[worker] for worker in group]),
            tuple([self.rows[worker] for worker in group]),
            tuple([self.issued - self.pulled[worker] for worker in group]),
            self.samples,
            self.live,
            guests=tuple(self.guests) if self.guests else (),
        )

    def issue(self, merge: Merge, alone: Sequence[Worker] = ()) -> Rounds:
        """After a merge was asked for that needs these workers alone."""
        return replace(
            self,
            issued=self.issued + 1,
            samples=self.samples + int(sum(merge.weights)),
            flight=self.flight.set(merge.round, merge),
            busy=self.busy.update(dict.fromkeys(alone, merge.round)) if alone else self.busy,
            needed=self.needed.set(merge.round, tuple(alone)) if alone else self.needed,
        )

    def end(self, number: int) -> Rounds:
        """After a merge is in, or was cancelled."""
        busy, needed = self.busy, self.needed
        if number in needed:
            for worker in needed[number]:
                busy = busy.delete(worker)
            needed = needed.delete(number)
        return replace(self, merged=self.merged + 1, flight=self.flight.delete(number), busy=busy, needed=needed)

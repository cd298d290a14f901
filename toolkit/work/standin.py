"""A run without its arrays: what would happen to them, in order, before any of them is computed.

A stand-in takes the place of the arrays while a strategy runs in virtual time. It follows which version of the model,
which update and which state lie where, and writes down the pulls, steps and merges that make them. Where it cannot
promise that performing these one after the other gives what the places would hold, it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.core.errors import Refused
from toolkit.core.messages import (
    Apply,
    Chunk,
    Compute,
    Evaluate,
    Facts,
    Key,
    PlaceName,
    Reduce,
    Send,
    Span,
    Task,
    Worker,
)
from toolkit.place import Setup, sources
from toolkit.work.learners import learner
from toolkit.work.rows import dealt
from toolkit.work.schedule import Copy, Entry, Evaluation, Look, Merged, Pull, Schedule, Step
from toolkit.work.unknown import Unknown, number


class Uncovered(Refused):
    """A run that is more than pulls, steps and merges."""


class StandIn:
    """Stands in for the arrays of a run and writes down what happens to them.

    Parameters
    ----------
    setup : Setup

    Attributes
    ----------
    schedule : Schedule
        What has happened so far.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, homes = setup, setup.cluster.homes
        self.stateful = bool(learner(setup).vector.local_size)  # batch-norm statistics that stay with the workers
        self.schedule = Schedule(sorted({home.span for home in homes.values() if home.model}))
        self._metrics = ("loss", *setup.problem.metrics)
        self._versions = dict.fromkeys(self.schedule.shards, 0)  # merges into each shard
        self._held = {name: 0 for name, home in homes.items() if home.model and home.worker is not None}  # by replicas
        self._latest: dict[Span, Any] = {}  # the latest merge into each shard
        self._computing: set[Worker] = set()
        self._stepped: set[Worker] = set()
        self._spoiled: set[Worker] = set()  # whose state was replaced under a step that will replace it again
        self._updates: dict[Worker, int] = {}  # worker -> iteration of its update
        self._rows: dict[Worker, int] = {}
        self._coming: dict[Worker, int] = {}  # pulls under way
        self._covered: dict[Worker, int] = {}  # values pulled since the last step
        self._inbox: dict[tuple[PlaceName, Worker], tuple[int, int]] = {}  # -> iteration and values that arrived

    # -- as the arrays of a run -------------------------------------------------------------------------------------

    def read(self, name: PlaceName, task: Task) -> Any:
        """Note what a task takes from a place."""
        if getattr(task, "codec", None) is not None:
            raise uncovered(task)
        match task:
            case Compute(forward=False):
                return self._begun(name, task)
            case Send(item="params", part=part):
                return self._pulled(name, task, part)
            case Send(item="update"):
                return self._updates.get(self._worker(name, task), -1)
            case Send(item="replica"):
                return self._held_by(name, task), self._updates.get(self._worker(name, task), -1)
            case Evaluate():
                return self._look(name, task)
            case Apply() | Chunk():
                return None
        raise uncovered(task)

    def write(self, name: PlaceName, task: Task, value: Any) -> None:
        """Note what a task leaves at a place."""
        match task:
            case Compute():
                self._computed(self._worker(name, task), task, value)
            case Send(item="params"):
                self._coming[self._worker(name, task)] -= 1
            case Send(item="update", src=source, part=(start, stop)):
                place = name, self._worker(source, task)
                iteration, values = self._inbox.get(place, (-1, 0))
                self._inbox[place] = value, (values if iteration == value else 0) + stop - start
            case Send(item="replica", src=source):
                self._refreshed(name, task, source, *value)
            case Apply():
                self._applied(name, task)
            case Reduce(codec=codec) if codec is not None:
                raise uncovered(task)

    def facts(self, task: Task, value: Any) -> Facts:
        """What is reported of a computation, its numbers unknown."""
        return dict(value)

    def measure(self, task: Evaluate | None, values: Mapping[PlaceName, Look]) -> dict[str, float]:
        """The metrics of what was looked at, unknown."""
        numbers = {name: self._unknown() for name in self._metrics}
        self._note(Evaluation(tuple(values.values()), tuple(map(number, numbers.values()))))
        return {**numbers}

    def looks(self) -> dict[PlaceName, Look]:
        """Look at all places that hold the model now."""
        homes = self.setup.cluster.homes
        key: Key = ("evaluate",)
        held = sources(homes, self.setup.cluster.workers, self.stateful)
        return {name: self._look(name, Evaluate(key, name, ())) for name in held}

    # -- what is followed -------------------------------------------------------------------------------------------

    def _unknown(self) -> Unknown:
        self.schedule.count += 1
        return Unknown(self.schedule.count - 1)

    def _note(self, entry: Entry) -> None:
        self.schedule.entries.append(entry)

    def _worker(self, name: PlaceName, task: Task) -> Worker:
        home = self.setup.cluster.homes.get(name)
        if home is None or home.role != "worker" or home.worker is None:
            raise uncovered(task)
        return home.worker

    def _held_by(self, name: PlaceName, task: Task) -> int:
        """The version of the model at a replica, which is the latest."""
        (span,) = self.schedule.shards
        if self._held[name] != self._versions[span]:
            raise uncovered(task)
        return self._held[name]

    def _begun(self, name: PlaceName, task: Compute) -> dict[str, Any]:
        worker = self._worker(name, task)
        if name in self._held:
            self._held_by(name, task)
            self._note(Pull(worker, self.schedule.shards[0]))
        elif self._coming.get(worker) or self._covered.pop(worker, 0) != self.setup.cluster.layout.size:
            raise uncovered(task)
        if worker in self._computing:
            raise uncovered(task)
        self._computing.add(worker)
        rows = sum(ticket.count for ticket in task.tickets)
        loss, norm = (self._unknown(), self._unknown()) if rows else (0.0, 0.0)
        return {"samples": rows, "loss": loss, "norm": norm, "clock": int(task.key[2])}

    def _computed(self, worker: Worker, task: Compute, facts: Facts) -> None:
        rows, seen, clock = facts["samples"], dealt(self.setup, task.tickets[0]), facts["clock"]
        steps = [(i, ticket) for i, ticket in enumerate(task.tickets) if ticket.count]
        for n, (i, ticket) in enumerate(steps):
            numbers, last = (number(facts["loss"]), number(facts["norm"])), n == len(steps) - 1
            fresh, key = worker not in self._stepped, (worker, clock, i)
            self._stepped.add(worker)
            self._note(Step(worker, ticket, key, seen, n == 0, last, fresh, numbers, ticket.count / rows))
            seen += ticket.count
        self._computing.discard(worker)
        self._spoiled.discard(worker)
        self._updates[worker], self._rows[worker] = clock, self._rows.get(worker, 0) + rows

    def _pulled(self, name: PlaceName, task: Send, part: Span) -> None:
        worker, home = self._worker(task.dst, task), self.setup.cluster.homes[name]
        inside = home.span[0] <= part[0] and part[1] <= home.span[1]
        if worker in self._computing or home.role != "server" or not inside:
            raise uncovered(task)
        self._coming[worker] = self._coming.get(worker, 0) + 1
        self._covered[worker] = self._covered.get(worker, 0) + part[1] - part[0]
        self._note(Pull(worker, part))

    def _refreshed(self, name: PlaceName, task: Send, source: PlaceName, version: int, iteration: int) -> None:
        worker, other = self._worker(name, task), self._worker(source, task)
        self._held[name] = version
        if not (self.stateful or self.setup.local):
            return
        if self._updates.get(other, -1) != iteration or other not in self._stepped:  # it has stepped on meanwhile
            raise uncovered(task)
        if worker in self._computing:
            self._spoiled.add(worker)  # the step began with the old state and will leave its own
        else:
            self._stepped.add(worker)
            self._note(Copy(worker, other))

    def _applied(self, name: PlaceName, task: Apply) -> None:
        home, total = self.setup.cluster.homes[name], sum(task.weights)
        if task.source == "update" or not home.model or task.part != home.span or task.drift != self.setup.local:
            raise uncovered(task)
        for i, worker in enumerate(task.group):
            known = self._inbox.get((name, worker), (-1, 0))
            size = home.span[1] - home.span[0]
            arrived = task.source == "sum" or worker == home.worker or known == (task.clocks[i], size)
            if self._updates.get(worker) != task.clocks[i] or not arrived:
                raise uncovered(task)
            self._inbox.pop((name, worker), None)
        merge = (task.round, task.group, task.weights, task.samples, task.share)
        if name in self._held:
            self._held[name] += 1
            if self._held[name] == self._versions[home.span] and self._latest.get(home.span) == merge:
                return  # another replica has taken this step
        self._versions[home.span] += 1
        if name in self._held and self._held[name] != self._versions[home.span]:
            raise uncovered(task)
        self._latest[home.span] = merge
        if total:
            factor = task.share if self.setup.scaling == "mean" else 1.0
            weights = tuple(weight / total for weight in task.weights)
            self._note(Merged(home.span, task.group, weights, task.samples, factor, task.share))

    def _look(self, name: PlaceName, task: Evaluate) -> Look:
        home = self.setup.cluster.homes[name]
        if name in self._held:
            self._held_by(name, task)
        if self.stateful and home.worker in self._spoiled:
            raise uncovered(task)
        worker = home.worker if self.stateful else None
        rows = 0 if home.worker is None else self._rows.get(home.worker, 0)
        look = Look(home.span if home.model else None, worker, rows)
        self._note(look)
        return look


def uncovered(task: Task) -> Uncovered:
    """The refusal of a task that is more than a pull, a step or a merge of the latest model."""
    return Uncovered(
        f"{task} is more than a pull, a step or a merge of the latest model. A schedule knows no other arrays. "
        f"Perform the run event by event."
    )

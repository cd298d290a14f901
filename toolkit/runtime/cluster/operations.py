"""Operations of one host: which tasks concern it, and what each waits for.

The rules are those of virtual time (:mod:`toolkit.runtime.engine`), seen from one host: what happens elsewhere is known
only by what arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from toolkit.core.messages import (
    Apply,
    Cancel,
    Chunk,
    Compute,
    Evaluate,
    Key,
    Mix,
    PlaceName,
    Reduce,
    Send,
    Stage,
    Task,
)
from toolkit.exchanges.schedules import hops
from toolkit.runtime.collective import chunk, incoming, orders


class Op:
    """One task at one place of this host, or one end of a message."""

    __slots__ = ("arrived", "began", "missing", "place", "reads", "role", "running", "task", "then", "token", "wanted")

    def __init__(self, task: Task, token: Any, place: PlaceName, role: str) -> None:
        self.task, self.token, self.place, self.role = task, token, place, role
        self.missing, self.wanted, self.began, self.reads = 0, 0.0, 0.0, -1
        self.running = False
        self.then: list[Op] = []  # what waits for this
        self.arrived: Arrival | None = None


class Arrival:
    """A value from elsewhere, with the times [s] and the stamp of its read and its bytes."""

    __slots__ = ("began", "dst", "key", "nbytes", "reads", "round", "value", "wanted")

    def __init__(
        self,
        key: Key,
        dst: PlaceName,
        round: int | None,
        value: tuple[Any, ...],
        wanted: float,
        began: float,
        nbytes: int,
        reads: int,
    ) -> None:
        self.key, self.dst, self.round, self.value = key, dst, round, value
        self.wanted, self.began, self.nbytes, self.reads = wanted, began, nbytes, reads


class Operations:
    """The operations under way at a host, and the order among them.

    Roles: ``"work"`` in a lane, ``"out"`` and ``"in"`` for the ends of a message, ``"start"`` and ``"end"`` of a sum,
    ``"read"`` for an evaluation, ``"cancel"``.
    """

    def __init__(self, here: Callable[[PlaceName], bool]) -> None:
        self._here = here
        self._ops: dict[Any, Op] = {}  # token -> what is not done yet
        self._model: dict[PlaceName, Op] = {}  # place -> the last that touches its model
        self._early: dict[Key, Arrival] = {}  # what came before it was asked for
        self._dropped: set[tuple[PlaceName, int]] = set()  # place and cancelled merge

    def add(self, tasks: Iterable[Task]) -> list[Op]:
        """Take up the tasks of a reply; those that wait for nothing are returned."""
        made = [op for task in tasks for op in self._made(task)]
        for op in made:
            if op.role == "in" and (arrival := self._early.pop(op.token, None)) is not None:
                op.arrived, op.missing = arrival, op.missing - 1
        return [op for op in made if not op.missing and op.token in self._ops]

    def arrive(self, arrival: Arrival) -> Op | None:
        """Take a value from elsewhere; the operation that may begin now."""
        if (arrival.dst, arrival.round) in self._dropped:
            return None
        op = self._ops.get(arrival.key)
        if op is None:
            self._early[arrival.key] = arrival
            return None
        op.arrived, op.missing = arrival, op.missing - 1
        return None if op.missing else op

    def done(self, op: Op) -> list[Op]:
        """An operation is done; those that may begin now are returned."""
        self._ops.pop(op.token, None)
        free = []
        for other in op.then:
            other.missing -= 1
            if not other.missing and self.knows(other):
                free.append(other)
        return free

    def knows(self, op: Op) -> bool:
        """Whether an operation is still to be done."""
        return self._ops.get(op.token) is op

    def drop(self, cancel: Cancel) -> list[Op]:
        """Forget what a place still has to do for a merge; those that waited for it and stay may begin."""
        self._dropped.add((cancel.at, cancel.of))
        self._early = {k: a for k, a in self._early.items() if (a.dst, a.round) != (cancel.at, cancel.of)}
        gone = [op for op in self._ops.values() if _belongs(op, cancel) and not op.running]
        for op in gone:
            del self._ops[op.token]
        return [free for op in gone for free in self.done(op)]

    def lose(self, places: Collection[PlaceName]) -> None:
        """Forget messages of iterations from and to places that are gone; merges are cancelled by their exchange."""
        for op in list(self._ops.values()):
            ends = (getattr(op.task, "src", None), getattr(op.task, "dst", None))
            if op.task.round is None and any(end in places for end in ends):
                del self._ops[op.token]

    # -- from tasks to operations -------------------------------------------------------------------------------------

    def _made(self, task: Task) -> Iterator[Op]:
        match task:
            case Reduce():
                yield from self._collective(task)
            case Evaluate(sources=sources):
                for place in filter(self._here, sources):
                    op = self._op(task, (task.key, place), place, "read")
                    self._after(op, [k for k in task.after if k in self._ops and self._ops[k].place == place])
                    self._in_model_order(op)
                    yield op
            case Send(src=src, dst=dst):
                ordered = task.item == "replica"
                if self._here(src):
                    op = self._op(task, (task.key, "out"), src, "out")
                    self._after(op, task.after)
                    if ordered:
                        self._in_model_order(op)
                    yield op
                if self._here(dst):
                    op = self._op(task, task.key, dst, "in")
                    if ordered:
                        self._in_model_order(op)
                    yield op
            case Cancel(at=place):
                op = self._op(task, task.key, place, "cancel")
                for other in self._ops.values():
                    if other.running and _belongs(other, task):
                        self._wait(op, other)
                yield op
            case Compute(at=place) | Stage(at=place) | Apply(at=place) | Mix(at=place):
                op = self._op(task, task.key, place, "work")
                self._after(op, task.after)
                if isinstance(task, (Apply, Mix)):
                    self._in_model_order(op)
                yield op

    def _collective(self, task: Reduce) -> Iterator[Op]:
        ranks = len(task.group)
        starts: dict[PlaceName, Op] = {}
        for place in filter(self._here, task.group):
            starts[place] = self._op(task, (task.key, place, "start"), place, "start")
            self._after(starts[place], task.after)
            yield starts[place]
        _, plan = hops(task.schedule, ranks)
        landing: dict[int, Op] = {}
        for i, (hop, order) in enumerate(zip(plan, orders(task.schedule, ranks), strict=True)):
            src, dst = task.group[hop.src], task.group[hop.dst]
            part: Chunk | None = chunk(task, i) if src in starts or dst in starts else None
            if part is not None and src in starts:
                out = self._op(part, (part.key, "out"), src, "out")
                for other in (starts[src], *(landing[k] for k in order.source)):
                    self._wait(out, other)
                yield out
            if part is not None and dst in starts:
                landing[i] = self._op(part, part.key, dst, "in")
                for other in (starts[dst], *(landing[k] for k in order.target)):
                    self._wait(landing[i], other)
                yield landing[i]
        for rank, place in enumerate(task.group):
            if place in starts:
                end = self._op(task, (task.key, place), place, "end")
                for other in (starts[place], *(landing[i] for i in incoming(task.schedule, ranks)[rank])):
                    self._wait(end, other)
                yield end

    def _op(self, task: Task, token: Any, place: PlaceName, role: str) -> Op:
        op = self._ops[token] = Op(task, token, place, role)
        op.missing = int(role == "in")  # until it arrives
        return op

    def _wait(self, op: Op, other: Op) -> None:
        op.missing += 1
        other.then.append(op)

    def _after(self, op: Op, keys: Sequence[Key]) -> None:
        for key in keys:
            other = self._ops.get(key) or self._ops.get((key, op.place))
            if other is not None:
                self._wait(op, other)

    def _in_model_order(self, op: Op) -> None:
        """What reads or writes the model of a place does so in the order in which it was asked for."""
        last = self._model.get(op.place)
        if last is not None and self.knows(last):
            self._wait(op, last)
        self._model[op.place] = op


def _belongs(op: Op, cancel: Cancel) -> bool:
    """Whether an operation is part of a merge at the place where that is cancelled."""
    place = cancel.at in (op.place, getattr(op.task, "src", None), getattr(op.task, "dst", None))
    return place and op.task.round == cancel.of and op.role not in ("read", "cancel")

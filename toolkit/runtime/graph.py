"""Operations and what they wait for: from the tasks of a reply to work at places and messages between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from toolkit.core.messages import Apply, Cancel, Compute, Evaluate, Key, Mix, PlaceName, Reduce, Send, Stage, Task
from toolkit.runtime.collective import chunk, incoming, orders

#: Tasks at one place, and whether they take something into its model.
_PLACED = {Compute: False, Stage: False, Apply: True, Mix: True, Cancel: False}


class Op:
    """One task at one place, or on its way from there to another.

    Attributes
    ----------
    token : key of the task, or (key, place) where a task is done at several places
    target : PlaceName
        Where its result is left.
    merges : bool
        Whether it takes something into the model of its place.
    then : list of Op
        What waits for this; `missing` counts what this waits for.
    held : tuple of Op
        What must be written at the target before this.
    debt : float [s]
        What others took from its CPU.
    parts : set of Op
        Of a task done at several places, the operations with a token of (key, place) that are not over.
    over : bool
        Whether it is done or dropped.
    """

    __slots__ = (
        "began",
        "cause",
        "debt",
        "held",
        "merges",
        "missing",
        "nbytes",
        "over",
        "parts",
        "place",
        "reads",
        "target",
        "task",
        "then",
        "token",
        "value",
        "wanted",
        "writes",
    )

    def __init__(self, task: Task, token: Any, place: PlaceName, target: PlaceName, cause: int) -> None:
        self.task, self.token, self.place, self.target, self.cause = task, token, place, target, cause
        self.merges = self.over = False
        self.missing = self.nbytes = 0
        self.wanted = self.began = self.debt = 0.0
        self.reads = self.writes = -1
        self.then: list[Op] = []
        self.held: tuple[Op, ...] = ()
        self.value: Any = None
        self.parts: set[Op] | None = None


class Graph:
    """The operations that are not done yet, and what waits for what.

    Attributes
    ----------
    ops : {token: Op}
    """

    def __init__(self) -> None:
        self.ops: dict[Any, Op] = {}
        self._model: dict[PlaceName, Op] = {}  # place -> the last that touches its model
        self._merges: dict[int, Mapping[PlaceName, list[Op]]] = {}  # of the merge cancelled last, by place

    def add(self, task: Task, cause: int) -> Sequence[Op]:
        """The operations of a task that may begin once they wait for nothing."""
        kind = type(task)
        if kind is Send:
            op = self.ops[task.key] = Op(task, task.key, task.src, task.dst, cause)
            if task.item == "replica":
                self._in_model_order(op, task.src)
                self._in_model_order(op, task.dst)
        elif kind is Reduce:
            return self._collective(task, cause)
        elif kind in _PLACED:
            op = self.ops[task.key] = Op(task, task.key, task.at, task.at, cause)
            op.merges = _PLACED[kind]
            if op.merges:
                self._in_model_order(op, op.place)
        else:
            raise TypeError(
                f"{task} is no task that a runtime knows. A layer of the strategy made it. "
                f"Let the layer make tasks of the vocabulary."
            )
        self._after(op, task.after)
        return (op,)

    def read(self, task: Evaluate, cause: int, gone: Collection[PlaceName]) -> list[Op]:
        """A read at each place that holds the model, right after what the task waits for at that place."""
        made = [self._op(task, (task.key, place), place, place, cause) for place in task.sources if place not in gone]
        parts = set(made)
        for op in made:
            op.parts = parts
            self._after(op, [key for key in task.after if key in self.ops and self.ops[key].place == op.place])
            self._in_model_order(op, op.place)
        return made

    def remove(self, op: Op) -> None:
        """Take out an operation that is done or dropped."""
        op.over = True
        del self.ops[op.token]
        if op.parts:
            op.parts.discard(op)

    def of_merge(self, number: int, place: PlaceName) -> list[Op]:
        """What a place has still to do for a merge, or would be sent for it; what cancels it is no part of it."""
        if number not in self._merges:
            found: defaultdict[PlaceName, list[Op]] = defaultdict(list)
            for op in self.ops.values():
                if op.task.round == number and not isinstance(op.task, Cancel):
                    for at in {op.place, op.target}:
                        found[at].append(op)
            self._merges = {number: found}  # a merge is cancelled at all its places in one reply
        return [op for op in self._merges[number].get(place, ()) if not op.over]

    def wait(self, op: Op, other: Op) -> None:
        """Let an operation wait for another."""
        op.missing += 1
        other.then.append(op)

    def _op(self, task: Task, token: Any, place: PlaceName, target: PlaceName, cause: int) -> Op:
        op = self.ops[token] = Op(task, token, place, target, cause)
        return op

    def _after(self, op: Op, keys: Sequence[Key]) -> None:
        for key in keys:
            other = self.ops.get(key) or self.ops.get((key, op.place))
            if other is not None:
                op.missing += 1
                other.then.append(op)

    def _in_model_order(self, op: Op, place: PlaceName) -> None:
        """What reads or writes the model of a place does so in the order in which it was asked for."""
        last = self._model.get(place)
        if last is not None and not last.over and last is not op:
            self.wait(op, last)
        self._model[place] = op

    def _collective(self, task: Reduce, cause: int) -> list[Op]:
        """A start and an end at each member, and the hops between; the starts are returned."""
        ranks = len(task.group)
        starts = {place: self._op(task, (task.key, place, "start"), place, place, cause) for place in task.group}
        for op in starts.values():
            self._after(op, task.after)
        hops: list[Op] = []
        for i, order in enumerate(orders(task.schedule, ranks)):
            part = chunk(task, i)
            hop = self._op(part, part.key, part.src, part.dst, cause)
            self.wait(hop, starts[part.src])
            for k in order.source:
                self.wait(hop, hops[k])
            hop.held = (*(hops[k] for k in order.target), starts[part.dst])
            hops.append(hop)
        parts = set[Op]()
        for rank, place in enumerate(task.group):
            end = self._op(task, (task.key, place), place, place, cause)
            end.parts = parts
            parts.add(end)
            self.wait(end, starts[place])
            for i in incoming(task.schedule, ranks)[rank]:
                self.wait(end, hops[i])
        return [*starts.values()]

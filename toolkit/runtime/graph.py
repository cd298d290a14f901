"""Operations and what they wait for: from the tasks of a reply to work at places and messages between them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from toolkit.core.messages import Apply, Cancel, Compute, Evaluate, Key, Mix, PlaceName, Reduce, Send, Stage, Task
from toolkit.runtime.collective import chunk, incoming, orders


class Op:
    """One task at one place, or on its way between two."""

    __slots__ = (
        "began",
        "cause",
        "debt",
        "held",
        "missing",
        "place",
        "reads",
        "task",
        "then",
        "token",
        "value",
        "wanted",
        "writes",
    )

    def __init__(self, task: Task, token: Any, place: PlaceName, cause: int) -> None:
        self.task, self.token, self.place, self.cause = task, token, place, cause
        self.missing, self.wanted, self.began, self.reads, self.writes = 0, 0.0, 0.0, -1, -1
        self.then: list[Op] = []  # what waits for this
        self.held: tuple[Any, ...] = ()  # what must be written at the target before this
        self.value: Any = None
        self.debt = 0.0  # seconds that others took from its CPU


class Graph:
    """The operations that are not done yet, and what waits for what.

    Attributes
    ----------
    ops : {token: Op}
        The token is the key of a task, or (key, place) where a task is done at several places.
    """

    def __init__(self) -> None:
        self.ops: dict[Any, Op] = {}
        self._model: dict[PlaceName, Op] = {}  # place -> the last that touches its model

    def add(self, task: Task, cause: int) -> list[Op]:
        """The operations of a task that may begin once they wait for nothing."""
        match task:
            case Reduce():
                return self._collective(task, cause)
            case Send():
                op = self._op(task, task.key, task.src, cause)
                if task.item == "replica":
                    self._in_model_order(op, task.src)
                    self._in_model_order(op, task.dst)
            case Apply(at=place) | Mix(at=place):
                op = self._op(task, task.key, place, cause)
                self._in_model_order(op, place)
            case Compute(at=place) | Stage(at=place) | Cancel(at=place):
                op = self._op(task, task.key, place, cause)
            case _:
                raise TypeError(
                    f"{task} is no task that a runtime knows. A layer of the strategy made it. "
                    f"Let the layer make tasks of the vocabulary."
                )
        self._after(op, task.after)
        return [op]

    def read(self, task: Evaluate, cause: int, gone: Collection[PlaceName]) -> list[Op]:
        """A read at each place that holds the model, right after what the task waits for at that place."""
        made = [self._op(task, (task.key, place), place, cause) for place in task.sources if place not in gone]
        for op in made:
            self._after(op, [key for key in task.after if key in self.ops and self.ops[key].place == op.place])
            self._in_model_order(op, op.place)
        return made

    def wait(self, op: Op, other: Op) -> None:
        """Let an operation wait for another."""
        op.missing += 1
        other.then.append(op)

    def _op(self, task: Task, token: Any, place: PlaceName, cause: int) -> Op:
        op = self.ops[token] = Op(task, token, place, cause)
        return op

    def _after(self, op: Op, keys: Sequence[Key]) -> None:
        for key in keys:
            other = self.ops.get(key) or self.ops.get((key, op.place))
            if other is not None:
                self.wait(op, other)

    def _in_model_order(self, op: Op, place: PlaceName) -> None:
        """What reads or writes the model of a place does so in the order in which it was asked for."""
        last = self._model.get(place)
        if last is not None and last.token in self.ops and last is not op:
            self.wait(op, last)
        self._model[place] = op

    def _collective(self, task: Reduce, cause: int) -> list[Op]:
        """A start and an end at each member, and the hops between; the starts are returned."""
        ranks = len(task.group)
        members = [self._op(task, (task.key, place, "start"), place, cause) for place in task.group]
        for op in members:
            self._after(op, task.after)
        hops: list[Op] = []
        for i, order in enumerate(orders(task.schedule, ranks)):
            part = chunk(task, i)
            hop = self._op(part, part.key, part.src, cause)
            self.wait(hop, self.ops[task.key, part.src, "start"])
            for k in order.source:
                self.wait(hop, hops[k])
            hop.held = (*(hops[k].token for k in order.target), (task.key, part.dst, "start"))
            hops.append(hop)
        for rank, place in enumerate(task.group):
            end = self._op(task, (task.key, place), place, cause)
            self.wait(end, members[rank])
            for i in incoming(task.schedule, ranks)[rank]:
                self.wait(end, hops[i])
        return members

"""Operations and what they wait for: from the tasks of a reply to work at places and messages between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.core.messages import Apply, Cancel, Compute, Evaluate, Key, Mix, PlaceName, Reduce, Send, Stage, Task
from toolkit.runtime.collective import chunk, incoming, orders
from toolkit.runtime.lanes import Op, Place

#: Tasks at one place, and whether they take something into its model.
_PLACED: dict[Any, bool] = {Compute: False, Stage: False, Apply: True, Mix: True, Cancel: False}


class Graph:
    """The operations that are not done yet, and what waits for what.

    Attributes
    ----------
    ops : {token: Op}
    """

    def __init__(self, places: Mapping[PlaceName, Place]) -> None:
        self.ops: dict[Any, Op] = {}
        self._places = places
        self._merges: dict[int, Mapping[Place, list[Op]]] = {}  # of the merge cancelled last, by place

    def add(self, task: Any, cause: int) -> Sequence[Op]:
        """The operations of a task that may begin once they wait for nothing."""
        kind, places = type(task), self._places
        if kind is Send:
            op = self.ops[task.key] = Op(task, task.key, places[task.src], places[task.dst], cause)
            if task.item == "replica":
                self._in_model_order(op, op.place)
                self._in_model_order(op, op.target)
        elif kind is Reduce:
            return self._collective(task, cause)
        elif kind in _PLACED:
            place = places[task.at]
            op = self.ops[task.key] = Op(task, task.key, place, place, cause)
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

    def read(self, task: Evaluate, cause: int) -> Sequence[Op]:
        """A read at each place that holds the model, right after what the task waits for at that place."""
        made = [
            self._op(task, (task.key, name), name, name, cause) for name in task.sources if not self._places[name].gone
        ]
        parts = set(made)
        for op in made:
            op.parts = parts
            self._after(op, [key for key in task.after if key in self.ops and self.ops[key].place is op.place])
            self._in_model_order(op, op.place)
        return made

    def remove(self, op: Op) -> None:
        """Take out an operation that is done or dropped."""
        op.over = True
        del self.ops[op.token]
        if op.parts:
            op.parts.discard(op)

    def of_merge(self, number: int, place: Place) -> list[Op]:
        """What a place has still to do for a merge, or would be sent for it; what cancels it is no part of it."""
        if number not in self._merges:
            found: defaultdict[Place, list[Op]] = defaultdict(list)
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

    def _op(self, task: Task, token: Any, src: PlaceName, dst: PlaceName, cause: int) -> Op:
        op = self.ops[token] = Op(task, token, self._places[src], self._places[dst], cause)
        return op

    def _after(self, op: Op, keys: Sequence[Key]) -> None:
        for key in keys:
            other = self.ops.get(key) or self.ops.get((key, op.place.name))
            if other is not None:
                op.missing += 1
                other.then.append(op)

    def _in_model_order(self, op: Op, place: Place) -> None:
        """What reads or writes the model of a place does so in the order in which it was asked for."""
        last, place.last = place.last, op
        if last is not None and not last.over and last is not op:
            self.wait(op, last)

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

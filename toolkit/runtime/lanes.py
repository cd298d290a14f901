"""Operations, the places where they are done, and the lanes of a host in virtual time: its CPU and its link.

Steps queue first come first served. Optimizer steps and mixing queue by themselves and interrupt the step that runs,
which ends later by what they took. The link has one lane out and one in; latency occupies no lane; within a host
messages take no time.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from toolkit.core.messages import Apply, Mix, PlaceName, Send, Task
from toolkit.runtime.costs import Costs


class Lanes:
    """The lanes of a host: what runs and queues on its CPU, and from when on its link is free [s]."""

    __slots__ = ("into", "merges", "name", "out", "steps")

    def __init__(self, name: PlaceName) -> None:
        self.name = name
        self.steps, self.merges = deque[Op](), deque[Op]()
        self.out = self.into = 0.0

    def enter(self, op: Op) -> bool:
        """Queue an operation for the CPU; whether it may begin at once."""
        queue = self.merges if op.merges else self.steps
        queue.append(op)
        return len(queue) == 1

    def leave(self, op: Op) -> Op | None:
        """Take an operation that is done off the CPU; the next that is still wanted."""
        queue = self.merges if op.merges else self.steps
        queue.popleft()
        while queue and (queue[0].over or queue[0].place.gone):
            queue.popleft()
        return queue[0] if queue else None

    def runs(self, op: Op) -> bool:
        """Whether the CPU is at an operation."""
        return any(queue and queue[0] is op for queue in (self.steps, self.merges))


class Place:
    """What is kept of a place.

    Attributes
    ----------
    lanes : Lanes
        Of its host.
    gone : bool
        Whether its worker has left.
    seen : int
        Reads and writes so far.
    version : int
        The last merge applied; -1 is none.
    last : Op, optional
        The last operation that touches its model.
    """

    __slots__ = ("gone", "lanes", "last", "name", "seen", "version")

    def __init__(self, name: PlaceName, lanes: Lanes) -> None:
        self.name, self.lanes = name, lanes
        self.gone, self.seen, self.version = False, 0, -1
        self.last: Op | None = None

    def stamp(self) -> int:
        """The number of the next read or write."""
        self.seen += 1
        return self.seen - 1

    def merging(self, number: int) -> Op | None:
        """What takes a merge into the model, if that runs or is queued."""
        return next((op for op in self.lanes.merges if op.place is self and op.task.round == number), None)


class Places(dict[PlaceName, Place]):
    """All places by name; those that share a host share its lanes."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._lanes: dict[PlaceName, Lanes] = {}

    def __missing__(self, name: PlaceName) -> Place:
        host = self._costs.host(name)
        place = self[name] = Place(name, self._lanes.setdefault(host, Lanes(host)))
        return place


class Op:
    """One task at one place, or on its way from there to another.

    Attributes
    ----------
    token : key of the task, or (key, place) where a task is done at several places
    target : Place
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

    def __init__(self, task: Any, token: Any, place: Place, target: Place, cause: int) -> None:
        self.task, self.token, self.place, self.target, self.cause = task, token, place, target, cause
        self.merges = self.over = False
        self.missing = self.nbytes = 0
        self.wanted = self.began = self.debt = 0.0
        self.reads = self.writes = -1
        self.then: list[Op] = []
        self.held: tuple[Op, ...] = ()
        self.value: Any = None
        self.parts: set[Op] | None = None

    def lost(self) -> bool:
        """Whether a place that takes part is gone."""
        return self.place.gone or self.target.gone

    def send(self, costs: Costs, now: float) -> float:
        """Begin to occupy the link; when the message arrives [s]."""
        self.nbytes = nbytes = costs.nbytes(self.task)
        source, target = self.place.lanes, self.target.lanes
        self.began = began = now
        if source is target:
            return now
        if source.out > began:
            began = source.out
        if target.into > began:
            began = target.into
        link = costs.between(source.name, target.name)
        self.began = began
        source.out = target.into = began + nbytes / link.bandwidth
        return source.out + link.latency


def takes_in(task: Task) -> bool:
    """Whether a place has a merge in its model once this is done there."""
    return isinstance(task, (Apply, Mix)) or (isinstance(task, Send) and task.item == "replica")

"""Lanes of a host in virtual time: its CPU, shared by steps and by what touches a model, and its link.

Steps queue first come first served. Optimizer steps and mixing queue by themselves and interrupt the step that runs,
which ends later by what they took. The link has one lane out and one in; latency occupies no lane; within a host
messages take no time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from toolkit.core.messages import Apply, Chunk, Mix, PlaceName, Send
from toolkit.runtime.costs import Costs
from toolkit.runtime.graph import Op


class Lanes:
    """Who occupies what, and from when on it is free."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._steps: dict[PlaceName, deque[Op]] = {}  # host -> running and queued
        self._merges: dict[PlaceName, deque[Op]] = {}
        self._out: dict[PlaceName, float] = {}  # host -> when its link is free
        self._in: dict[PlaceName, float] = {}

    def send(self, task: Send | Chunk, now: float) -> tuple[float, float]:
        """When a message begins to occupy the link, and when it arrives [s]."""
        source, target = self._costs.host(task.src), self._costs.host(task.dst)
        if source == target:
            return now, now
        seconds, latency = self._costs.wire(task, source, target)
        began = max(now, self._out.get(source, 0.0), self._in.get(target, 0.0))
        self._out[source] = self._in[target] = began + seconds
        return began, began + seconds + latency

    def enter(self, op: Op) -> bool:
        """Queue an operation for the CPU; whether it may begin at once."""
        queue = self._queue(op)
        queue.append(op)
        return len(queue) == 1

    def leave(self, op: Op, wanted: Callable[[Op], bool]) -> Op | None:
        """Take an operation that is done off the CPU; the next that is still wanted."""
        queue = self._queue(op)
        queue.popleft()
        while queue and not wanted(queue[0]):
            queue.popleft()
        return queue[0] if queue else None

    def interrupt(self, op: Op, seconds: float) -> None:
        """Let what touches a model take time from the step that runs on its host."""
        steps = self._steps.get(self._costs.host(op.place))
        if seconds and steps and isinstance(op.task, (Apply, Mix)):
            steps[0].debt += seconds

    def runs(self, op: Op) -> bool:
        """Whether the CPU is at an operation."""
        host = self._costs.host(op.place)
        return any(queue and queue[0] is op for queue in (self._steps.get(host), self._merges.get(host)))

    def merging(self, place: PlaceName, number: int) -> Op | None:
        """What takes a merge into the model of a place, if that runs or is queued."""
        queue = self._merges.get(self._costs.host(place), ())
        return next((op for op in queue if op.place == place and op.task.round == number), None)

    def _queue(self, op: Op) -> deque[Op]:
        queues = self._merges if isinstance(op.task, (Apply, Mix)) else self._steps
        return queues.setdefault(self._costs.host(op.place), deque())

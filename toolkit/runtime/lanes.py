"""Lanes of a host in virtual time: its CPU, shared by steps and by what touches a model, and its link.

Steps queue first come first served. Optimizer steps and mixing queue by themselves and interrupt the step that runs,
which ends later by what they took. The link has one lane out and one in; latency occupies no lane; within a host
messages take no time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container

from toolkit.core.messages import PlaceName
from toolkit.runtime.costs import Costs
from toolkit.runtime.graph import Op


class Lanes:
    """Who occupies what, and from when on it is free."""

    def __init__(self, costs: Costs) -> None:
        self._costs, self._hosts = costs, costs.hosts
        self._steps: defaultdict[PlaceName, deque[Op]] = defaultdict(deque)  # host -> running and queued
        self._merges: defaultdict[PlaceName, deque[Op]] = defaultdict(deque)
        self._out: defaultdict[PlaceName, float] = defaultdict(float)  # host -> when its link is free
        self._in: defaultdict[PlaceName, float] = defaultdict(float)

    def send(self, op: Op, now: float) -> float:
        """Let a message begin to occupy the link; when it arrives [s]."""
        op.nbytes = nbytes = self._costs.nbytes(op.task)
        source, target = self._hosts[op.place], self._hosts[op.target]
        op.began = now
        if source == target:
            return now
        link = self._costs.between(source, target)
        began = self._out[source]
        if self._in[target] > began:
            began = self._in[target]
        if now > began:
            began = now
        op.began = began
        free = self._out[source] = self._in[target] = began + nbytes / link.bandwidth
        return free + link.latency

    def enter(self, op: Op) -> bool:
        """Queue an operation for the CPU; whether it may begin at once."""
        queue = (self._merges if op.merges else self._steps)[self._hosts[op.place]]
        queue.append(op)
        return len(queue) == 1

    def leave(self, op: Op, gone: Container[PlaceName]) -> Op | None:
        """Take an operation that is done off the CPU; the next that is still wanted."""
        queue = (self._merges if op.merges else self._steps)[self._hosts[op.place]]
        queue.popleft()
        while queue and (queue[0].over or queue[0].place in gone):
            queue.popleft()
        return queue[0] if queue else None

    def interrupt(self, op: Op, seconds: float) -> None:
        """Let what touches a model take time from the step that runs on its host."""
        if seconds and op.merges and (steps := self._steps.get(self._hosts[op.place])):
            steps[0].debt += seconds

    def runs(self, op: Op) -> bool:
        """Whether the CPU is at an operation."""
        host = self._hosts[op.place]
        return any(queue and queue[0] is op for queue in (self._steps.get(host), self._merges.get(host)))

    def merging(self, place: PlaceName, number: int) -> Op | None:
        """What takes a merge into the model of a place, if that runs or is queued."""
        queue = self._merges.get(self._hosts[place], ())
        return next((op for op in queue if op.place == place and op.task.round == number), None)

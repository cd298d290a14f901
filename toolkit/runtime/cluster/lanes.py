"""The threads of a host: one for steps, one for what touches a model, each first come first served."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.core.messages import Compute, Stage, Worker
from toolkit.runtime.costs import FORWARD

#: Steps that are timed to know the step of a worker.
STEPS = 5


class Lane:
    """A thread and the queue before it; an item begins in the event loop and is worked on in the thread.

    Parameters
    ----------
    soon : (function, *arguments) -> None
        Runs a function in the event loop, from any thread.
    """

    def __init__(self, name: str, soon: Callable[..., Any]) -> None:
        self._thread, self._soon = ThreadPoolExecutor(1, name), soon
        self._queue: deque[Callable[[], Callable[[], None]]] = deque()
        self._busy = False

    def add(self, begin: Callable[[], Callable[[], None]]) -> None:
        """Queue an item: `begin` runs in the loop when its turn comes and returns the work."""
        self._queue.append(begin)
        if not self._busy:
            self._next()

    def clear(self) -> None:
        """Forget what has not begun."""
        self._queue.clear()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Something else to be done in this thread."""
        return self._thread.submit(function, *arguments)

    def close(self) -> None:
        """End the thread once its work is done."""
        self._queue.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._queue:
            work = self._queue.popleft()()
            self._thread.submit(self._work, work)

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._soon(self._next)


@dataclass
class Pace:
    """How long the steps of workers take at least: padded by sleep, for repeating work would slow the others.

    `slowdown` are factors on the step of a worker, `least` [s] is the step of a worker with factor 1. A stage of a
    pipeline,
    whose step is not known beforehand, is padded to the factor of its own time.
    """

    slowdown: Mapping[Worker, float] = field(default_factory=dict)
    least: float | None = None
    halted: threading.Event = field(default_factory=threading.Event)
    steps: dict[Worker, float] = field(default_factory=dict)

    def calibrate(self, worker: Worker, step: Callable[[], Any]) -> None:
        """Time some steps of a worker whose factor is not 1."""
        if self.slowdown.get(worker, 1.0) != 1.0:
            times = []
            for _ in range(STEPS):
                began = time.perf_counter()
                step()
                times.append(time.perf_counter() - began)
            self.steps[worker] = statistics.median(times)

    def pad(self, worker: Worker | None, began: float, steps: float) -> None:
        """Sleep until `steps` steps of a worker that began at `began` [s, monotonic] have taken their time."""
        if worker is None or (worker not in self.slowdown and self.least is None):
            return
        factor = self.slowdown.get(worker, 1.0)
        taken = time.monotonic() - began
        step = self.steps.get(worker, 0.0 if factor == 1.0 else taken / max(steps, 1e-9))
        rest = steps * factor * max(step, self.least or 0.0) - taken
        if rest > 0:
            self.halted.wait(rest)


def steps_in(task: Compute | Stage) -> float:
    """How many whole steps a task amounts to."""
    steps = float(sum(ticket.count > 0 for ticket in task.tickets) if task.tickets else 1)
    if isinstance(task, Stage):
        return steps * (FORWARD if task.phase == "forward" else 1 - FORWARD) / task.stage[1] / task.microbatch[1]
    return steps * FORWARD if task.forward else steps


def pin(cores: list[int], rank: int) -> None:
    """Keep all threads of this process on one core; later ones inherit it."""
    if cores and hasattr(os, "sched_setaffinity"):
        for thread in Path("/proc/self/task").iterdir():
            try:
                os.sched_setaffinity(int(thread.name), {cores[rank % len(cores)]})
            except ProcessLookupError:
                continue


def allowed() -> list[int]:
    """The cores on which this process may run."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))

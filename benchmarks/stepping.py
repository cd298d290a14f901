"""Processes that take steps together on request and sleep in between."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from toolkit.runtime.settings import environment

#: Steps at the beginning of a burst that do not count.
WARM = 2


@contextmanager
def stepping(prepare: Callable[..., Callable[[], Any]], cores: Sequence[int], *arguments: Any) -> Iterator[Any]:
    """A function of the number of steps that gives seconds per step; one process on each core takes them.

    Process `rank` calls ``prepare(rank, *arguments)`` once, and what that gives at each step.
    """
    context, before = multiprocessing.get_context("spawn"), dict(os.environ)
    os.environ.update(environment())
    pipes, processes = [], []
    try:
        for rank, core in enumerate(cores):
            mine, theirs = context.Pipe()
            processes.append(
                context.Process(target=_serve, args=(theirs, core, prepare, rank, *arguments), daemon=True)
            )
            processes[-1].start()
            pipes.append(mine)
    finally:
        os.environ.clear()
        os.environ.update(before)

    def burst(steps: int) -> float:
        for pipe in pipes:
            pipe.send(steps + WARM)
        return max(pipe.recv() for pipe in pipes)

    try:
        yield burst
    finally:
        for pipe in pipes:
            pipe.send(0)
        for process in processes:
            process.join()


def _serve(pipe: Connection, core: int, prepare: Callable[..., Callable[[], Any]], rank: int, *arguments: Any) -> None:
    os.sched_setaffinity(0, {core})
    step = prepare(rank, *arguments)
    while steps := pipe.recv():
        ends = []
        for _ in range(steps):
            step()
            ends.append(time.perf_counter())
        pipe.send((ends[-1] - ends[WARM - 1]) / (steps - WARM))

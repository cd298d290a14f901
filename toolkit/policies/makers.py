"""Two makers of policies: a gate that lets workers through one by one, a barrier at which they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from immutables import Map

from toolkit.core.checks import function
from toolkit.core.cluster import Cluster
from toolkit.core.messages import RISING, Action, Commit, Committed, Finished, Joined, Left, Ready, Release, Worker
from toolkit.core.progress import Progress
from toolkit.core.strategy import Message, State, Strategy


def gate(may_start: Callable[[Progress, Worker], bool]) -> Strategy:
    """A policy that merges each update on arrival and lets workers go on by a condition.

    A worker goes on once ``may_start(progress, worker)``. The condition may look at the worker's own clock and at the
    slowest and highest clock: a waiting worker is asked again when one of these changed.

    Parameters
    ----------
    may_start : (Progress, worker) -> bool

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.gate(lambda progress, worker: progress.lead(worker) <= 3).kind
    'policy'
    """
    function("may_start", may_start, "progress", "worker")

    def step(progress: Progress, message: Any) -> tuple[Progress, Sequence[Message]]:
        if type(message) is Ready:
            return progress, (Commit(frozenset((message.worker,))),)
        if not RISING[type(message)]:
            return progress, (message,)
        before, progress = progress, progress.observe(message)
        if progress is before:
            return progress, ()
        free = frozenset(worker for worker in candidates(before, progress, message) if may_start(progress, worker))
        return (progress.release(free), (Release(free),)) if free else (progress, ())

    return Strategy(lambda cluster: Progress(), step, "policy")


def candidates(before: Progress, progress: Progress, message: Message) -> Sequence[Worker]:
    """The waiting workers whose chances an event may have changed, in order."""
    if progress.moved(before):
        return sorted(progress.waiting)
    if isinstance(message, Committed):
        return sorted(worker for worker in message.group if worker in progress.waiting)
    return ()


def barrier(quorum: Callable[[Progress], int]) -> Strategy:
    """A policy that merges once a quorum of fresh updates is in and drops late ones.

    The merge takes the updates that have arrived once they are ``quorum(progress)`` or more. An update that missed its
    merge is dropped, and its worker goes on with the others.

    Parameters
    ----------
    quorum : Progress -> int [updates]
        Less than 1 counts as 1.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.barrier(lambda progress: progress.count // 2 + 1).kind
    'policy'
    """
    function("quorum", quorum, "progress")

    def init(cluster: Cluster) -> State:
        return Progress(), Map[Worker, bool](), False

    def step(state: State, message: Message) -> tuple[State, Sequence[Message]]:
        progress, arrived, merging = state
        match message:
            case Action():
                return state, (message,)
            case Ready(worker, _, stale):
                if worker not in progress.clock:
                    return state, ()
                if stale:
                    progress = progress.wait(worker)
                else:
                    arrived = arrived.set(worker, True)
            case Committed():
                merging = False
            case Left(worker) | Finished(worker):
                arrived = arrived.delete(worker) if worker in arrived else arrived
            case Joined():
                pass
            case _:
                return state, ()
        progress = progress.observe(message)
        replies: list[Message] = []
        if arrived and not merging and len(arrived) >= max(1, quorum(progress)):
            replies, arrived, merging = [Commit(frozenset(arrived))], Map(), True
        if progress.waiting and not merging:
            free = frozenset(progress.waiting)
            progress, replies = progress.release(free), [*replies, Release(free)]
        return (progress, arrived, merging), replies

    return Strategy(init, step, "policy")

"""The maker of rewrites: replace tasks on their way down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from toolkit.core.checks import function
from toolkit.core.cluster import Cluster
from toolkit.core.messages import Event, Key, Keys, Task
from toolkit.core.records import replace
from toolkit.core.strategy import Message, State, Strategy, keys


@overload
def rewrite(change: Callable[[Task], Sequence[Task]]) -> Strategy: ...
@overload
def rewrite(change: Callable[[Any, Task], Sequence[Task]], init: Callable[[Cluster], State]) -> Strategy: ...
def rewrite(change: Callable[..., Sequence[Task]], init: Callable[[Cluster], State] | None = None) -> Strategy:
    """Build a strategy that replaces tasks on their way down.

    ``change(task)`` lists what stands in its place: what waited for the task then waits for all of these, or,
    if there are none, for what the task itself waited for. With `init` it is ``change(init(cluster), task)``.

    Parameters
    ----------
    change : task -> tasks
    init : Cluster -> constant, optional

    Examples
    --------
    >>> import toolkit as tk
    >>> doubled = tk.rewrite(lambda task: [task])
    >>> doubled.kind
    'rewrite'
    """
    function("change", change, *(("constant", "task") if init else ("task",)))
    if init:
        function("init", init, "cluster")

    def start(cluster: Cluster) -> State:
        return (init(cluster) if init else None), {}

    def step(state: State, message: Message) -> tuple[State, Sequence[Message]]:
        constant, renamed = state
        if isinstance(message, Event):
            return (constant, {}), ()  # `after` names tasks of the same reply only
        if not isinstance(message, Task):
            return state, (message,)
        task = replace(message, after=follow(renamed, message.after)) if renamed else message
        tasks = change(constant, task) if init else change(task)
        now = keys(tasks) or task.after
        if now != (task.key,):
            renamed = {**renamed, task.key: now}
        return (constant, renamed), tasks

    return Strategy(start, step)


def follow(renamed: Mapping[Key, Keys], after: Keys) -> Keys:
    """The keys to wait for, where some of `after` have been replaced by others."""
    return tuple(dict.fromkeys(now for key in after for now in renamed.get(key, (key,))))

"""Forward passes only, as for inference and for telling apart the cost of the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.core.messages import Apply, Compute, Mix, Reduce, Send, Stage, Task
from toolkit.core.records import replace
from toolkit.core.strategy import Strategy, strategy
from toolkit.rewrites.makers import rewrite


@strategy
def forward_only() -> Strategy:
    """Run forward passes only: no update is computed, sent or applied.

    Pulls of parameters remain, and so do activations on their way through a pipeline.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.bsp(), tk.parameter_server(), tk.forward_only())
    chain(bsp(), parameter_server(), forward_only())
    """

    def change(task: Task) -> Sequence[Task]:
        match task:
            case Compute():
                return (replace(task, forward=True, parts=(), codec=None),)
            case Stage(phase="forward"):
                return (replace(task, forward=True),)
            case Stage() | Reduce() | Apply() | Mix() | Send(item="update" | "snapshot" | "replica" | "cotangents"):
                return ()
        return (task,)

    return rewrite(change)

"""Tasks under way: whom they concern, who has yet to report, and the words for a run that cannot go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.core.cluster import Home
from toolkit.core.errors import Lost, Overdue, Refused
from toolkit.core.messages import (
    Apply,
    Cancel,
    Chunk,
    Compute,
    Evaluate,
    Mix,
    PlaceName,
    Reduce,
    Send,
    Stage,
    Task,
    Worker,
)
from toolkit.runtime.drive import Drive
from toolkit.trace import key_text


@dataclass
class Pending:
    """A task that was sent out, the event row that asked for it, and the places that have not reported it."""

    task: Task
    cause: int
    places: set[PlaceName]
    facts: dict[str, Any] = field(default_factory=dict)
    values: dict[PlaceName, Any] = field(default_factory=dict)  # of an evaluation


def concerned(task: Task) -> tuple[tuple[PlaceName, ...], tuple[PlaceName, ...]]:
    """The places that must know of a task, and those that report it."""
    match task:
        case Compute(at=place) | Stage(at=place) | Apply(at=place) | Mix(at=place) | Cancel(at=place):
            return (place,), (place,)
        case Send(src=src, dst=dst) | Chunk(src=src, dst=dst):
            return (src, dst), (src,)
        case Reduce(group=group):
            return group, group
        case Evaluate(sources=sources):
            return sources, sources
    raise Refused(
        f"{task} is no task that a runtime knows. It was made by a layer of the strategy. Make it of known tasks."
    )


def lost(
    host: PlaceName,
    reason: str,
    workers: Sequence[Worker],
    servers: Sequence[PlaceName],
    round: int,
    on_loss: str,
) -> Lost:
    """The error of a run that cannot go on."""
    who = ", ".join([*(f"worker {w}" for w in workers), *(f"server {s}" for s in servers)]) or str(host)
    if servers:
        why, todo = "The part of the model that lived there is gone.", "Use separate servers and save more often."
    elif on_loss == "continue":
        why, todo = "No worker is left.", "Start the run again."
    else:
        why, todo = (
            "on_loss='stop' lets no run go on without a worker.",
            "Use on_loss='continue', or start the run again.",
        )
    return Lost(f"{who} was lost in round {round} ({reason}). {why} {todo}")


def overdue(pending: Iterable[Pending], homes: Mapping[PlaceName, Home], deadline: float, round: int) -> Overdue:
    """The error of a run of which nothing was heard for too long."""
    waiting = [p for p in pending if p.places]
    tasks = [f"{key_text(p.task.key)} at {', '.join(map(str, sorted(p.places, key=str)))}" for p in waiting[:5]]
    places = {place for p in waiting for place in p.places if place in homes}
    workers = sorted({w for place in places if (w := homes[place].worker) is not None})
    return Overdue(
        f"Nothing was reported for {deadline:g} s, in round {round}; it waits for worker "
        f"{', '.join(map(str, workers)) or 'none'}: {'; '.join(tasks)}. Something hangs or takes longer than the "
        f"deadline. Look at that process, or give Dask(deadline=...) more seconds."
    )


def idle(drive: Drive) -> Overdue:
    """The error of a run in which nothing more can happen."""
    return Overdue(
        f"Nothing more happens although {drive.until!r} does not hold. Every worker waits, has left or is finished: "
        f"{drive.tally.updates} updates, {drive.tally.active} workers active. Ask for less, or let a policy go on "
        f"without those who left."
    )

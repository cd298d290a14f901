"""The order in which a run touches its arrays, as plain records: pulls, steps, merges, and what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from toolkit.core.messages import Span, Ticket, Worker


class Pull(NamedTuple):
    """A worker reads a span of the model."""

    worker: Worker
    span: Span


class Copy(NamedTuple):
    """A worker takes over the local and optimizer state of another."""

    worker: Worker
    source: Worker


class Step(NamedTuple):
    """A gradient, or one local step; `loss` and `norm` are the numbers it finds, of local steps the last one's."""

    worker: Worker
    ticket: Ticket
    key: tuple[int, int, int]
    samples: int
    first: bool
    last: bool
    fresh: bool
    numbers: tuple[int, int]
    weight: float  # of its loss in that of the iteration


class Merged(NamedTuple):
    """An optimizer step on a span with the mean of some updates."""

    span: Span
    group: tuple[Worker, ...]
    weights: tuple[float, ...]
    samples: int
    factor: float
    share: float


class Look(NamedTuple):
    """A span of the model, or the local state of a worker with the rows behind it, is read to be measured."""

    span: Span | None
    worker: Worker | None
    rows: int


class Evaluation(NamedTuple):
    """What was looked at is measured; `numbers` are the metrics."""

    looks: tuple[Look, ...]
    numbers: tuple[int, ...]


Entry: TypeAlias = Pull | Copy | Step | Merged | Look | Evaluation


@dataclass
class Schedule:
    """What happens to the arrays of a run, one after the other, whatever is learned.

    Attributes
    ----------
    shards : list of Span
        The parts of the model that merges step on, in order.
    entries : list of Entry
    count : int
        How many numbers are to be found: losses, norms and metrics.
    """

    shards: list[Span]
    entries: list[Entry] = field(default_factory=list)
    count: int = 0

    @property
    def steps(self) -> list[Step]:
        """The steps of all workers."""
        return [entry for entry in self.entries if isinstance(entry, Step)]

    def pieces(self, steps: int) -> Iterator[list[Entry]]:
        """Consecutive entries: at most so many steps, as many merges of several, four times as many events."""
        piece, counts = list[Entry](), [0, 0, 0]
        for entry in self.entries:
            several = isinstance(entry, Merged) and len(entry.group) > 1
            more = [isinstance(entry, Step), several, not isinstance(entry, (Look, Evaluation))]
            if any(n + one > limit for n, one, limit in zip(counts, more, (steps, steps, 4 * steps), strict=True)):
                yield piece
                piece, counts = [], [0, 0, 0]
            piece.append(entry)
            counts = [n + one for n, one in zip(counts, more, strict=True)]
        if piece:
            yield piece

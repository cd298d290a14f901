"""What a host writes down: the order of reads and writes at its places, and rows for the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolkit.core.messages import Chunk, PlaceName, Reduce, Send
from toolkit.runtime.cluster.operations import Op

Rows = list[tuple[Any, ...]]


class Ledger:
    """Counts reads and writes at each place, and hands over rows once per turn of the event loop.

    What happens within a collective is handed over with its end, for which alone the coordinator waits.

    Parameters
    ----------
    soon : (function) -> None
        Runs a function later in this turn, or in the next.
    report : rows -> None
    """

    def __init__(self, soon: Callable[[Callable[[], None]], Any], report: Callable[[Rows], None]) -> None:
        self._soon, self._report = soon, report
        self._seen: dict[PlaceName, int] = {}
        self._rows: Rows = []
        self._due = False  # whether they will be handed over soon

    def stamp(self, place: PlaceName) -> int:
        """The number of the next read or write at a place."""
        count = self._seen.get(place, 0)
        self._seen[place] = count + 1
        return count

    def start(self, op: Op, time: float) -> None:
        """A member of a collective has put its own part into the sum."""
        assert isinstance(op.task, Reduce)
        self._rows.append(("start", op.task.key, op.place, time, self.stamp(op.place)))

    def done(
        self, op: Op, ended: float, stamps: tuple[int, int], nbytes: int = 0, facts: Mapping[str, Any] | None = None
    ) -> None:
        """An operation is done; a hop is named by its collective and its number."""
        task, began = op.task, max(op.wanted, op.began)
        times = (op.wanted, began, max(ended, began))
        if isinstance(task, Chunk):
            self._rows.append(("hop", task.of, task.key[-1], times, nbytes, stamps))
            return
        place = task.src if isinstance(task, Send) else op.place
        self._rows.append(("task", task.key, place, times, nbytes, stamps, facts))
        if not self._due:
            self._due = True
            self._soon(self.flush)

    def flush(self) -> None:
        """Hand over the rows so far."""
        self._due = False
        if self._rows:
            rows, self._rows = self._rows, []
            self._report(rows)

"""News of a run for those who watch it: a few numbers, at most four times a second, through the scheduler's events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from toolkit.runtime import numerics
from toolkit.runtime.drive import Drive

#: Seconds between two messages.
PACE = 0.25
#: What is told of a tally.
COUNTS = ("rows", "time", "updates", "iterations", "samples", "active", "joined")


def topic(run: str) -> str:
    """The topic of a run."""
    return f"toolkit-{run}"


class News:
    """Tells how far a run has come, when that has changed.

    Parameters
    ----------
    run : token
    log : (topic, message) -> None
    """

    def __init__(self, run: str, log: Callable[[str, Any], Any]) -> None:
        self._topic, self._log = topic(run), log

    def tell(self, status: str, **news: Any) -> None:
        """Tell at once."""
        self._log(self._topic, {"status": status, **news})

    async def publish(self, look: Callable[[], tuple[str, Drive | None]]) -> None:
        """Tell again and again; `look` gives the status and, once there is one, the drive."""
        told: tuple[Any, ...] = ()
        known = 0
        while True:
            await asyncio.sleep(PACE)
            status, drive = look()
            state = (status, drive and drive.tally, drive and len(drive.measured))
            if state == told:
                continue
            told = state
            if drive is None:
                self.tell(status)
                continue
            tally, fresh = drive.tally, numerics.metrics(drive.measured[known:])
            known += len(fresh)
            numbers = {name: getattr(tally, name) for name in COUNTS}
            self.tell(status, tally=numbers, last=dict(tally.metrics), metrics=fresh)

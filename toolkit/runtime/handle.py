"""A run under way: how far it has come, and the wait for its end."""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from concurrent import futures
from typing import Any, TypeVar

from toolkit.core.conditions import Condition
from toolkit.core.tally import Tally
from toolkit.progress import Progress

T = TypeVar("T")

#: Seconds between two looks at the keyboard while waiting, and in which an interrupted run must have ended.
LOOK, END = 0.2, 15.0


class Handle(ABC):
    """What starting a run returns.

    Attributes
    ----------
    name : str
    tally : Tally
        How far it has come, as last heard.
    status : str
    """

    _clock = ""  #: what its seconds are, if not those of a clock on the wall

    def __init__(self, name: str, until: Condition, progress: bool, status: str) -> None:
        self.name, self.tally, self.status, self._until = name, Tally(), "", until
        self._bar = Progress(name, total=100, unit="%") if progress else None
        self._say(status)

    def __repr__(self) -> str:
        achieved = f"{self.tally.time:.4g} s{self._clock}, {self.tally.updates} updates"
        return f"{type(self).__name__}({self.name!r}, {self.status}, {achieved})"

    @property
    def progress(self) -> dict[str, Any]:
        """How far it has come: seconds, updates, samples and the latest metrics."""
        numbers = {"seconds": self.tally.time, "updates": self.tally.updates, "samples": self.tally.samples}
        return {"status": self.status, **numbers, **self.tally.metrics}

    def wait(self, timeout: float | None = None) -> Any:
        """The run, once it has ended; its error is raised, with the run so far in the error's `run`.

        After `timeout` seconds a TimeoutError says that it goes on. An interrupt from the keyboard ends the run and
        carries what was achieved as its `run`.
        """
        try:
            return self._finished(time.monotonic() + (math.inf if timeout is None else timeout))
        except KeyboardInterrupt as interrupt:
            try:
                self.stop()
                with contextlib.suppress(Exception):
                    interrupt.run = self._finished(time.monotonic() + END)  # type: ignore[attr-defined]
            finally:
                self._close()
            raise

    @abstractmethod
    def stop(self) -> None:
        """End it soon; what it has achieved is kept, and :meth:`wait` returns it."""

    @abstractmethod
    def _finished(self, late: float) -> Any:
        """What :meth:`wait` returns, at the latest at a time."""

    def _within(self, late: float, future: futures.Future[T]) -> T:
        """The result of a future, while interrupts from the keyboard are heard."""
        while not future.done():
            if (left := late - time.monotonic()) <= 0:
                raise TimeoutError(
                    f"The run {self.name!r} goes on ({self.status}). It was not waited for any longer. Wait again, or "
                    f"stop it."
                )
            futures.wait([future], min(LOOK, left))
        return future.result()

    # -- what is shown ------------------------------------------------------------------------------------------------

    def _say(self, status: str) -> None:
        self.status = status
        if self._bar is not None:
            self._bar.say(status)

    def _show(self, tally: Tally, whole: bool = False) -> None:
        """Show a tally; `whole` says that the condition was reached, which it may be with less than it asks for."""
        self.tally = tally
        if self._bar is not None:
            share = 1.0 if whole else min(1.0, self._until.amount(tally))
            self._bar.update(tally.time, tally.updates, tally.samples, dict(tally.metrics), share)

    def _close(self) -> None:
        """Let go of what the run needed here."""
        self.status = "ended"
        if self._bar is not None:
            self._bar.close()
            self._bar = None

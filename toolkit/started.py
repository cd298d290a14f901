"""A run under way in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

from toolkit.prepare import Recipe
from toolkit.recording import record
from toolkit.run import METRICS, Run, table
from toolkit.runtime.handle import Handle
from toolkit.runtime.outcome import Outcome
from toolkit.runtime.simulator import Simulator


class Started(Handle):
    """A run under way in virtual time: it computes in a process of its own and reports about four times a second.

    `tally` and `metrics` hold the latest report.
    """

    _clock = " virtual time"

    def __init__(
        self, name: str, recipe: Recipe, on: Simulator, launch: Callable[..., Outcome], progress: bool
    ) -> None:
        super().__init__(name, recipe.until, progress, "compiling")
        self._recipe, self._on, self._go = recipe, on, True
        self._outcome: futures.Future[Outcome] = futures.Future()
        self.metrics = table(METRICS)
        threading.Thread(target=self._work, args=(launch,), name="toolkit-start", daemon=True).start()

    def _work(self, launch: Callable[..., Outcome]) -> None:
        try:
            self._outcome.set_result(launch(heard=self._heard))
        except BaseException as error:
            self._outcome.set_exception(error)
        self.status = "ended"

    def _heard(self, said: Any) -> bool:
        tally, rows = said
        self.status, self.metrics = "running", table(METRICS, rows)
        self._show(tally)
        return self._go

    def stop(self) -> None:
        """End it soon; what it has achieved is kept."""
        self._go = False

    def _finished(self, late: float) -> Run:
        try:
            outcome = self._within(late, self._outcome)
            self._show(outcome.tally, whole=outcome.status == "finished")
        finally:
            if self._outcome.done():
                self._close()
        return record(self.name, self._recipe.words, outcome, self._on, self._recipe)

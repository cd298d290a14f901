"""A run under way in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from toolkit.core.tally import Tally
from toolkit.prepare import Recipe
from toolkit.progress import Progress
from toolkit.recording import record
from toolkit.run import METRICS, Run, table
from toolkit.runtime.outcome import Outcome
from toolkit.runtime.simulator import Simulator


class Started:
    """A run under way in virtual time: it computes in a process of its own and reports about four times a second.

    `tally` and `metrics` hold the latest report.
    """

    def __init__(
        self, name: str, recipe: Recipe, on: Simulator, launch: Callable[..., Outcome], progress: bool
    ) -> None:
        self.name, self._recipe, self._on = name, recipe, on
        self._go = True
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self.tally = Tally(rows=recipe.setup.cluster.rows)
        self.metrics = table(METRICS)
        self._bar = Progress(name, total=100, unit="%") if progress else None
        self._thread = threading.Thread(target=self._work, args=(launch,), daemon=True)
        self._thread.start()

    def _work(self, launch: Callable[..., Outcome]) -> None:
        try:
            self._outcome = launch(heard=self._heard)
        except BaseException as error:
            self._error = error

    def _heard(self, said: Any) -> bool:
        tally, rows = said
        self.metrics, self.tally = table(METRICS, rows), tally
        if self._bar is not None:
            share = min(1.0, self._recipe.until.amount(tally))
            self._bar.update(tally.time, tally.updates, tally.samples, dict(tally.metrics), share)
        return self._go

    def __repr__(self) -> str:
        state = "under way" if self._thread.is_alive() else "ended"
        return f"Started({self.name!r}, {state}, {self.tally.time:.4g} s virtual time, {self.tally.updates} updates)"

    @property
    def progress(self) -> dict[str, Any]:
        """How far it has come: seconds, updates, samples and the latest metrics."""
        tally = self.tally
        counts = {"seconds": tally.time, "updates": tally.updates, "samples": tally.samples}
        return {**counts, **tally.metrics}

    def stop(self) -> None:
        """End it soon; what it has achieved is kept."""
        self._go = False

    def wait(self, timeout: float | None = None) -> Run:
        """The run, once it has ended; its error is raised, with the run so far in the error's `run`.

        After `timeout` seconds a TimeoutError says that it goes on.
        """
        try:
            self._thread.join(timeout)
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._thread.is_alive():
            raise TimeoutError(
                f"The run {self.name!r} goes on after {timeout} s. It was not waited for any longer. "
                f"Wait again, or stop it."
            )
        if self._bar is not None:
            self._bar.close()
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return record(self.name, self._recipe.words, self._outcome, self._on, self._recipe)

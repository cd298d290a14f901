"""The progress of a run: a bar in a notebook or a terminal, a few plain lines where nobody watches."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TextIO

from tqdm import tqdm

LINES = 10  # at most, per run without an audience
PERIOD = 0.5  # seconds between repaints of a bar
UNITS = ("seconds", "updates", "samples", "%")


class Progress:
    """Shows how far a run has come; fed as often as one likes, it paints at most twice a second.

    Parameters
    ----------
    description : str
        What runs, such as the name of the strategy.
    total : float, optional
        Where the run ends, in `unit`; None if that is not known beforehand.
    unit : {"seconds", "updates", "samples", "%"}
        What is counted; ``"%"`` of whatever ends the run, told as `fraction`.
    interactive : bool, optional
        True: a bar (of widgets where a notebook has a front end). False: at most 10 plain lines. By default a bar
        if `file` is a terminal or a notebook server started this kernel, and lines otherwise (papermill, a job's log).
    file : text stream, optional
        Where to write; by default standard error.
    now : callable, optional
        The clock that paces the painting [s].

    Examples
    --------
    >>> with Progress("SSP", total=100, unit="updates", interactive=False, file=sys.stdout) as progress:
    ...     for update in (25, 26, 100):
    ...         progress.update(time=update / 50, updates=update, metrics={"loss": 1 / update})
    SSP: 25 of 100 updates, 0.5 s, loss 0.04
    SSP: 100 of 100 updates, 2 s, loss 0.01
    """

    def __init__(
        self,
        description: str,
        total: float | None = None,
        unit: str = "seconds",
        *,
        interactive: bool | None = None,
        file: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if unit not in UNITS:
            raise ValueError(
                f"Progress was to be counted in {unit!r}. A run counts {', '.join(UNITS)}. Choose one of these."
            )
        self._description, self._total, self._unit, self._now = description, total, unit, now
        self._file = file if file is not None else sys.stderr
        self._bar = _bar(description, total, unit, self._file) if _watched(self._file, interactive) else None
        self._painted, self._lines, self._due = -PERIOD, 0, 0.0
        self._last: tuple[float, str] = (0.0, "")
        self._shown, self._begun = True, False

    def say(self, words: str) -> None:
        """Tell what happens before the run begins; only a bar has room for it."""
        if self._bar is not None and not self._begun:
            self._bar.set_postfix_str(words)

    def update(
        self,
        time: float,
        updates: int = 0,
        samples: int = 0,
        metrics: Mapping[str, float] | None = None,
        fraction: float = 0.0,
    ) -> None:
        """Tell how far the run has come: time [s], merges, rows merged, latest metrics, fraction [0, 1]."""
        done = {"seconds": time, "updates": updates, "samples": samples, "%": 100 * fraction}[self._unit]
        notes = [] if self._unit == "seconds" else [f"{time:.4g} s"]
        notes += [] if self._unit == "updates" else [f"{updates} updates"]
        notes += [f"{name} {value:.4g}" for name, value in sorted((metrics or {}).items())]
        self._last, self._shown = (done, ", ".join(notes)), False
        if self._bar is not None and not self._begun:
            self._bar.reset()  # its clock begins with the run
        self._begun = True
        if self._bar is None:
            if done >= self._due and self._lines < LINES - 1:
                self._line()
        elif self._now() - self._painted >= PERIOD:
            self._paint()

    def close(self) -> None:
        """Show the last state once more and leave it standing."""
        if self._bar is not None:
            self._paint()
            self._bar.close()
        elif not self._shown:
            self._line()

    def _paint(self) -> None:
        self._painted = self._now()
        done, notes = self._last
        assert self._bar is not None
        self._bar.n = done if self._total is None else min(round(done, 2), self._total)
        self._bar.set_postfix_str(notes, refresh=False)
        self._bar.refresh()

    def _line(self) -> None:
        done, notes = self._last
        self._lines, self._shown = self._lines + 1, True
        # Without a known end the lines grow apart: each waits for twice as much as the one before.
        self._due = (2 * done or sys.float_info.min) if self._total is None else done + self._total / LINES
        of = "" if self._total is None else f" of {self._total:g}"
        print(f"{self._description}: {done:.4g}{of} {self._unit}, {notes}", file=self._file, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _served() -> bool:
    """Whether a notebook server with a front end started this kernel; papermill starts kernels without one."""
    return "ipykernel" in sys.modules and bool({"JPY_SESSION_NAME", "VSCODE_PID"} & set(os.environ))


def _watched(file: TextIO, interactive: bool | None) -> bool:
    return (file.isatty() or _served()) if interactive is None else interactive


def _bar(description: str, total: float | None, unit: str, file: TextIO) -> Any:
    if file is sys.stderr and _served():
        from tqdm.notebook import tqdm as widget

        return widget(desc=description, total=total, unit=f" {unit}")
    return tqdm(desc=description, total=total, unit=f" {unit}", file=file, mininterval=PERIOD, dynamic_ncols=True)

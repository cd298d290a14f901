"""Progress is seen where somebody looks, and is brief where nobody does."""

from __future__ import annotations

import io

import pytest

from toolkit.progress import LINES, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("total", [None, 20.0])
def test_without_an_audience_there_are_few_lines_and_the_last_state_is_told(total: float | None) -> None:
    file = io.StringIO()
    with Progress("SSP", total, file=file, interactive=False) as progress:
        for tick in range(2001):
            progress.update(time=tick / 100, updates=tick, samples=8 * tick, metrics={"loss": 1.0})
    lines = file.getvalue().splitlines()
    assert 5 <= len(lines) <= LINES
    assert lines[0].startswith("SSP: 0")
    assert lines[-1] == f"SSP: 20{' of 20' if total else ''} seconds, 2000 updates, loss 1"


def test_a_state_is_not_told_twice() -> None:
    file = io.StringIO()
    with Progress("SSP", 1, "updates", file=file, interactive=False) as progress:
        progress.update(time=0.5, updates=1)
    assert file.getvalue() == "SSP: 1 of 1 updates, 0.5 s\n"


def test_a_run_that_never_came_to_anything_says_nothing() -> None:
    file = io.StringIO()
    Progress("SSP", file=file, interactive=False).close()
    assert file.getvalue() == ""


def test_a_terminal_shows_a_bar_twice_a_second() -> None:
    seconds = [0.0]
    file = Terminal()
    with Progress("SSP", 1000, "updates", file=file, now=lambda: seconds[0]) as progress:
        for tick in range(1000):
            seconds[0] = tick / 100
            progress.update(time=tick / 100, updates=tick, metrics={"accuracy": 0.5})
    assert "accuracy 0.5" in file.getvalue()
    assert file.getvalue().count("\r") <= 2 * 10 + 4  # ten seconds, and opening and closing
    assert "999/1000" in file.getvalue()


def test_a_run_that_ends_by_a_condition_is_told_as_a_fraction() -> None:
    file = io.StringIO()
    with Progress("SSP", 100, "%", file=file, interactive=False) as progress:
        progress.update(time=0.5, updates=3, fraction=0.25)
    assert file.getvalue() == "SSP: 25 of 100 %, 0.5 s, 3 updates\n"


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="seconds, updates, samples"):
        Progress("SSP", unit="parsecs")

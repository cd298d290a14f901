"""The bookkeeping of workers against books kept the slow way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.core.messages import Committed, Finished, Joined, Left
from toolkit.core.progress import Progress

workers = st.integers(0, 5)
groups = st.frozensets(workers, max_size=4)
changes = st.one_of(
    st.tuples(st.just("joined"), workers),
    st.tuples(st.just("left"), workers),
    st.tuples(st.just("finished"), workers),
    st.tuples(st.just("committed"), groups),
    st.tuples(st.just("committed"), groups),  # the usual case
    st.tuples(st.just("release"), groups),
    st.tuples(st.just("wait"), workers),
)


class Books:
    """The same facts as plain dicts, computed anew at each question."""

    def __init__(self) -> None:
        self.clock: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.last_slowest = self.last_highest = 0

    def change(self, what, value):
        match what:
            case "joined" if value not in self.clock:
                self.clock[value] = self.slowest
                self.waiting.add(value)
            case "left" | "finished":
                self.clock.pop(value, None)
                self.waiting.discard(value)
            case "committed":
                for worker in value & self.clock.keys():
                    self.clock[worker] += 1
                    self.waiting.add(worker)
            case "release":
                self.waiting -= value
            case "wait" if value in self.clock:
                self.waiting.add(value)
        self.last_slowest, self.last_highest = self.slowest, self.highest

    @property
    def slowest(self) -> int:
        return min(self.clock.values(), default=self.last_slowest)

    @property
    def highest(self) -> int:
        return max(self.clock.values(), default=self.last_highest)


def changed(progress: Progress, what, value) -> Progress:
    match what:
        case "joined":
            return progress.observe(Joined(value, 0.0))
        case "left":
            return progress.observe(Left(value, 0.0))
        case "finished":
            return progress.observe(Finished(value, 0.0))
        case "committed":
            return progress.observe(Committed(value, 0.0))
        case "release":
            return progress.release([worker for worker in value if worker in progress.waiting])
    return progress.wait(value)


@given(st.lists(changes, max_size=60))
def test_progress_agrees_with_the_slow_books(history):
    progress, books = Progress(), Books()
    for what, value in history:
        before = progress
        progress = changed(progress, what, value)
        books.change(what, value)
        assert dict(progress.clock) == books.clock
        assert set(progress.waiting) == books.waiting
        assert all(progress.waiting[worker] == books.clock[worker] for worker in books.waiting)
        assert progress.count == len(books.clock)
        if books.clock:
            assert (progress.slowest, progress.highest) == (books.slowest, books.highest)
            assert progress.fastest == {w for w, c in books.clock.items() if c == books.highest}
        assert all(progress.lead(w) == c - books.slowest for w, c in books.clock.items())
        ends = (before.slowest, before.highest, before.count) != (progress.slowest, progress.highest, progress.count)
        assert progress.moved(before) == ends


def test_a_newcomer_starts_at_the_slowest_clock():
    progress = Progress()
    for event in (Joined(0, 0.0), Joined(1, 0.0), Committed(frozenset({0, 1}), 1.0), Committed(frozenset({0}), 2.0)):
        progress = progress.observe(event)
    progress = progress.observe(Joined(2, 3.0))
    assert dict(progress.clock) == {0: 2, 1: 1, 2: 1}
    assert progress.lead(0) == 1 and progress.lead(2) == 0


def test_progress_is_a_value():
    progress = Progress().observe(Joined(0, 0.0))
    assert progress.observe(Committed(frozenset({0}), 1.0)).clock[0] == 1
    assert progress.clock[0] == 0
    assert progress == Progress().observe(Joined(0, 5.0))


def test_only_members_can_be_asked_for_their_lead():
    with pytest.raises(KeyError):
        Progress().lead(0)

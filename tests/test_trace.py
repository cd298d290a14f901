"""The trace keeps what it is told: keys, rows, events and files come back as they were."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.core.messages import Committed, Done, Event, Join, Joined, Left, Measured
from toolkit.trace import (
    COLUMNS,
    EVENTS,
    LOG,
    TASKS,
    Row,
    Trace,
    events_frame,
    events_from,
    happened,
    key_from,
    key_text,
    numbers,
    read_parquet,
    write_parquet,
)

KEYS = st.lists(st.integers() | st.text(), max_size=5).map(tuple)
FLOATS = st.floats(allow_nan=False)
FACTS = st.dictionaries(st.text(), st.integers() | FLOATS | st.text() | st.none(), max_size=3)
JOINS = st.builds(
    Join,
    key=KEYS,
    about=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    after=st.lists(KEYS, max_size=3).map(tuple),
    round=st.none() | st.integers(0, 2**60),
)
WORKERS = st.integers(0, 10**6)
LOGGED = st.one_of(
    st.builds(Joined, WORKERS, FLOATS),
    st.builds(Left, WORKERS, FLOATS),
    st.builds(Done, JOINS, FLOATS, FACTS),
    st.builds(Measured, st.text(), FLOATS, WORKERS, FLOATS),
)


def small() -> Trace:
    trace = Trace()
    trace.append(happened("joined", ("joined", 0), 0.0, worker=0))
    trace.append(Row("send", ("pull", 0, 1, "s0"), 0.0, 0.1, 0.3, 0, 1, None, "s0", 0, 400.0, cause=0, src_seq=0))
    trace.append(Row("compute", ("compute", 0, 1), 0.3, 0.3, 1.0, 0, 1, place=0, samples=32, loss=0.1 + 0.2))
    trace.append(happened("ready", ("ready", 0, 1), 1.0, worker=0, clock=1, stale=2, samples=32))
    trace.append(happened("committed", ("committed", 0), 1.5, round=0))
    return trace


@given(KEYS)
def test_the_text_of_a_key_restores_numbers_and_words(key: tuple[str | int, ...]) -> None:
    assert key_from(key_text(key)) == key
    assert [type(part) for part in key_from(key_text(key))] == [type(part) for part in key]


@given(KEYS, KEYS)
def test_different_keys_have_different_texts(one: tuple[str | int, ...], two: tuple[str | int, ...]) -> None:
    assert (key_text(one) == key_text(two)) == (one == two)


@pytest.mark.parametrize("text", ["a::b", ":a", "a:", 'a:"b', "a b", "007", '"plain"'])
def test_what_is_not_the_text_of_a_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="text of a task key"):
        key_from(text)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (("compute", 3, 17), (3, 17, None)),
        (("pull", 3, 17, "s0"), (3, 17, None)),
        (("push", 3, 17, "s0"), (3, 17, None)),
        (("ready", 3, 17), (3, 17, None)),
        (("apply", 5, "s0"), (None, None, 5)),
        (("reduce", 5), (None, None, 5)),
        (("hop", 5, 2), (None, None, 5)),
        (("gather", 5, 1, 2), (None, None, 5)),
        (("mix", 5, 2), (2, None, 5)),
        (("gossip", 5, 2, 3), (2, None, 5)),
        (("merged", 5), (None, None, 5)),
        (("evaluate", 5), (None, None, 5)),
        (("joined", 2), (2, None, None)),
        (("of", "someone", "else"), (None, None, None)),
    ],
)
def test_numbers_in_keys(key: tuple[str | int, ...], expected: tuple[int | None, ...]) -> None:
    assert numbers(key) == expected


def test_rows_are_numbered_and_typed() -> None:
    frame = small().frame()
    assert list(frame.columns) == list(COLUMNS)
    assert [frame[name].dtype == dtype for name, dtype in COLUMNS.items()] == [True] * len(COLUMNS)
    assert frame["seq"].tolist() == [0, 1, 2, 3, 4]
    assert list(frame["kind"].cat.categories) == [*TASKS, *EVENTS]
    assert frame.loc[1, ["place", "peer"]].tolist() == ["s0", "0"]
    assert frame.loc[frame["stale"].notna(), "key"].tolist() == ["ready:0:1"]
    assert frame.loc[frame["loss"].notna(), "loss"].tolist() == [0.1 + 0.2]


def test_an_empty_trace_has_all_columns_with_their_types() -> None:
    frame = Trace().frame()
    assert len(frame) == 0
    assert {name: frame[name].dtype == dtype for name, dtype in COLUMNS.items()} == dict.fromkeys(COLUMNS, True)


def test_a_frame_is_of_the_rows_so_far() -> None:
    trace = small()
    before = trace.frame()
    assert trace.append(happened("left", ("left", 0), 2.0, worker=0)) == len(before)
    pd.testing.assert_frame_equal(trace.frame().iloc[:-1], before)


def test_a_row_of_an_unknown_kind_is_refused() -> None:
    trace = small()
    trace.append(happened("dreamt", ("dreamt",), 1.0))
    with pytest.raises(ValueError, match="dreamt"):
        trace.frame()


def test_equal_rows_give_equal_files_and_come_back(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_parquet(small().frame(), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert b"pandas" not in (tmp_path / "one").read_bytes()
    pd.testing.assert_frame_equal(read_parquet(tmp_path / "one", COLUMNS), small().frame())


@given(st.lists(LOGGED, max_size=6))
def test_the_log_of_events_comes_back_exactly(tmp_path_factory: pytest.TempPathFactory, events: list[Event]) -> None:
    path = tmp_path_factory.mktemp("log") / "events.parquet"
    write_parquet(events_frame(events), path)
    back = events_from(read_parquet(path, LOG))
    assert back == tuple(events)
    for old, new in zip(events, back, strict=True):
        assert struct.pack("d", old.time) == struct.pack("d", new.time)  # type: ignore[attr-defined]


def test_facts_that_are_no_number_come_back() -> None:
    lost = Done(Join(("ready", 0, 1), about=(0,)), 1.0, {"loss": math.nan, "norm": math.inf, "samples": 8})
    (back,) = events_from(events_frame([lost]))
    assert isinstance(back, Done)
    assert math.isnan(back.facts["loss"]) and back.facts["norm"] == math.inf and back.facts["samples"] == 8


def test_events_that_follow_from_others_are_not_logged() -> None:
    with pytest.raises(TypeError, match="Committed"):
        events_frame([Committed(frozenset({1}), 0.0)])

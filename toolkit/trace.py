"""The trace of a run: one tidy row per performed task and per event, and the log of events a run is replayed from.

Rows are appended as plain tuples, so recording costs next to nothing; :meth:`Trace.frame` turns them into the
table that metrics and plots read. The Parquet files hold nothing that varies between two equal runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from toolkit.core.messages import Done, Event, Join, Joined, Key, Left, Measured, PlaceName, Worker

TASKS = ("compute", "stage", "send", "hop", "reduce", "apply", "mix", "evaluate", "cancel")
EVENTS = ("joined", "left", "finished", "ready", "committed", "measured", "done")

TEXT = pd.StringDtype("pyarrow")
KIND = pd.CategoricalDtype([*TASKS, *EVENTS])
COLUMNS: dict[str, Any] = (
    {"seq": "int64", "kind": KIND, "key": TEXT, "worker": "Int64", "clock": "Int64", "round": "Int64"}
    | {"place": TEXT, "peer": TEXT, "wanted": "float64", "began": "float64", "ended": "float64", "nbytes": "float64"}
    | {"stale": "Int64", "samples": "int64", "cause": "int64", "src_seq": "int64", "dst_seq": "int64"}
    | {"loss": "float64"}
)
LOG: dict[str, Any] = (
    {"seq": "int64", "kind": TEXT, "key": TEXT, "worker": "Int64", "about": TEXT, "after": TEXT}
    | {"time": "float64", "name": TEXT, "value": "float64", "round": "Int64"}
    | {"facts": TEXT}
)


class Row(NamedTuple):
    """A performed task or an event, as a runtime hands it to the trace; times in seconds since the run began.

    `place` is where, and for a send from where; `peer` is to where. `began - wanted` is queueing. `stale` belongs
    to ready rows, `samples` to compute and ready rows, `loss` to compute rows. `cause` is the number of the event
    row that asked for the task; `src_seq` and `dst_seq` order the reads and writes at each place (-1: none).
    """

    kind: str
    key: Key
    wanted: float
    began: float
    ended: float
    worker: Worker | None = None
    clock: int | None = None
    round: int | None = None
    place: PlaceName | None = None
    peer: PlaceName | None = None
    nbytes: float = 0.0
    stale: int | None = None
    samples: int = 0
    cause: int = -1
    src_seq: int = -1
    dst_seq: int = -1
    loss: float = float("nan")


def happened(kind: str, key: Key, time: float, **facts: Any) -> Row:
    """The row of an event: wanted, begun and ended at one time; `facts` are further fields of :class:`Row`."""
    return Row(kind, key, time, time, time, **facts)


class Trace:
    """An append-only list of rows.

    Examples
    --------
    >>> trace = Trace()
    >>> trace.append(Row("compute", ("compute", 0, 1), 0.0, 0.0, 1.5, worker=0, clock=1, place=0, samples=32))
    0
    >>> trace.append(happened("ready", ("ready", 0, 1), 1.5, worker=0, clock=1, stale=0))
    1
    >>> trace.frame()[["seq", "kind", "key", "ended"]]
       seq     kind          key  ended
    0    0  compute  compute:0:1    1.5
    1    1    ready    ready:0:1    1.5
    """

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def append(self, row: Row) -> int:
        """Record a row; its number `seq` is returned, for the `cause` of what follows from it."""
        self._rows.append(row)
        return len(self._rows) - 1

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows so far, with the fields of :class:`Row`; plain tuples cost less than named ones."""
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def frame(self) -> pd.DataFrame:
        """The rows so far as a table with the columns and types of ``COLUMNS``."""
        rows = self._rows[:]  # a runtime may go on recording meanwhile
        columns: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate(Row._fields)}
        if unknown := set(columns["kind"]) - set(KIND.categories):
            raise ValueError(
                f"The trace holds rows of the kinds {sorted(unknown)}. Metrics know only {', '.join(KIND.categories)}. "
                f"Record the row under one of these kinds."
            )
        columns["key"] = [key_text(key) for key in columns["key"]]
        for name in ("place", "peer"):
            columns[name] = [None if place is None else str(place) for place in columns[name]]
        arrays = {name: pd.array(columns[name], dtype=dtype) for name, dtype in COLUMNS.items() if name != "seq"}
        return pd.DataFrame({"seq": np.arange(len(rows)), **arrays})


# -- keys as text -----------------------------------------------------------------------------------------------

_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[^:"]+')
_PLAIN = re.compile(r'(?!-?[0-9]+\Z)[^:"\s]+')


@lru_cache(maxsize=4096)
def _word(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else json.dumps(part)


def key_text(key: Key) -> str:
    """A task key as text: its parts joined by colons.

    Numbers are written in decimal and words as they are; a word that would be misread (it looks like a number,
    is empty, or holds a colon, a quote or white space) is written as JSON text.

    Examples
    --------
    >>> key_text(("push", 3, 17, "s0")), key_text(("note", "17", "a:b"))
    ('push:3:17:s0', 'note:"17":"a:b"')
    """
    return ":".join([str(part) if isinstance(part, int) else _word(part) for part in key])


def key_from(text: str) -> Key:
    """The key whose :func:`key_text` is `text`.

    Examples
    --------
    >>> key_from('note:"17":a:-3')
    ('note', '17', 'a', -3)
    """

    def part(word: str) -> str | int:
        if word.startswith('"'):
            return str(json.loads(word))
        return word if _PLAIN.fullmatch(word) else int(word)

    try:
        key = tuple(part(word) for word in _WORD.findall(text))
    except ValueError:
        key = ()
    if key_text(key) != text:
        raise ValueError(
            f"{text!r} was given as the text of a task key. A key is written as words and whole numbers joined by "
            f"colons, such as push:3:17:s0. Take the text from the column `key` of a trace."
        )
    return key


def numbers(key: Key) -> tuple[Worker | None, int | None, int | None]:
    """Worker, clock and round that a key of a known form names; None where it names none.

    Examples
    --------
    >>> numbers(("push", 3, 17, "s0")), numbers(("mix", 5, 2))
    ((3, 17, None), (2, None, 5))
    """
    match key:
        case ("compute" | "pull" | "push" | "ready" | "stage", int(worker), int(clock), *_):
            return worker, clock, None
        case ("mix" | "gossip", int(number), int(worker), *_):
            return worker, None, number
        case ("apply" | "reduce" | "hop" | "gather" | "merged" | "evaluate", int(number), *_):
            return None, None, number
        case ("joined" | "left" | "finished", int(worker)):
            return worker, None, None
    return None, None, None


# -- the log of events --------------------------------------------------------------------------------------------


def events_frame(events: Iterable[Event]) -> pd.DataFrame:
    """The events of a runtime as a table, from which :func:`events_from` restores them exactly.

    Facts must be what JSON can hold: numbers, text, None, lists and mappings with text keys.
    """

    def entry(event: Event) -> Mapping[str, Any]:
        match event:
            case Joined(worker, time) | Left(worker, time):
                return {"kind": type(event).__name__.lower(), "worker": worker, "time": time}
            case Done(task, time, facts):
                named = {"key": key_text(task.key), "about": json.dumps(task.about), "round": task.round}
                after = json.dumps([key_text(key) for key in task.after])
                return {"kind": "done", "time": time, **named, "after": after, "facts": json.dumps(dict(facts))}
            case Measured(name, value, number, time):
                return {"kind": "measured", "time": time, "name": name, "value": value, "round": number}
        raise TypeError(
            f"{event!r} was to be logged. Only what a runtime reports is an input of a strategy, the rest follows. "
            f"Log Joined, Left, Done and Measured."
        )

    entries = [entry(event) for event in events]
    columns = {name: pd.array([e.get(name) for e in entries], dtype=LOG[name]) for name in LOG if name != "seq"}
    return pd.DataFrame({"seq": np.arange(len(entries)), **columns})


def events_from(frame: pd.DataFrame) -> tuple[Event, ...]:
    """The events that :func:`events_frame` wrote down."""

    def event(row: Any) -> Event:
        number = None if row.round is pd.NA else int(row.round)
        match row.kind:
            case "joined":
                return Joined(int(row.worker), row.time)
            case "left":
                return Left(int(row.worker), row.time)
            case "measured":
                return Measured(row.name, row.value, int(row.round), row.time)
        after = tuple(key_from(text) for text in json.loads(row.after))
        task = Join(key_from(row.key), about=tuple(json.loads(row.about)), after=after, round=number)
        return Done(task, row.time, json.loads(row.facts))

    return tuple(event(row) for row in frame.itertuples(index=False))


# -- Parquet ------------------------------------------------------------------------------------------------------


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Write a table so that equal tables give equal files: no metadata of pandas, no schema of Arrow."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    plain = [field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in table.schema]
    pq.write_table(table.cast(pa.schema(plain)), path, compression="zstd", store_schema=False)


def read_parquet(path: Path, columns: Mapping[str, Any]) -> pd.DataFrame:
    """Read a table that has these columns, with these types."""
    types = {pa.int64(): pd.Int64Dtype(), pa.string(): TEXT}
    frame: pd.DataFrame = pq.read_table(path, columns=list(columns)).to_pandas(types_mapper=types.get)
    return frame.astype(dict(columns))

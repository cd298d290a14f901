"""The record of a run: the recipe, what it ran on, its trace, its metrics and its parameters."""

from __future__ import annotations

import html
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd

from toolkit import folder as folders
from toolkit import metrics as measure
from toolkit.core.conditions import reaches
from toolkit.core.errors import Refused
from toolkit.core.messages import Event
from toolkit.intervals import seconds
from toolkit.trace import COLUMNS, LOG, TEXT, events_frame, events_from

METRICS: dict[str, Any] = {"time": "float64", "round": "int64", "samples": "int64", "name": TEXT, "value": "float64"}
RESOURCES: dict[str, Any] = {"time": "float64", "place": TEXT, "host": TEXT, "cpu": "float64", "memory": "float64"} | {
    "received": "float64",
    "sent": "float64",
}
TABLES = {"trace": COLUMNS, "metrics": METRICS, "resources": RESOURCES, "events": LOG}
RECORDED: dict[str, Any] = (
    dict.fromkeys(("name", "recipe", "problem", "optimizer"), str)
    | {"cluster": dict, "options": dict, "seed": int, "measured": bool, "versions": dict}
    | {"compile_seconds": (int, float), "status": str}
)


class Target(Protocol):
    """A value of a metric to be reached, such as ``tk.reaches("accuracy", 0.8)``."""

    @property
    def metric(self) -> str:
        """Name of the metric."""

    @property
    def value(self) -> float:
        """What it has to reach."""


def table(columns: Mapping[str, Any], data: Any = None) -> pd.DataFrame:
    """A table with these columns and types, empty or of `data`."""
    return pd.DataFrame(data, columns=list(columns)).astype(dict(columns))


@dataclass(eq=False, repr=False)
class Run:
    """One training run: what was asked, where it ran, what happened.

    Parameters
    ----------
    name : str
        The name of the strategy in a comparison.
    recipe, problem, optimizer : str
        The strategy, which ``tk.parse`` reads back; the problem; the optimizer.
    cluster : dict
        `description`, `hosts`, `settings` (affinity, XLA flags, thread counts, x64), `cpu` (model), `oversubscribed`.
    seed : int
    options : dict of str
        Outer optimizer, clock, scaling, on_loss, state, deal, correction, evaluate, until.
    measured : bool
        True: times are of a real cluster. False: times are virtual.
    trace : DataFrame
        One row per task and event, in the order in which they happened.
    metrics : DataFrame
        One row per measured value: `time` [s], `round`, `samples` [rows], `name`, `value`.
    resources : DataFrame
        One row per look at a process: `time` [s], `place`, `host`, `cpu` [%], `memory`, `received` and `sent` [byte].
    events : tuple of Event
        The inputs of the strategy, from which the run can be replayed.
    versions : dict of str
    compile_seconds : float [s]
        Compilation, which no time in the trace contains.
    params : array or nested mapping of arrays, optional
        What was learned: the flat model vector, or parameters by name.
    status : str
        ``"finished"``; ``"stopped"`` on request; ``"stopped: "`` and why; or, from :meth:`replay`, ``"replayed"`` and
        how far.
    made : Recipe, optional
        In this session, the objects that the texts stand for, for :meth:`replay`. It is never saved.

    Examples
    --------
    >>> import toolkit as tk
    >>> strategy = tk.chain(tk.asp(), tk.parameter_server())
    >>> run = tk.simulate(strategy, tk.Simulator(2), until=tk.iterations(3), name="ASP")
    >>> run
    Run('ASP', chain(asp(), parameter_server()), 3 s virtual time, 6 updates, finished)
    >>> run.summary()[["strategy", "seconds", "updates"]]
      strategy  seconds  updates
    0      ASP      3.0        6
    """

    name: str
    recipe: str
    trace: pd.DataFrame
    measured: bool = False
    seed: int = 0
    problem: str = ""
    optimizer: str = ""
    cluster: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    metrics: pd.DataFrame = field(default_factory=lambda: table(METRICS))
    resources: pd.DataFrame = field(default_factory=lambda: table(RESOURCES))
    events: tuple[Event, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    compile_seconds: float = 0.0
    params: Any = None
    status: str = "finished"
    made: Any = None  # in this session, the objects that the texts stand for; never saved

    _replay: ClassVar[Callable[..., Run] | None] = None  # training sets it: a record knows no engine

    def __post_init__(self) -> None:
        self.name = str(self.name)
        self.metrics, self.resources = table(METRICS, self.metrics), table(RESOURCES, self.resources)

    @property
    def clock(self) -> str:
        """What its seconds are: ``"measured"`` or ``"virtual time"``."""
        return "measured" if self.measured else "virtual time"

    def summary(self, target: Target | tuple[str, float] | None = None) -> pd.DataFrame:
        """The run in one row, with the columns of :meth:`toolkit.runs.Runs.summary`."""
        row = self.facts(target)
        warn_unheard(row)
        return pd.DataFrame([row])

    def facts(self, target: Target | tuple[str, float] | None = None) -> dict[str, Any]:
        """The row of :meth:`summary` as a mapping."""
        counts, merges, length = measure.throughput(self), measure.staleness(self), seconds(self)
        total, each = counts.loc["all"].to_dict(), counts["iterations"].iloc[1:]
        values = self.metrics.sort_values("time", kind="stable").groupby("name")["value"].last()
        last = {str(name): float(value) for name, value in values.items()}
        row: dict[str, Any] = {"strategy": self.name, "seconds": length}
        row |= {"updates": len(merges), "iterations": int(total["iterations"]), "samples": int(total["samples"])}
        row |= {"loss": last.pop("loss", np.nan), "accuracy": last.pop("accuracy", np.nan)} | last
        if target is not None:
            row["to_target"] = measure.time_to(self, *goal(target))
        row |= {"waiting": float(measure.waiting(self).sum())}
        stale = np.average(merges["stale"], weights=merges["workers"]) if len(merges) else np.nan
        row |= {"stale_mean": float(stale), "stale_max": float(merges["stale_max"].max())}
        row |= {"sent": float(measure.traffic(self)["sent"].sum()), "dropped": int(measure.dropped(self).sum())}
        row |= {"unheard": ", ".join(str(worker) for worker in each.index[each == 0])}
        row |= {"updates_per_second": len(merges) / length if length else np.nan}
        row |= {name: total[name] for name in ("iterations_per_second", "samples_per_second")}
        return row | {"compile_seconds": self.compile_seconds, "measured": self.measured, "status": self.status}

    def replay(self, **options: Any) -> Run:
        """Run again from the log of events, to the same parameters bit for bit on equal settings and CPU model."""
        if self._replay is None:
            raise TypeError(
                f"The run {self.name!r} was to be replayed, and nothing is loaded that can train. A record holds "
                f"events and no engine. Import toolkit, which brings one."
            )
        return self._replay(**options)

    def save(self, folder: str | Path) -> Path:
        """Save into a new folder: ``run.json``, Parquet tables of trace, metrics, resources and events, ``params.npz``.

        The folder appears whole or not at all; one that exists is refused.
        """
        return folders.whole(folder, self.write)

    def write(self, folder: Path) -> None:
        """Write the files of :meth:`save` into an existing, empty folder."""
        tables = {"trace": self.trace, "metrics": self.metrics, "resources": self.resources}
        saved = None if self.params is None else arrays(self.params)
        record = {name: getattr(self, name) for name in RECORDED}
        folders.write(folder, record, tables | {"events": events_frame(self.events)}, saved)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """The run that :meth:`save` wrote; a damaged folder is an error that names what is wrong with it."""
        folder = folders.place(folder)
        record, tables, saved = folders.read(folder, TABLES)
        known = {name for name, kind in RECORDED.items() if isinstance(record.get(name), kind)}
        if wrong := sorted({*record, *RECORDED} - known):
            raise folders.damaged(folder, f"has a {folders.RECORD} whose {', '.join(wrong)} cannot be of a run")
        with folders.reading(folder, "params.npz"):
            params = None if saved is None else _params(saved)
        with folders.reading(folder, "events.parquet"):
            fields: dict[str, Any] = {**tables, "events": events_from(tables["events"])}
        return cls(**record, **fields, params=params)

    def __repr__(self) -> str:
        facts = f"{seconds(self):.4g} s {self.clock}, {len(measure.staleness(self))} updates"
        return f"Run({self.name!r}, {self.recipe}, {facts}, {self.status})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


def goal(target: Any) -> tuple[str, float]:
    """The metric to be reached and its value; refuse what is neither a condition on a metric nor such a pair."""
    pair = target if isinstance(target, tuple) else (getattr(target, "metric", None), getattr(target, "value", None))
    if len(pair) != 2 or None in pair:
        raise Refused(
            f"target={target!r} is no value of a metric. What is reached is a number, under the name of a metric. "
            f"Give reaches('loss', 0.1) or ('loss', 0.1)."
        )
    aim = reaches(*pair)
    return aim.metric, aim.value


def warn_unheard(row: Mapping[str, Any]) -> None:
    """Warn if a row of a summary names workers none of whose updates was merged."""
    if row["unheard"]:
        several = "," in row["unheard"]
        workers, they, them, their = ("workers", "they", "them", "their") if several else ("worker", "it", "it", "its")
        warnings.warn(
            f"No update of {workers} {row['unheard']} was merged in {row['strategy']!r}. The rows {they} read taught "
            f"the model nothing. Let {them} be waited for, or share {their} rows out.",
            stacklevel=3,
        )


def arrays(params: Any) -> dict[str, np.ndarray]:
    """Arrays by their path, written as a JSON list: ``[]`` for one array, ``["block", "kernel"]`` in a mapping."""

    def leaves(node: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str, np.ndarray]]:
        if isinstance(node, Mapping):
            for key, child in node.items():
                yield from leaves(child, (*path, key))
        elif (array := np.asarray(node)).dtype != object:
            yield json.dumps(path), array
        else:
            raise TypeError(
                f"The parameters hold {type(node).__name__} at {list(path)}. A record saves arrays and nested mappings "
                f"of arrays. Give the flat vector, or a plain dict of arrays."
            )

    return dict(leaves(params, ()))


def _params(arrays: Mapping[str, np.ndarray]) -> Any:
    """What :func:`arrays` took apart."""
    tree: dict[Any, Any] = {}
    for name, array in arrays.items():
        *path, last = json.loads(name) or [None]
        node = tree
        for key in path:
            node = node.setdefault(key, {})
        node[last] = array
    return tree.get(None, tree)

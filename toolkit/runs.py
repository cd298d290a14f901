"""Several runs side by side: a mapping from name to run, its summary, and whether the runs may be compared."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit import folder as folders
from toolkit.core.errors import Refused
from toolkit.run import Run, Target, warn_unheard

INDEX = "runs.json"
OWN = {"affinity", "processes"}  # settings that differ from process to process
CONVENTIONS = ("until", "workers", "outer", "clock", "scaling", "state", "deal", "correction")  # options to be alike


class Runs(Mapping[str, Run]):
    """Runs by name, in order; each run carries the name it has here.

    Parameters
    ----------
    runs : mapping of str to Run

    Examples
    --------
    >>> import toolkit as tk
    >>> server, cluster = tk.parameter_server(), tk.Simulator(2, step=tk.constant([1.0, 2.0]))
    >>> bsp, asp = (
    ...     tk.simulate(tk.chain(policy, server), cluster, until=tk.seconds(8.5)) for policy in (tk.bsp(), tk.asp())
    ... )
    >>> runs = tk.Runs({"BSP": bsp, "ASP": asp})
    >>> runs
    Runs(BSP, ASP)
    >>> runs.summary()[["strategy", "updates", "iterations", "measured", "comparable"]]
      strategy  updates  iterations  measured comparable
    0      BSP        4           8     False        yes
    1      ASP       12          12     False        yes
    """

    def __init__(self, runs: Mapping[str, Run]) -> None:
        named = isinstance(runs, Mapping) and all(isinstance(n, str) and isinstance(r, Run) for n, r in runs.items())
        if not named:
            raise Refused(
                f"Runs were given as a {type(runs).__name__}: {runs!r}. Runs stand side by side under names. "
                f"Give a mapping of text to Run, such as {{'BSP': run}}."
            )
        self._runs = {name: run if run.name == name else replace(run, name=name) for name, run in runs.items()}

    def __getitem__(self, name: str) -> Run:
        return self._runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __or__(self, other: Mapping[str, Run]) -> Runs:
        """Both: later runs replace earlier ones of the same name."""
        return Runs({**self._runs, **Runs(other)})

    def summary(self, target: Target | tuple[str, float] | None = None) -> pd.DataFrame:
        """One row per run; warns of what makes the rows hard to compare.

        Parameters
        ----------
        target : ``tk.reaches(metric, value)`` or (metric, value), optional
            Adds the column `to_target` [s], NaN where the value was not reached.

        Returns
        -------
        DataFrame
            `strategy`; `seconds` [s]; `updates`, the merges; `iterations` of workers that they took in; `samples`
            [rows]; last `loss`, `accuracy` and other metrics; `waiting` [s], of all workers; `stale_mean` and
            `stale_max` [merges]; `sent` [byte]; `dropped`, the iterations that no merge took in; `unheard`, the workers
            of whom none was merged; `updates_per_second`, `iterations_per_second`, `samples_per_second`;
            `compile_seconds` [s], not part of `seconds`; `measured` (False: virtual time); `status`; `comparable`,
            ``"yes"`` or in what the run differs from the first beside its strategy. With a target, `to_target` [s].

        Notes
        -----
        `stale_mean` and `stale_max` count the merges between the read and the merge of an update, those of all other
        workers included; the staleness s that :func:`ssp` and :func:`dssp` bound is a lead in iterations of one worker.
        Under ``ssp(s)`` n workers have a `stale_max` of at most (n - 1) (2 s + 1).
        """
        rows = self._rows(target)
        for row in rows:
            warn_unheard(row)
        if other := [f"{row['strategy']!r} ({row['comparable']})" for row in rows if row["comparable"] != "yes"]:
            warnings.warn(
                f"Runs differ from {next(iter(self))!r} in more than their strategy: {'; '.join(other)}. Their seconds "
                f"do not measure the strategies alone. Compare runs of one problem, one kind of time, equal settings.",
                stacklevel=2,
            )
        return pd.DataFrame(rows)

    def _rows(self, target: Target | tuple[str, float] | None = None) -> list[dict[str, Any]]:
        return [
            run.facts(target) | {"comparable": differences(next(iter(self.values())), run)} for run in self.values()
        ]

    def save(self, folder: str | Path) -> Path:
        """Save into a new folder, one folder per run beside an index; see :meth:`toolkit.run.Run.save`."""

        def write(path: Path) -> None:
            index = {name: f"{i:02d}-{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}" for i, name in enumerate(self)}
            for name, run in self.items():
                run.save(path / index[name])
            (path / INDEX).write_text(json.dumps(index, indent=2) + "\n")

        return folders.whole(folder, write)

    def __repr__(self) -> str:
        return f"Runs({', '.join(self)})"

    def _repr_html_(self) -> str:
        return pd.DataFrame(self._rows()).to_html(index=False, float_format=lambda number: f"{number:.4g}", na_rep="")


def differences(first: Run, other: Run) -> str:
    """In what two runs differ that is no matter of strategy; ``"yes"`` if in nothing: they are comparable.

    Compared are the kind of time, the problem (with its batch), the optimizer and the conventions of training, the
    workers, the end and, within one kind of time, the settings of the processes (threads, XLA flags), the CPU model and
    whether cores were oversubscribed, or the description of the cluster if it is virtual. Seeds may differ.
    """
    pairs: dict[str, tuple[Any, Any]] = {
        "measured": (first.measured, other.measured),
        "problem": (first.problem, other.problem),
        "optimizer": (first.optimizer, other.optimizer),
        **{name: (first.options.get(name), other.options.get(name)) for name in CONVENTIONS},
    }
    if not (first.measured or other.measured):
        pairs["cluster"] = (first.cluster.get("description"), other.cluster.get("description"))
    if first.measured == other.measured:
        mine, theirs = (run.cluster.get("settings", {}) for run in (first, other))
        alike = sorted({*mine, *theirs} - OWN)
        pairs |= {name: (mine.get(name), theirs.get(name)) for name in alike}
        pairs |= {name: (first.cluster.get(name), other.cluster.get(name)) for name in ("cpu", "oversubscribed")}
    notes = [f"{name}: {theirs}, not {mine}" for name, (mine, theirs) in pairs.items() if mine != theirs]
    return "; ".join(notes) or "yes"


def load(folder: str | Path) -> Run | Runs:
    """The run or the runs that were saved into `folder`.

    Parameters
    ----------
    folder : str or Path
        Written by :meth:`Run.save` or :meth:`Runs.save`.

    Returns
    -------
    Run or Runs
        What was saved.

    Raises
    ------
    FolderDamaged
        If something is missing or was altered; the message names the file.

    Examples
    --------
    >>> import toolkit as tk
    >>> strategy = tk.chain(tk.asp(), tk.parameter_server())
    >>> run = tk.simulate(strategy, tk.Simulator(2), until=tk.iterations(3), name="ASP")
    >>> tk.load(run.save("results/asp"))
    Run('ASP', chain(asp(), parameter_server()), 3 s virtual time, 6 updates, finished)
    """
    folder = folders.place(folder)
    if not (folder / INDEX).exists():
        return Run.load(folder)
    with folders.reading(folder, INDEX):
        index: Any = json.loads((folder / INDEX).read_text())
    if not isinstance(index, dict) or any(type(part) is not str or Path(part).name != part for part in index.values()):
        raise folders.damaged(folder, f"has an {INDEX} that does not give names the folders beside it")
    return Runs({name: Run.load(folder / part) for name, part in index.items()})

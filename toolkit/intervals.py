"""The trace seen by iterations: what happened to each update of each worker, from its first task to its merge."""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np
import pandas as pd

from toolkit.trace import key_from

OUTSIDE = ("evaluate", "measured")
Table = TypeVar("Table", pd.DataFrame, "pd.Series[float]", "pd.Series[int]")


class Recorded(Protocol):
    """What metrics read of a run."""

    trace: pd.DataFrame
    metrics: pd.DataFrame


def seconds(run: Recorded) -> float:
    """Length of the run [s]: the end of its last row, evaluation (outside the timed lanes) left out."""
    trace = run.trace
    return float(trace.loc[~trace["kind"].isin(OUTSIDE), "ended"].max()) if len(trace) else 0.0


def iterations(run: Recorded) -> pd.DataFrame:
    """One row per update that became ready, in the order of the trace.

    Returns
    -------
    DataFrame
        `worker`, `clock`; `began` [s], when the first task was wanted; `ready` [s]; `issued` and `committed` [s],
        begin and end of the merge that took the update in, and its `round` (missing: dropped, or still under way);
        `stale` [merges], see :func:`toolkit.metrics.staleness`; `samples` [rows]; `next` [s], when the first task of
        the worker's next iteration was wanted (missing: there was none).
    """
    trace = run.trace
    own = trace[trace["kind"].isin(("compute", "stage", "send")) & trace["clock"].notna()]
    steps = own.groupby(["worker", "clock"]).agg(began=("wanted", "min")).reset_index()
    steps["next"] = steps.groupby("worker")["began"].shift(-1)
    rows = own[own["kind"] == "compute"].groupby(["worker", "clock"])["samples"].sum()

    ready = trace.loc[trace["kind"] == "ready", ["seq", "worker", "clock", "ended", "stale", "samples"]]
    ready = ready.assign(clock=ready["clock"].fillna(ready.groupby("worker").cumcount() + 1))  # each iteration has one
    frame = ready.rename(columns={"ended": "ready"}).merge(steps, on=["worker", "clock"], how="left")
    counted = rows.reindex(pd.MultiIndex.from_frame(frame[["worker", "clock"]])).fillna(0).to_numpy()
    frame["samples"] = np.maximum(frame["samples"].to_numpy(), counted).astype("int64")
    frame["worker"], frame["clock"] = frame["worker"].astype("int64"), frame["clock"].astype("int64")

    merged = frame.merge(_merged(trace, frame), on="seq", how="left")
    waited = merged.pop("behind").fillna(0).astype("int64")
    merged["stale"] = merged["stale"].fillna(0).astype("int64") + waited
    names = ["worker", "clock", "began", "ready", "issued", "committed", "round", "stale", "samples", "next"]
    return merged[names]


def _merged(trace: pd.DataFrame, ready: pd.DataFrame) -> pd.DataFrame:
    """For each update that was merged: `seq` of its ready row, the merge, and the merges issued while it lay there."""
    commits = trace.loc[trace["kind"] == "committed", ["seq", "key", "round", "ended"]]
    merges = trace.loc[(trace["kind"] == "done") & trace["key"].str.startswith("merged:"), ["seq", "round"]]
    # The event itself knows its group only; it follows from the one that says that a merge is done.
    reported = pd.merge_asof(commits[["seq"]], merges, on="seq")["round"].to_numpy()
    commits["round"] = commits["round"].fillna(pd.Series(reported, index=commits.index, dtype="Int64"))
    groups = [key_from(key)[1:] for key in commits["key"]]
    members = commits.loc[commits.index.repeat([len(group) for group in groups])].rename(columns={"ended": "committed"})
    members["worker"] = np.array([worker for group in groups for worker in group], dtype="int64")
    lookup = ready[["seq", "worker"]].assign(own=ready["seq"])
    pairs = pd.merge_asof(members, lookup, on="seq", by="worker").dropna(subset="own").astype({"own": "int64"})

    tasks = trace[trace["round"].notna() & ~trace["kind"].isin((*OUTSIDE, "committed", "done"))]
    merges = tasks.groupby("round").agg(issued=("wanted", "min"), cause=("cause", "min")).sort_index()
    pairs = pairs.merge(merges["issued"].reset_index(), on="round", how="left")
    pairs["issued"] = pairs["issued"].fillna(pairs["committed"])
    order = merges.index.searchsorted(pairs["round"].fillna(-1).to_numpy(dtype="int64"))
    before = np.searchsorted(np.maximum.accumulate(merges["cause"].to_numpy()), pairs["own"].to_numpy())
    pairs["behind"] = np.maximum(order - before, 0)
    return pairs.drop(columns=["seq", "worker", "key"]).rename(columns={"own": "seq"}).drop_duplicates("seq")


def by_worker(run: Recorded, table: Table) -> Table:
    """A table by worker with a row for everyone who took part, zero where there is none."""
    workers = sorted(run.trace["worker"].dropna().astype("int64").unique())
    return table.reindex(pd.Index(workers, dtype="int64", name="worker"), fill_value=0)

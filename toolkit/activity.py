"""What each worker did when: the phases of its time, without gaps or overlaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from toolkit.core.messages import Worker
from toolkit.intervals import Recorded, iterations

PHASES = ("compute", "send", "apply", "wait")


def timeline(run: Recorded) -> pd.DataFrame:
    """What each worker did when, without gaps or overlaps.

    Parameters
    ----------
    run : Run

    Returns
    -------
    DataFrame
        `worker`, `phase`, `began`, `ended` [s], by worker and time. At any moment the first of these that holds: it
        was in `compute`; one of its messages was under way (`send`, queueing for the link included); its update was
        being merged (`apply`); none of them (`wait`). From a worker's first task to the end of its last task or merge.

    Examples
    --------
    >>> import toolkit as tk
    >>> cluster = tk.Simulator(2, step=tk.constant([1.0, 2.0]))
    >>> run = tk.simulate(tk.chain(tk.ssp(1), tk.parameter_server()), cluster, until=tk.iterations(3), name="SSP")
    >>> tk.metrics.timeline(run)
       worker    phase  began  ended
    0       0  compute    0.0    3.0
    1       1  compute    0.0    6.0
    """
    trace = run.trace
    owner = {place: _worker(place) for place in (*trace["place"].dropna().unique(), *trace["peer"].dropna().unique())}
    source, target = trace["place"].map(owner), trace["peer"].map(owner)
    computing, sending = trace["kind"].isin(("compute", "stage")), trace["kind"].isin(("send", "hop"))
    merged = iterations(run).dropna(subset="committed")
    intervals = pd.concat(
        [
            _intervals(0, source[computing], trace.loc[computing, "began"], trace.loc[computing, "ended"]),
            *(
                _intervals(1, w[sending], trace.loc[sending, "wanted"], trace.loc[sending, "ended"])
                for w in (source, target)
            ),
            _intervals(2, merged["worker"], merged["issued"], merged["committed"]),
        ]
    )
    parts = [_segments(part).assign(worker=worker) for worker, part in intervals.groupby("worker")]
    names = ["worker", "phase", "began", "ended"]
    return pd.concat(parts, ignore_index=True)[names] if parts else pd.DataFrame(columns=names)


def phases(run: Recorded) -> pd.DataFrame:
    """Seconds each worker spent in `compute`, `send`, `apply` and `wait` [s], by worker.

    They add up to the time from its first task to the end of its last task or merge: unlike in :func:`waiting`, the
    last wait counts. See :func:`timeline` for what is what.

    Parameters
    ----------
    run : Run

    Returns
    -------
    DataFrame [s]
        By worker: `compute`, `send`, `apply`, `wait`.

    Examples
    --------
    >>> import toolkit as tk
    >>> cluster = tk.Simulator(2, step=tk.constant([1.0, 2.0]))
    >>> run = tk.simulate(tk.chain(tk.bsp(), tk.parameter_server()), cluster, until=tk.iterations(3), name="BSP")
    >>> tk.metrics.phases(run)
            compute  send  apply  wait
    worker
    0           3.0   0.0    0.0   3.0
    1           6.0   0.0    0.0   0.0
    """
    frame = timeline(run)
    spent = (frame["ended"] - frame["began"]).groupby([frame["worker"], frame["phase"]]).sum()
    return spent.unstack().reindex(columns=list(PHASES)).fillna(0.0).rename_axis(columns=None)


def _worker(place: str) -> Worker | None:
    """The worker a place belongs to: 3 of ``"3"`` and of its stage ``"3.1"``; None for servers."""
    head = place.split(".")[0]
    return int(head) if head.isdigit() else None


def _intervals(phase: int, workers: pd.Series[Any], began: pd.Series[float], ended: pd.Series[float]) -> pd.DataFrame:
    frame = pd.DataFrame({"worker": workers, "began": began, "ended": ended}).dropna()
    return frame.astype({"worker": "int64"}).assign(phase=phase)


def _segments(intervals: pd.DataFrame) -> pd.DataFrame:
    """Cut the time that the intervals span into pieces of one phase each: the first that is active, else waiting."""
    which, count = intervals["phase"].to_numpy(), len(intervals)
    edges = np.concatenate([intervals["began"].to_numpy(), intervals["ended"].to_numpy()])
    times, at = np.unique(edges, return_inverse=True)
    change = np.zeros((len(PHASES), len(times)), dtype=np.int64)
    np.add.at(change, (which, at[:count]), 1)
    np.add.at(change, (which, at[count:]), -1)
    active = change.cumsum(axis=1) > 0
    active[-1] = True  # waiting is what is left
    phase = active.argmax(axis=0)[:-1]
    first = np.flatnonzero(np.diff(phase, prepend=-1))
    last = np.append(first[1:], len(phase))[: len(first)]
    return pd.DataFrame({"phase": np.take(PHASES, phase[first]), "began": times[first], "ended": times[last]})

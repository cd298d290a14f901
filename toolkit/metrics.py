r"""What the trace of a run says: waiting, staleness, traffic, throughput, time to a target, phases.

Every function takes a run (anything with the tables `trace` and `metrics`) and returns a number or a tidy table.
Nothing of this is logged by the runtimes; all is derived from the same rows, so measured and virtual runs are
read alike. In the formulas :math:`b_{wc}` is when the first task of iteration :math:`c` of worker :math:`w` was
wanted, :math:`r_{wc}` when its update was ready, and :math:`[i_{wc}, m_{wc}]` the merge that took it in, from the
issue to the commit.

Examples
--------
Two workers meet after every step, and worker 1 is twice as slow: worker 0 waits one second per round.

>>> from types import SimpleNamespace
>>> from toolkit.trace import Row, Trace, happened
>>> trace = Trace()
>>> for clock, start in ((1, 0.0), (2, 2.0)):
...     for worker, step in ((0, 1.0), (1, 2.0)):
...         _ = trace.append(Row("compute", ("compute", worker, clock), start, start, start + step, worker, clock,
...                              place=worker, samples=8))
...         _ = trace.append(happened("ready", ("ready", worker, clock), start + step, worker=worker, clock=clock))
...     _ = trace.append(happened("committed", ("committed", 0, 1), start + 2.0, round=clock - 1))
>>> run = SimpleNamespace(trace=trace.frame())
>>> waiting(run).to_dict()                                          # the last wait of a run is not counted
{0: 1.0, 1: 0.0}
>>> throughput(run).loc["all", ["updates", "samples_per_second"]].to_dict()
{'updates': 4.0, 'samples_per_second': 8.0}
>>> phases(run).loc[0].to_dict()                                    # here it is
{'compute': 2.0, 'send': 0.0, 'apply': 0.0, 'wait': 2.0}
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from toolkit.core.conditions import falls
from toolkit.core.messages import Worker
from toolkit.iterations import Recorded, by_worker, iterations, seconds

PHASES = ("compute", "send", "apply", "wait")


def waiting(run: Recorded) -> pd.Series[float]:
    r"""Seconds that each worker waited for others.

    .. math:: W_w = \sum_c \bigl(b_{w,c+1} - r_{wc}\bigr) - \bigl|[r_{wc}, b_{w,c+1}] \cap [i_{wc}, m_{wc}]\bigr|

    From ready to the first task of the next iteration, less the merge in between; a dropped update has no merge.
    The last wait of a run is not counted: nothing ended it.

    Returns
    -------
    Series [s] by worker
    """
    frame = iterations(run)
    ready, after = frame["ready"].to_numpy(), frame["next"].to_numpy()
    merge = np.minimum(frame["committed"].to_numpy(), after) - np.maximum(frame["issued"].to_numpy(), ready)
    wait = np.nan_to_num(after - ready - np.nan_to_num(np.maximum(merge, 0)))
    return by_worker(run, pd.Series(np.maximum(wait, 0)).groupby(frame["worker"]).sum()).rename("waiting")


def staleness(run: Recorded) -> pd.DataFrame:
    """How old each merged update was.

    Returns
    -------
    DataFrame
        One row per merged update, by time: `round`, `worker`, `clock`, `stale` [merges], `samples` [rows], `time` [s].
        `stale` counts the merges issued between the worker's read of the parameters and the merge of its update:
        those its ready row reports, and those issued while the update lay there. 0 is a fresh update.
    """
    frame = iterations(run).dropna(subset="committed").rename(columns={"committed": "time"})
    names = ["round", "worker", "clock", "stale", "samples", "time"]
    return frame.sort_values(["time", "round", "worker"])[names].reset_index(drop=True)


def dropped(run: Recorded) -> pd.Series[int]:
    """How many updates of each worker were thrown away: it went on, and no merge had taken them in."""
    frame = iterations(run)
    gone = frame["committed"].isna() & frame["next"].notna()
    return by_worker(run, gone.astype("int64").groupby(frame["worker"]).sum()).rename("dropped")


def traffic(run: Recorded) -> pd.DataFrame:
    """Payload that each place sent and received.

    Returns
    -------
    DataFrame
        By place: `sent` and `received` [byte]. Sends and the hops of collectives count; headers do not.
    """
    trace = run.trace
    moved = trace[trace["kind"].isin(("send", "hop"))]
    sent, received = moved.groupby("place")["nbytes"].sum(), moved.groupby("peer")["nbytes"].sum()
    frame = pd.DataFrame({"sent": sent, "received": received}).fillna(0.0)
    frame.index = pd.Index([str(place) for place in frame.index], name="place")
    return frame.loc[sorted(frame.index, key=lambda place: (not place[:1].isdigit(), len(place), place))]


def throughput(run: Recorded) -> pd.DataFrame:
    r"""Merged updates and rows, in all and per second: :math:`n / T` with the length :math:`T` of the run.

    Returns
    -------
    DataFrame
        By worker, and ``"all"`` in the first row: `updates`, `samples` [rows], `updates_per_second` [1/s],
        `samples_per_second` [rows/s].
    """
    merged, length = staleness(run), seconds(run)
    by = by_worker(run, merged.groupby("worker").agg(updates=("stale", "size"), samples=("samples", "sum")))
    frame = pd.concat([by.sum().to_frame("all").T, by]).rename_axis("worker")
    for name in ("updates", "samples"):
        frame[f"{name}_per_second"] = frame[name] / length if length else np.nan
    return frame


def time_to(run: Recorded, metric: str, value: float) -> float:
    """First time [s] at which a measured metric is at least as good as `value`; NaN if that never happened.

    A loss or an error reaches a value from above, everything else from below.
    """
    frame = run.metrics
    known = sorted(frame["name"].unique())
    if known and metric not in known:
        raise ValueError(
            f"The time to {metric} = {value:g} was asked for, and the run measured {', '.join(known)}. A metric that "
            f"was not measured reaches nothing. Choose one of these, or add {metric!r} to the metrics of the problem."
        )
    of = frame[frame["name"] == metric]
    good = of["value"] <= value if falls(metric) else of["value"] >= value
    return float(of.loc[good, "time"].min())


def timeline(run: Recorded) -> pd.DataFrame:
    """What each worker did when, without gaps or overlaps.

    Returns
    -------
    DataFrame
        `worker`, `phase`, `began`, `ended` [s], by worker and time. At any moment the first of these that holds: it
        was in `compute`; one of its messages was under way (`send`, queueing for the link included); its update was
        being merged (`apply`); none of them (`wait`). From a worker's first task to the end of its last task or merge.
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

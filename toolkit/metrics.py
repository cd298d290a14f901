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
>>> throughput(run).loc["all", ["iterations", "samples_per_second"]].to_dict()
{'iterations': 4.0, 'samples_per_second': 8.0}
>>> phases(run).loc[0].to_dict()                                    # here it is
{'compute': 2.0, 'send': 0.0, 'apply': 0.0, 'wait': 2.0}
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from toolkit.activity import phases, timeline
from toolkit.core.conditions import falls
from toolkit.intervals import Recorded, by_worker, iterations, seconds


def waiting(run: Recorded) -> pd.Series[float]:
    r"""Seconds that each worker waited for others.

    .. math:: W_w = \sum_c \bigl(b_{w,c+1} - r_{wc}\bigr) - \bigl|[r_{wc}, b_{w,c+1}] \cap [i_{wc}, m_{wc}]\bigr|

    From :math:`r_{wc}`, when update c of worker w was ready, to :math:`b_{w,c+1}`, when the first task of its next
    iteration was wanted, less the merge :math:`[i_{wc}, m_{wc}]` in between; a dropped update has no merge.
    The last wait of a run is not counted: nothing ended it.

    Parameters
    ----------
    run : Run

    Returns
    -------
    Series [s] by worker

    Examples
    --------
    >>> import toolkit as tk
    >>> cluster = tk.Simulator(2, step=tk.constant([1.0, 2.0]))
    >>> run = tk.simulate(tk.chain(tk.bsp(), tk.parameter_server()), cluster, until=tk.iterations(3), name="BSP")
    >>> tk.metrics.waiting(run).to_dict()
    {0: 2.0, 1: 0.0}
    """
    frame = iterations(run)
    ready, after = frame["ready"].to_numpy(), frame["next"].to_numpy()
    merge = np.minimum(frame["committed"].to_numpy(), after) - np.maximum(frame["issued"].to_numpy(), ready)
    wait = np.nan_to_num(after - ready - np.nan_to_num(np.maximum(merge, 0)))
    return by_worker(run, pd.Series(np.maximum(wait, 0)).groupby(frame["worker"]).sum()).rename("waiting")


def staleness(run: Recorded) -> pd.DataFrame:
    r"""How old the updates of each merge were.

    Parameters
    ----------
    run : Run

    Returns
    -------
    DataFrame
        One row per merge, by time: `round`; `time` [s]; `workers`, how many updates it took in; `stale` and `stale_max`
        [merges], their mean and largest age; `samples` [rows]. The age of an update counts the merges issued between
        the worker's read of the parameters and the merge of its update: those its ready row reports, and those issued
        while the update lay there. 0 is a fresh update.

    Notes
    -----
    The staleness that :func:`ssp` and :func:`dssp` bound is another: the lead in iterations over the slowest worker.
    With n workers under ``ssp(s)`` the age is at most :math:`(n - 1)(2s + 1)` merges, each of one update.

    Examples
    --------
    >>> import toolkit as tk
    >>> cluster = tk.Simulator(2, step=tk.constant([1.0, 2.0]))
    >>> run = tk.simulate(tk.chain(tk.ssp(1), tk.parameter_server()), cluster, until=tk.iterations(3), name="SSP")
    >>> tk.metrics.staleness(run).head(3)
       round  time  workers  stale  stale_max  samples
    0      0   1.0        1    0.0          0        1
    1      1   2.0        1    1.0          1        1
    2      2   2.0        1    1.0          1        1
    """
    merged = iterations(run).dropna(subset="committed").rename(columns={"committed": "time"})
    frame = merged.groupby("round", as_index=False).agg(
        time=("time", "max"),
        workers=("worker", "size"),
        stale=("stale", "mean"),
        stale_max=("stale", "max"),
        samples=("samples", "sum"),
    )
    return frame.sort_values(["time", "round"]).reset_index(drop=True)


def dropped(run: Recorded) -> pd.Series[int]:
    """How many updates of each worker were thrown away.

    An update is dropped if its worker went on and no merge had taken it in.

    Parameters
    ----------
    run : Run

    Returns
    -------
    Series of int [updates] by worker

    Examples
    --------
    >>> import toolkit as tk
    >>> cluster = tk.Simulator(3, step=tk.constant([1.0, 1.0, 3.0]))
    >>> run = tk.simulate(tk.chain(tk.backup(1), tk.parameter_server()), cluster, until=tk.iterations(4), name="backup")
    >>> tk.metrics.dropped(run).to_dict()
    {0: 0, 1: 0, 2: 2}
    """
    frame = iterations(run)
    gone = frame["committed"].isna() & frame["next"].notna()
    return by_worker(run, gone.astype("int64").groupby(frame["worker"]).sum()).rename("dropped")


def traffic(run: Recorded) -> pd.DataFrame:
    """Payload that each place sent and received.

    Parameters
    ----------
    run : Run

    Returns
    -------
    DataFrame
        By place: `sent` and `received` [byte]. Sends and the hops of collectives count; headers do not.

    Examples
    --------
    >>> import toolkit as tk
    >>> cluster = tk.Simulator(2, nbytes=1000)
    >>> run = tk.simulate(tk.chain(tk.bsp(), tk.all_reduce(tk.ring)), cluster, until=tk.iterations(3), name="BSP")
    >>> tk.metrics.traffic(run)
             sent  received
    place
    0      3000.0    3000.0
    1      3000.0    3000.0
    """
    trace = run.trace
    moved = trace[trace["kind"].isin(("send", "hop"))]
    sent, received = moved.groupby("place")["nbytes"].sum(), moved.groupby("peer")["nbytes"].sum()
    frame = pd.DataFrame({"sent": sent, "received": received}).fillna(0.0)
    frame.index = pd.Index([str(place) for place in frame.index], name="place")
    return frame.loc[sorted(frame.index, key=lambda place: (not place[:1].isdigit(), len(place), place))]


def throughput(run: Recorded) -> pd.DataFrame:
    r"""Iterations whose updates were merged, and their rows, in all and per second.

    n of them in a run of length T [s] are :math:`n / T` per second.

    Parameters
    ----------
    run : Run

    Returns
    -------
    DataFrame
        By worker, and ``"all"`` in the first row: `iterations`, `samples` [rows], `iterations_per_second` [1/s],
        `samples_per_second` [rows/s]. Rates of a run without length are NaN.

    Examples
    --------
    >>> import toolkit as tk
    >>> cluster = tk.Simulator(2, step=tk.constant([1.0, 2.0]))
    >>> run = tk.simulate(tk.chain(tk.bsp(), tk.parameter_server()), cluster, until=tk.iterations(3), name="BSP")
    >>> tk.metrics.throughput(run)[["iterations", "iterations_per_second"]]
            iterations  iterations_per_second
    worker
    all              6                    1.0
    0                3                    0.5
    1                3                    0.5
    """
    merged, length = iterations(run).dropna(subset="committed"), seconds(run)
    by = by_worker(run, merged.groupby("worker").agg(iterations=("stale", "size"), samples=("samples", "sum")))
    frame = pd.concat([by.sum().to_frame("all").T, by]).rename_axis("worker")
    for name in ("iterations", "samples"):
        frame[f"{name}_per_second"] = frame[name] / length if length else np.nan
    return frame


def time_to(run: Recorded, metric: str, value: float) -> float:
    r"""First time [s] at which a measured metric is at least as good as `value`.

    A metric m with "loss" or "error" in its name reaches the value v when :math:`m \le v`, any other when
    :math:`m \ge v`. Only evaluations are looked at: between two of them nothing is known.

    Parameters
    ----------
    run : Run
    metric : str
        A metric that the run measured.
    value : float

    Returns
    -------
    float [s]
        NaN if it never happened.

    Raises
    ------
    ValueError
        If the run measured other metrics, and not this one.

    Examples
    --------
    >>> import toolkit as tk
    >>> run = tk.train(tk.problems.quadratic(noise=0.0), tk.chain(tk.bsp(), tk.all_reduce(tk.ring)),
    ...                optimizer="sgd(0.5)", on=tk.Simulator(2), until=tk.updates(8), evaluate=tk.updates(2),
    ...                progress=False)
    >>> tk.metrics.time_to(run, "loss", 0.1), tk.metrics.time_to(run, "loss", 0.0)
    (4.0, nan)
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


def steps(runs: Recorded | Mapping[str, Recorded]) -> pd.Series[float]:
    """Median time of a step by worker, over one or several runs.

    It is what a simulator needs to predict them: ``tk.Simulator(n, step=tk.constant(tk.metrics.steps(runs)))``.

    Parameters
    ----------
    runs : Run or Runs
        Steps without rows are left out.

    Returns
    -------
    Series [s] by worker

    Examples
    --------
    >>> import toolkit as tk
    >>> cluster = tk.Simulator(2, step=tk.constant([1.0, 2.0]))
    >>> run = tk.simulate(tk.chain(tk.bsp(), tk.all_reduce(tk.ring)), cluster, until=tk.iterations(3))
    >>> tk.metrics.steps(run).to_dict()
    {0: 1.0, 1: 2.0}
    """
    traces = [run.trace for run in (runs.values() if isinstance(runs, Mapping) else [runs])]
    computed = pd.concat([trace[(trace["kind"] == "compute") & (trace["samples"] > 0)] for trace in traces])
    medians: pd.Series[float] = (computed["ended"] - computed["began"]).groupby(computed["worker"].astype(int)).median()
    return medians


__all__ = ["dropped", "phases", "staleness", "steps", "throughput", "time_to", "timeline", "traffic", "waiting"]

r"""Calibration: a real cluster is measured by a run on it and described as a simulator.

The run is one of :func:`probing`, so that processes are claimed, kernels compiled, steps padded and arrays exchanged as
in the runs that are to be predicted; what all of that took is read off its trace by :func:`fitted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.checks import demand
from toolkit.core import conditions
from toolkit.core.checks import positive, whole
from toolkit.core.cluster import Cluster
from toolkit.core.errors import Refused
from toolkit.core.messages import Apply, Compute, PlaceName, Send, Task, Worker
from toolkit.core.strategy import Strategy, chain, strategy
from toolkit.exchanges.makers import exchange
from toolkit.exchanges.replicas import replicas
from toolkit.exchanges.rounds import Merge
from toolkit.policies.asp import asp
from toolkit.prepare import Optimizer
from toolkit.problems.problem import Problem
from toolkit.runtime.cluster.dask import Dask
from toolkit.runtime.links import Link, Links
from toolkit.runtime.simulator import Simulator
from toolkit.runtime.timing import empirical
from toolkit.training import train

#: Iterations in which a worker writes to one peer before it turns to the next; the first message finds the way.
VISITS = 4
#: How many times of equal chance stand for the steps of a worker.
CHANCES = 8
#: A pair of hosts has a link of its own if all its messages of a size took so many times longer or shorter than usual.
CLEARLY = 4.0


def calibrate(
    on: Any,
    problem: Problem,
    *,
    optimizer: Optimizer = "sgd(0.0)",
    steps: int = 30,
    seconds: float = 20.0,
    seed: int = 0,
    progress: bool = False,
) -> Simulator:
    r"""Measure a real cluster and describe it as a simulator that predicts runs on it.

    In a run like any other, each worker makes steps, sends one value and then the whole model to others, and applies
    its own update. From the trace of that run follow

    - step times of each worker: eight of equal chance, with the mean of those that were measured;
    - a link :math:`\alpha + m / B` through the mean times of both sizes; a pair of hosts all of whose messages took
      four times longer or shorter than usual has its own;
    - the mean time of an optimizer step;
    - control, the mean time from the end of a task until a host takes up what the coordinator answers to it.

    Parameters
    ----------
    on : Dask, Client, Cluster or str
        A real cluster of two hosts or more. A :class:`Dask` says with how many workers, which of them are slow, what a
        step takes at least, and which places share a host.
    problem : Problem
    optimizer : optax.GradientTransformation or str
        Its step is timed. The default costs as much as plain SGD and changes nothing.
    steps : int, >= 4
        Of each worker.
    seconds : float [s], > 0
        The run ends after so long in any case. The start of processes and compiling are not counted.
    seed : int, 0 to 2**64 - 1
        Of the run and of the simulator.
    progress : bool
        Whether to show how far the run has come.

    Returns
    -------
    Simulator
        Its `nbytes` are those of the model, so that it fits :func:`simulate`, too.

    Raises
    ------
    Refused
        Without a cluster, with one host, or if a worker came through fewer than two iterations within `seconds`.

    Notes
    -----
    Workers that share cores wait for each other, and how long depends on what all do at a time. On such a cluster, of
    which a warning tells, prediction is good while steps are padded and messages are few.

    Examples
    --------
    >>> import toolkit as tk
    >>> on = tk.Dask(workers=8, pace=0.1, slowdown={7: 2.0})
    >>> simulator = tk.calibrate(on, tk.problems.digits())  # doctest: +SKIP
    """
    demand("problem", problem, Problem, "tk.problems.digits()")
    steps, seconds = whole("steps", steps, VISITS, "steps"), positive("seconds", seconds, "seconds")
    if on is None:
        raise Refused(
            "calibrate was given None. There is no cluster that could be measured. "
            "Give a client, the address of a scheduler, or Dask(workers=4) to start processes here."
        )
    on = on if isinstance(on, Dask) else Dask(on)
    with on.kept():
        workers = on.describe().workers
        given = on.hosts or {}
        hosts = {worker: given.get(worker, worker) for worker in workers}
        if len(set(hosts.values())) < 2:
            raise Refused(
                f"calibrate was asked of {on!r}, where {len(workers)} workers live on one host. A link has two ends. "
                f"Give it a cluster of two hosts or more."
            )
        run = train(
            problem,
            chain(asp(), probing(max(1, min(len(workers) - 1, steps // VISITS)))),
            optimizer=optimizer,
            on=_without_servers(on, workers),
            until=conditions.iterations(steps) | conditions.seconds(seconds),
            evaluate=conditions.iterations(steps + 1),  # never
            seed=seed,
            name="calibration",
            progress=progress,
        )
    made = run.trace.loc[run.trace["kind"] == "apply", "worker"].value_counts()
    if late := [worker for worker in workers if made.get(worker, 0) < 2]:
        raise Refused(
            f"The workers {late} came through fewer than two iterations in {seconds:g} s. The first finds everything "
            f"cold and says nothing of the others. Give calibrate(..., seconds=...) more time."
        )
    return Simulator(len(workers), **fitted(run.trace, hosts), hosts=on.hosts, seed=seed)


def _without_servers(on: Dask, workers: tuple[Worker, ...]) -> Dask:
    """The same processes for a run that has workers only."""
    if on.hosts is None or all(place in workers for place in on.hosts):
        return on
    _ = on.client  # connected, so that both have the same
    return replace(on, hosts={place: host for place, host in on.hosts.items() if place in workers})


@strategy
def probing(peers: int) -> Strategy:
    """Step, send one value and then the whole model to one of the next `peers` workers, and apply the own update."""

    def begin(cluster: Cluster, worker: Worker, clock: int) -> list[Task]:
        everyone, all = cluster.workers, cluster.layout.whole
        ahead = 1 + (clock - 1) // VISITS % peers
        peer = everyone[(everyone.index(worker) + ahead) % len(everyone)]
        step = Compute(("compute", worker, clock), worker, (all,))
        small = Send(("small", worker, clock), worker, peer, "update", (0, 1), after=(step.key,))
        large = Send(("large", worker, clock), worker, peer, "params", all, after=(step.key,))
        return [step, small, large]

    def merge(cluster: Cluster, m: Merge) -> list[Task]:
        return [
            Apply(("apply", m.round, w), w, (w,), (clock,), "update", cluster.layout.whole, (rows,), (stale,))
            for w, clock, rows, stale in zip(m.group, m.clocks, m.weights, m.staleness, strict=True)
        ]

    return exchange(begin, merge, replicas)


# -- from a trace to a description --------------------------------------------------------------------------------


def fitted(trace: pd.DataFrame, hosts: Mapping[Worker, PlaceName]) -> dict[str, Any]:
    """What a simulator is told, as fields of it, from the trace of a run of :func:`probing`."""
    later = trace[trace.groupby(["kind", "worker"], observed=True).cumcount() > 0]  # the first finds everything cold
    took, computed, applied = later["ended"] - later["began"], later["kind"] == "compute", later["kind"] == "apply"
    steps = {int(worker): chances(times.to_numpy()) for worker, times in took[computed].groupby(later["worker"])}
    asked = later[computed | applied]
    heard = asked["wanted"].to_numpy() - trace["ended"].to_numpy()[asked["cause"]]
    messages = sends(trace, hosts)
    return {
        "step": empirical(steps),
        "link": links(messages),
        "apply": rounded(took[applied].mean()),
        "nbytes": float(messages["nbytes"].max()),
        "control": rounded(heard.mean()),
    }


def chances(times: NDArray[np.float64]) -> list[float]:
    """A few times of equal chance with the mean of all: those of the fastest steps, of the next, up to the slowest."""
    count = min(CHANCES, len(times))
    sums = np.concatenate([[0.0], np.cumsum(np.sort(times))])
    edges = np.interp(np.linspace(0, len(times), count + 1), np.arange(len(times) + 1), sums)
    return [rounded(time) for time in np.diff(edges) * count / len(times)]


def rounded(value: float) -> float:
    """A measured value to five digits, so that descriptions stay short."""
    return float(f"{value:.5g}")


def sends(trace: pd.DataFrame, hosts: Mapping[Worker, PlaceName]) -> pd.DataFrame:
    """Messages between hosts, but for the first of a pair, which connects: `pair`, `large`, `nbytes`, `took` [s]."""
    rows = trace[trace["kind"] == "send"]
    ends = [[hosts[int(place)] for place in rows[name]] for name in ("place", "peer")]
    frame = pd.DataFrame({"pair": list(zip(*ends, strict=True)), "nbytes": rows["nbytes"].to_numpy()})
    frame["large"] = rows["key"].str.startswith("large").to_numpy(dtype=bool)
    frame["took"] = (rows["ended"] - rows["wanted"]).to_numpy()
    frame = frame[[here != there for here, there in frame["pair"]]]
    return frame[frame.groupby(["pair", "large"]).cumcount() > 0]


def links(messages: pd.DataFrame) -> Link | Links:
    """One link for all pairs of hosts, and one of its own for each pair that differs clearly."""
    usual = messages.groupby("large")["took"].median()
    ratio = (messages["took"] / messages["large"].map(usual)).groupby([messages["pair"], messages["large"]])
    differs = (ratio.count() >= VISITS - 1) & ((ratio.min() > CLEARLY) | (ratio.max() < 1 / CLEARLY))
    own = {pair for pair, _ in differs.index[differs]}
    default = link(messages[~messages["pair"].isin(own)])
    pairs = {pair: link(messages[messages["pair"] == pair]) for pair in sorted(own, key=repr)}
    return Links(default, pairs) if pairs else default


def link(messages: pd.DataFrame) -> Link:
    r"""The line through the mean times of two sizes; a large message leaves behind a small one.

    .. math:: t_s = \alpha + m_s / B, \quad t_l = \alpha + (m_s + m_l) / B
    """
    large, small = messages[messages["large"]], messages[~messages["large"]]
    slope = float(large["took"].mean() - small["took"].mean()) / float(large["nbytes"].mean())
    if slope <= 0:  # lost in the noise
        return Link(rounded(messages["took"].mean()))
    return Link(rounded(max(0.0, small["took"].mean() - slope * small["nbytes"].mean())), rounded(1 / slope))

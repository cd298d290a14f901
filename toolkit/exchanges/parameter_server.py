"""Sharded parameter server.

M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.core.checks import few
from toolkit.core.cluster import Cluster, Home
from toolkit.core.errors import Refused
from toolkit.core.messages import Apply, Compute, PlaceName, Send, Task, Worker
from toolkit.core.strategy import Homes, Strategy, keys, strategy
from toolkit.exchanges.makers import exchange
from toolkit.exchanges.rounds import Merge


@strategy
def parameter_server(shards: int = 1, place: str = "collocated") -> Strategy:
    """Pull, compute, push to servers that each hold a shard of the model.

    An iteration of a worker pulls every shard, computes, and pushes the update cut alike; a merge is an optimizer step
    at each shard. With a model of M bytes a worker receives and sends M per iteration, a server n M / shards.

    Parameters
    ----------
    shards : int, in 1..100_000
        Servers ``"s0"`` to ``"s{shards - 1}"``; their sizes differ by at most one value.
    place : {"collocated", "separate"}
        Collocated shards share host, CPU and link with a worker, round-robin; separate ones have hosts of their own.

    References
    ----------
    Li et al., "Scaling distributed machine learning with the parameter server", 2014.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.parameter_server(2, place="separate")
    parameter_server(2, 'separate')
    """
    shards = few("shards", shards, 1, "shards")
    if place not in ("collocated", "separate"):
        raise Refused(
            f"place={place!r} is unknown. A shard shares a worker's host or has its own. "
            f"Use 'collocated' or 'separate'."
        )
    names = tuple(f"s{k}" for k in range(shards))

    def places(cluster: Cluster, homes: Homes) -> Homes:
        parts = cluster.layout.shards(shards)
        workers: dict[PlaceName, Home] = {w: Home("worker", cluster.layout.whole, worker=w) for w in cluster.workers}
        beside = [cluster.workers[k % len(cluster.workers)] if place == "collocated" else None for k in range(shards)]
        servers: dict[PlaceName, Home] = {
            name: Home("server", parts[k], model=True, beside=beside[k]) for k, name in enumerate(names)
        }
        return {**homes, **workers, **servers}

    def begin(cluster: Cluster, worker: Worker, clock: int) -> Sequence[Task]:
        parts = tuple(cluster.homes[name].span for name in names)
        pulls = [Send(("pull", worker, clock, s), s, worker, "params", p) for s, p in zip(names, parts, strict=True)]
        task = Compute(("compute", worker, clock), worker, parts, after=keys(pulls))
        pushes = [
            Send(("push", worker, clock, s), worker, s, "update", p, after=(task.key,))
            for s, p in zip(names, parts, strict=True)
        ]
        return [*pulls, task, *pushes]

    def merge(cluster: Cluster, m: Merge) -> Sequence[Task]:
        return [
            Apply(
                ("apply", m.round, s),
                s,
                m.group,
                m.clocks,
                "inbox",
                cluster.homes[s].span,
                m.weights,
                m.staleness,
                m.samples,
                m.share,
            )
            for s in names
        ]

    return exchange(begin, merge, places)

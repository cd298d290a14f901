"""What exchanges without a server share: one replica of the model at each worker."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.core.cluster import Cluster, Home
from toolkit.core.messages import Compute, Send, Task, Worker
from toolkit.core.strategy import Homes
from toolkit.exchanges.rounds import Merge


def replicas(cluster: Cluster, homes: Homes) -> Homes:
    """Each worker holds the whole model."""
    return {**homes, **{w: Home("worker", cluster.layout.whole, worker=w, model=True) for w in cluster.workers}}


def compute(cluster: Cluster, worker: Worker, clock: int) -> Sequence[Task]:
    """An iteration on the worker's own replica."""
    return [Compute(("compute", worker, clock), worker, (cluster.layout.whole,))]


def copy(cluster: Cluster, merge: Merge) -> Sequence[Task]:
    """Where some survivors of a cancelled merge have applied it, the others take model and optimizer state from one."""
    source = merge.applied[0]
    return [
        Send(("copy", merge.round, worker), source, worker, "replica", cluster.layout.whole)
        for worker in sorted(merge.live)
        if worker not in merge.applied
    ]

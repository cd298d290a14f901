"""All-gather of whole updates: the exchange among replicas for sparse or late updates."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.core.cluster import Cluster
from toolkit.core.messages import Apply, Send, Task
from toolkit.core.strategy import Strategy, keys, strategy
from toolkit.exchanges.makers import exchange
from toolkit.exchanges.replicas import compute, copy, replicas
from toolkit.exchanges.rounds import Merge


@strategy
def all_gather() -> Strategy:
    """Send each update whole to every worker: for replicas with sparse or late updates.

    Each replica takes the same optimizer steps in the same order. A member of a group sends M bytes, after the codec,
    to each of the n - 1 others.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.bsp(), tk.all_gather(), tk.compress(tk.top_k(0.01)))
    chain(bsp(), all_gather(), compress(top_k(0.01)))
    """

    def merge(cluster: Cluster, m: Merge) -> Sequence[Task]:
        whole, tasks = cluster.layout.whole, list[Task]()
        for w in sorted(m.live):
            sends = [Send(("gather", m.round, v, w), v, w, "update", whole) for v in m.group if v != w]
            apply = Apply(
                ("apply", m.round, w),
                w,
                m.group,
                m.clocks,
                "inbox",
                whole,
                m.weights,
                m.staleness,
                m.samples,
                m.share,
                after=keys(sends),
            )
            tasks.extend((*sends, apply))
        return tasks

    return exchange(compute, merge, replicas, repair=copy)

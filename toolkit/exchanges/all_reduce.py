"""All-reduce among replicas.

P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from toolkit.core.checks import positive
from toolkit.core.cluster import Cluster
from toolkit.core.errors import Refused
from toolkit.core.layout import Layout, cuts
from toolkit.core.messages import Apply, Reduce, Send, Span, Task
from toolkit.core.strategy import Strategy, keys, strategy
from toolkit.exchanges.makers import exchange
from toolkit.exchanges.replicas import compute, copy, replicas
from toolkit.exchanges.rounds import Merge
from toolkit.exchanges.schedules import SCHEDULES, Schedule


@strategy
def all_reduce(schedule: Schedule, bucket: float | None = None) -> Strategy:
    """Keep a replica at every worker and sum updates among them along a schedule of hops.

    A merge leaves the weighted mean of the group's updates at each member, which then takes the same optimizer step; a
    worker outside the group receives the replica of a member.

    Parameters
    ----------
    schedule : n -> (chunks, hops)
        :func:`ring`, :func:`tree`, :func:`halving_doubling`, or one of your own made with ``@tk.schedule``.
    bucket : float [byte], > 0, optional
        The update is summed in equal parts of at most so many bytes, side by side: one travels while the next is added.
        By default in one part.

    Raises
    ------
    Refused
        At the merge, when an update is stale: every replica moves together.

    References
    ----------
    Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.bsp(), tk.all_reduce(tk.halving_doubling))
    chain(bsp(), all_reduce(halving_doubling))
    """
    name = getattr(schedule, "__name__", repr(schedule))
    if not callable(schedule) or SCHEDULES.get(name) is not schedule:
        raise Refused(
            f"all_reduce was given {schedule!r}, which is not a known schedule. "
            f"Workers look a schedule up by its name. "
            f"Use ring, tree or halving_doubling, or decorate your own with @tk.schedule."
        )

    if bucket is not None:
        bucket = positive("bucket", bucket, "bytes")

    def merge(cluster: Cluster, m: Merge) -> Sequence[Task]:
        if late := [w for w, stale in zip(m.group, m.staleness, strict=True) if stale]:
            raise Refused(
                f"all_reduce cannot merge stale updates (workers {late}). Every replica moves together. "
                f"Use it below bsp() or backup(), or put parameter_server() or gossip() below this policy."
            )
        whole = cluster.layout.whole
        sums = [
            Reduce(("reduce", m.round, *k), m.group, name, part, m.weights) for k, part in parts(cluster.layout, bucket)
        ]
        applies = [
            Apply(
                ("apply", m.round, w),
                w,
                m.group,
                m.clocks,
                "sum",
                whole,
                m.weights,
                m.staleness,
                m.samples,
                m.share,
                after=keys(sums),
            )
            for w in m.group
        ]
        others = sorted(w for w in m.live if w not in m.group)
        refresh = [
            Send(("refresh", m.round, w), m.group[0], w, "replica", whole, after=(applies[0].key,)) for w in others
        ]
        return [*sums, *applies, *refresh]

    return exchange(compute, merge, replicas, repair=copy)


def parts(layout: Layout, bucket: float | None) -> list[tuple[tuple[int, ...], Span]]:
    """The spans that are summed, each with what its name ends with: nothing for a single one."""
    count = 1 if bucket is None else min(math.ceil(layout.size * layout.itemsize / bucket), max(1, layout.size))
    spans = cuts(layout.whole, max(1, count))
    return [((k,) if len(spans) > 1 else (), span) for k, span in enumerate(spans)]

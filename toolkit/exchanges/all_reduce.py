"""All-reduce among replicas.

P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.core.cluster import Cluster
from toolkit.core.errors import Refused
from toolkit.core.messages import Apply, Reduce, Send, Task
from toolkit.core.strategy import Strategy, strategy
from toolkit.exchanges.makers import exchange
from toolkit.exchanges.replicas import compute, copy, replicas
from toolkit.exchanges.rounds import Merge
from toolkit.exchanges.schedules import SCHEDULES, Schedule


@strategy
def all_reduce(schedule: Schedule) -> Strategy:
    """Keep a replica at every worker and sum updates among them along a schedule of hops.

    A merge leaves the weighted mean of the group's updates at each member, which then takes the same optimizer step; a
    worker outside the group receives the replica of a member.

    Parameters
    ----------
    schedule : n -> (chunks, hops)
        :func:`ring`, :func:`tree`, :func:`halving_doubling`, or one of your own made with ``@tk.schedule``.

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

    def merge(cluster: Cluster, m: Merge) -> Sequence[Task]:
        if late := [w for w, stale in zip(m.group, m.staleness, strict=True) if stale]:
            raise Refused(
                f"all_reduce cannot merge stale updates (workers {late}). Every replica moves together. "
                f"Use it below bsp() or backup(), or put parameter_server() or gossip() below this policy."
            )
        whole = cluster.layout.whole
        reduce = Reduce(("reduce", m.round), m.group, name, whole, m.weights)
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
                after=(reduce.key,),
            )
            for w in m.group
        ]
        others = sorted(w for w in m.live if w not in m.group)
        refresh = [
            Send(("refresh", m.round, w), m.group[0], w, "replica", whole, after=(applies[0].key,)) for w in others
        ]
        return [reduce, *applies, *refresh]

    return exchange(compute, merge, replicas, repair=copy)

"""Gossip: averaging parameters with neighbours.

X. Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NIPS 2017 (D-PSGD);
X. Lian, W. Zhang, C. Zhang, J. Liu, "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018
(AD-PSGD).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import index

from immutables import Map

from toolkit.core.checks import function
from toolkit.core.cluster import Cluster
from toolkit.core.draws import choose
from toolkit.core.errors import Refused
from toolkit.core.messages import Apply, Compute, Mix, Send, Task, Worker
from toolkit.core.strategy import Homes, Strategy, keys, strategy
from toolkit.exchanges.makers import exchange
from toolkit.exchanges.replicas import replicas
from toolkit.exchanges.rounds import Merge
from toolkit.exchanges.topologies import Edges, Neighbours


@strategy
def gossip(topology: Neighbours | Edges) -> Strategy:
    r"""Average parameters with neighbours, then take the own update.

    There is no server and no global sum. A group of several workers mixes with the doubly stochastic matrix of
    Metropolis weights on its graph, :math:`W_{ij} = 1 / (1 + \max(d_i, d_j))` (D-PSGD). A worker alone averages with
    one of its neighbours, drawn by (seed, worker, clock): both take :math:`(x_i + x_j) / 2` at once, and other merges
    that need either are held until then (AD-PSGD). Then :math:`x_i \leftarrow x_i - \eta g_i` for each member. Per
    round a worker sends M bytes to each neighbour.

    Parameters
    ----------
    topology : named function or list of edges
        :func:`ring_neighbours`, :func:`torus_neighbours`, :func:`complete_neighbours`, :func:`random_peer`, or
        undirected edges such as ``[(0, 1), (1, 2)]``, which must connect all workers.

    Notes
    -----
    Parameters travel whole: a codec below does not change their bytes. The mean over the workers changes only by their
    updates.

    References
    ----------
    Lian et al., "Can decentralized algorithms outperform centralized algorithms?", 2017; Lian et al., "Asynchronous
    decentralized parallel stochastic gradient descent", 2018; Xiao & Boyd, "Fast linear iterations for distributed
    averaging", 2004.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.asp(), tk.gossip(tk.random_peer))
    chain(asp(), gossip(random_peer))
    """
    edges = None if callable(topology) else paired(topology)
    if edges is None:
        function("topology", topology, "worker", "clock", "live", "seed")

    beside = joined(edges or ())

    def near(cluster: Cluster, m: Merge, worker: Worker, clock: int) -> tuple[Worker, ...]:
        if edges is None:
            return topology(worker, clock, present(m.live, m.guests), cluster.seed)  # type: ignore[operator]
        return tuple([v for v in beside.get(worker, ()) if v in m.live and v not in m.guests])

    def partners(cluster: Cluster, m: Merge) -> dict[Worker, tuple[Worker, ...]]:
        """With whom each participant of a merge averages; symmetric."""
        if len(m.group) == 1:
            peers = near(cluster, m, m.group[0], m.clocks[0])
            if not peers:
                return {m.group[0]: ()}
            peer = peers[choose(len(peers), cluster.seed, m.group[0], m.clocks[0], 1)]
            return {m.group[0]: (peer,), peer: (m.group[0],)}
        asked = {w: set(near(cluster, m, w, m.round)) & set(m.group) for w in m.group}
        return {w: tuple(v for v in m.group if v in asked[w] or w in asked[v]) for w in m.group}

    def begin(cluster: Cluster, worker: Worker, clock: int) -> Sequence[Task]:
        return [Compute(("compute", worker, clock), worker)]  # no parts: the update stays where it is

    def merge(cluster: Cluster, m: Merge) -> Sequence[Task]:
        return mixing(cluster, m, partners(cluster, m))

    def again(cluster: Cluster, m: Merge) -> Sequence[Task]:
        """After a loss, those who have not mixed yet mix among themselves."""
        rest = m.over([w for w in m.group if w not in m.applied], m.round, m.live)
        return merge(cluster, rest) if rest.group else []

    def places(cluster: Cluster, homes: Homes) -> Homes:
        if edges is not None:
            check(edges, cluster.workers)
        return replicas(cluster, homes)

    def needs(cluster: Cluster, m: Merge) -> Sequence[Worker]:
        return tuple(partners(cluster, m))

    return exchange(begin, merge, places, again, needs)


@lru_cache(maxsize=8)
def present(live: Map[Worker, bool], guests: tuple[Worker, ...]) -> tuple[Worker, ...]:
    """The workers that hold a model, in order; gone through again only when somebody came or went."""
    return tuple(sorted(worker for worker in live if worker not in guests))


def joined(edges: Iterable[tuple[Worker, Worker]]) -> Mapping[Worker, list[Worker]]:
    """The neighbours of each worker, in the order of the edges."""
    beside: dict[Worker, list[Worker]] = {}
    for a, b in edges:
        beside.setdefault(a, []).append(b)
        if a != b:
            beside.setdefault(b, []).append(a)
    return beside


def paired(topology: Edges) -> tuple[tuple[Worker, Worker], ...]:
    """Edges in order; anything else is refused."""
    try:
        return tuple(sorted((index(min(a, b)), index(max(a, b))) for a, b in topology))
    except (TypeError, ValueError):
        raise Refused(
            f"gossip was given {topology!r}, neither a function nor a list of edges. It says who averages with whom. "
            f"Give ring_neighbours, random_peer or another named function, or edges such as [(0, 1), (1, 2)]."
        ) from None


def check(edges: Sequence[tuple[Worker, Worker]], workers: Sequence[Worker]) -> None:
    """Refuse edges that do not connect exactly the workers."""
    reached, grown = {workers[0]}, True
    while grown:
        more = {v for edge in edges for v in edge if reached & set(edge)} - reached
        reached, grown = reached | more, bool(more)
    if reached != set(workers) or any(a == b or a not in workers or b not in workers for a, b in edges):
        raise Refused(
            f"gossip over the edges {list(edges)} reaches the workers {sorted(reached)} of {sorted(workers)}. "
            f"Averages spread only over a connected graph of the workers. "
            f"Add edges until every worker can be reached, without loops."
        )


def mixing(cluster: Cluster, m: Merge, partners: Mapping[Worker, tuple[Worker, ...]]) -> Sequence[Task]:
    """Snapshots to partners, a weighted mean at each participant, then each member's own update."""
    whole, r = cluster.layout.whole, m.round
    sends = {w: [Send(("gossip", r, v, w), v, w, "snapshot", whole) for v in peers] for w, peers in partners.items()}
    tasks: list[Task] = [send for batch in sends.values() for send in batch]
    for w, peers in partners.items():
        weights = [1 / (1 + max(len(peers), len(partners[v]))) for v in peers]
        mix = Mix(("mix", r, w), w, (w, *peers), (1 - sum(weights), *weights), whole, after=keys(sends[w]))
        tasks.append(mix)
        if w in m.group:
            i = m.group.index(w)
            tasks.append(
                Apply(
                    ("apply", r, w),
                    w,
                    (w,),
                    (m.clocks[i],),
                    "update",
                    whole,
                    (m.weights[i],),
                    (m.staleness[i],),
                    m.samples,
                    1.0,
                    after=(mix.key,),
                )
            )
    return tasks

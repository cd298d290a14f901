"""Dynamic stale synchronous parallel.

X. Zhao, A. An, J. Liu, B. X. Chen, "Dynamic stale synchronous parallel distributed training for deep learning",
ICDCS 2019.
"""

from __future__ import annotations

from collections.abc import Sequence

from immutables import Map

from toolkit.core.checks import few, whole
from toolkit.core.cluster import Cluster
from toolkit.core.errors import Refused
from toolkit.core.forecast import best_extra
from toolkit.core.messages import Action, Commit, Committed, Finished, Left, Ready, Release, Worker
from toolkit.core.progress import Progress
from toolkit.core.strategy import Message, State, Strategy, strategy
from toolkit.policies.makers import candidates


@strategy
def dssp(lower: int, upper: int, capped: bool = True) -> Strategy:
    r"""Dynamic SSP: past a lead of `lower`, go on as far as the forecast says it pays.

    A worker within a lead of `lower` goes on. When the fastest worker exceeds it, it is granted the r extra
    iterations after which its predicted push lies closest to one of the slowest worker's; the next interval of a
    worker is predicted to be its last. Any other worker waits until its lead is at most `lower`.

    Parameters
    ----------
    lower : int [updates], >= 0
        :math:`s_L`.
    upper : int [updates], in lower..100_000
        :math:`s_U`.
    capped : bool
        True: r is at most ``upper`` minus the worker's lead, so that the lead stays bounded, as the convergence
        proof assumes. False, as printed: r is at most ``upper - lower`` at each grant, a grant is used up only
        after the iteration that earned it, and grants add up without bound.

    Notes
    -----
    ``dssp(s, s)`` is ``ssp(s)``. Under persistent speed differences the capped form cannot beat the rate of BSP;
    it absorbs jitter. These bounds are leads in iterations over the slowest worker. The staleness of
    :func:`toolkit.metrics.staleness`, and of `stale_mean` and `stale_max` in a summary, counts the merges between the
    read and the merge of an update: among n workers at most :math:`(n - 1)(2 s_U + 1)` if capped.

    References
    ----------
    Zhao et al., "Dynamic stale synchronous parallel distributed training for deep learning", 2019.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.dssp(lower=3, upper=15), tk.parameter_server(shards=4))
    chain(dssp(3, 15), parameter_server(4))
    """
    lower, upper = whole("lower", lower, 0, "updates"), few("upper", upper, 0, "updates")
    if lower > upper:
        raise Refused(
            f"lower={lower} exceeds upper={upper}. They bound the same lead from below and above. Give lower <= upper."
        )

    if not isinstance(capped, bool):
        raise Refused(f"capped={capped!r} is neither True nor False. A lead has a bound or none. Give one of the two.")

    def init(cluster: Cluster) -> State:
        return Progress(), Map[Worker, int](), Map[Worker, tuple[float, ...]]()  # credit: iterations still granted

    def step(state: State, message: Message) -> tuple[State, Sequence[Message]]:
        progress, credit, pushes = state
        match message:
            case Ready(worker, time):
                pushes = pushes.set(worker, (*pushes.get(worker, ()), time)[-2:])
                return (progress, credit, pushes), (Commit(frozenset({worker})),)
            case Action():
                return state, (message,)
            case Left(worker) | Finished(worker) if worker in pushes:
                pushes = pushes.delete(worker)
        before, progress = progress, progress.observe(message)
        pushed = message.group if isinstance(message, Committed) else frozenset()
        free = set()
        for worker in candidates(before, progress, message):
            if credit.get(worker, 0) > 0 and worker in pushed:
                free.add(worker)
                credit = credit.set(worker, credit[worker] - 1)
            elif progress.lead(worker) <= lower:
                free.add(worker)
            elif worker in pushed and progress.clock[worker] == progress.highest:
                limit = upper - (progress.lead(worker) if capped else lower)
                slow = min(w for w, clock in progress.clock.items() if clock == progress.slowest)
                if extra := best_extra(pushes.get(worker, ()), pushes.get(slow, ()), limit):
                    free.add(worker)
                    credit = credit.set(worker, extra - 1 if capped else extra)
        replies = (Release(frozenset(free)),) if free else ()
        return (progress.release(free), credit, pushes), replies

    return Strategy(init, step, "policy")

"""Elastic bulk synchronous parallel.

X. Zhao, M. Papagelis, A. An, B. X. Chen, J. Liu, Y. Hu, "Elastic bulk synchronous parallel model for distributed deep
learning", ICDM 2019; "ZipLine: an optimized algorithm for the elastic bulk synchronous parallel model", Machine
Learning 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

from immutables import Map

from toolkit.core.checks import few
from toolkit.core.forecast import forecast, zipline
from toolkit.core.messages import Action, Commit, Committed, Finished, Joined, Left, Ready, Release, Worker
from toolkit.core.progress import Progress
from toolkit.core.records import Record, field, replace
from toolkit.core.strategy import Message, Strategy, strategy


class Superstep(Record):
    """What is known between two barriers.

    `pushes` are each worker's last two push times since the barrier and `known` counts the workers that have two;
    `plan` tells how many iterations each has to go; `arrived` wait at the barrier.
    """

    progress: Progress = field(default_factory=Progress)
    pushes: Map[Worker, tuple[float, ...]] = field(default_factory=Map)
    known: int = 0
    plan: Map[Worker, int] = field(default_factory=Map)
    arrived: frozenset[Worker] = frozenset()

    def push(self, worker: Worker, time: float) -> Superstep:
        """After an iteration that is merged alone."""
        before = self.pushes.get(worker, ())
        plan = self.plan.set(worker, self.plan[worker] - 1) if worker in self.plan else self.plan
        return replace(
            self, pushes=self.pushes.set(worker, (*before, time)[-2:]), known=self.known + (len(before) == 1), plan=plan
        )

    def without(self, worker: Worker) -> Superstep:
        """After a worker has gone or is finished."""
        times = self.pushes.get(worker, ())
        return replace(
            self,
            pushes=self.pushes.delete(worker) if times else self.pushes,
            known=self.known - (len(times) == 2),
            plan=self.plan.delete(worker) if worker in self.plan else self.plan,
            arrived=self.arrived - {worker},
        )


@strategy
def elastic_bsp(lookahead: int) -> Strategy:
    r"""Elastic BSP: run freely, then meet where forecasts bring all workers closest.

    After a barrier each worker runs asynchronously until every worker has pushed twice. Then the next R push times of
    each are predicted from its last interval, and ZipLine chooses one per worker such that
    :math:`\max_p e_p - \min_p e_p` is smallest. Updates before a worker's chosen push are merged on arrival; those at
    it are held until all have arrived and are merged as one mean.

    Parameters
    ----------
    lookahead : int [iterations], in 1..100_000
        :math:`R`, the predicted pushes per worker; it bounds how many iterations workers can differ in a superstep.

    References
    ----------
    Zhao et al., "Elastic bulk synchronous parallel model for distributed deep learning", 2019.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.elastic_bsp(lookahead=15), tk.parameter_server())
    chain(elastic_bsp(15), parameter_server())
    """
    lookahead = few("lookahead", lookahead, 1, "iterations")

    def step(state: Superstep, message: Message) -> tuple[Superstep, Sequence[Message]]:
        replies: list[Message] = []
        match message:
            case Action():
                return state, (message,)
            case Ready(worker) if state.plan.get(worker) == 1:
                state = replace(state, arrived=state.arrived | {worker})
            case Ready(worker, time):
                replies.append(Commit(frozenset({worker})))
                state = state.push(worker, time)
            case Left(worker) | Finished(worker):
                state = state.without(worker)
            case Joined() | Committed():
                pass
            case _:
                return state, ()
        state = replace(state, progress=state.progress.observe(message))
        members = state.progress.clock
        if not state.plan and state.known == len(members) > 0:
            state = replace(
                state, plan=Map(zipline({w: forecast(times, lookahead) for w, times in state.pushes.items()}))
            )
        if state.arrived and len(state.arrived) == len(state.plan):
            replies.append(Commit(state.arrived))
            state = Superstep(state.progress)
        if free := frozenset(state.progress.waiting):
            replies.append(Release(free))
            state = replace(state, progress=state.progress.release(free))
        return state, replies

    return Strategy(lambda cluster: Superstep(), step, "policy")

"""Change the policy in the middle of a run.

Post-local SGD: T. Lin, S. U. Stich, K. K. Patel, M. Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.core.cluster import Cluster
from toolkit.core.conditions import Condition, updates
from toolkit.core.errors import Refused
from toolkit.core.messages import (
    Action,
    Commit,
    Committed,
    Event,
    Finished,
    Joined,
    Left,
    Ready,
    Release,
    Worker,
)
from toolkit.core.records import Record, replace
from toolkit.core.strategy import Message, Strategy, strategy
from toolkit.core.tally import Tally


class Phase(Record):
    """Where a switch stands: who computes, whose update is ready, merging or held back, and the policy in force."""

    tally: Tally
    policy: Any
    computing: frozenset[Worker] = frozenset()
    ready: frozenset[Worker] = frozenset()
    merging: frozenset[Worker] = frozenset()
    idle: frozenset[Worker] = frozenset()
    draining: bool = False
    switched: bool = False
    members: frozenset[Worker] = frozenset()

    def move(self, message: Message) -> Phase:
        """The phase after a message of the policy or of the exchange."""
        match message:
            case Joined(worker):
                return replace(self, members=self.members | {worker}, idle=self.idle | {worker})
            case Left(worker) | Finished(worker):
                gone = frozenset({worker})
                return replace(
                    self,
                    members=self.members - gone,
                    computing=self.computing - gone,
                    ready=self.ready - gone,
                    merging=self.merging - gone,
                    idle=self.idle - gone,
                )
            case Ready(worker):
                return replace(self, computing=self.computing - {worker}, ready=self.ready | {worker})
            case Commit(group):
                return replace(self, ready=self.ready - group, merging=self.merging | group)
            case Committed(group):
                return replace(self, merging=self.merging - group, idle=self.idle | (group & self.members))
            case Release(workers):
                free = workers & self.members
                return replace(self, idle=self.idle - free, ready=self.ready - free, computing=self.computing | free)
        return self

    def hold(self, workers: frozenset[Worker]) -> Phase:
        """The phase after a release that is held back: the workers are idle, an update they still had was dropped."""
        return replace(self, ready=self.ready - workers, idle=self.idle | (workers & self.members))


@strategy
def switch(at: Condition | int, first: Strategy, then: Strategy) -> Strategy:
    """Follow `first` until a condition holds, bring all workers to rest, then follow `then`.

    Parameters
    ----------
    at : condition, or int [merges] > 0
        A number is short for ``updates(number)``.
    first, then : policies
        Once `at` holds, whom `first` would release is held back; updates that still wait for a quorum are merged as one
        mean; then `then` starts as in a new run.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.switch(100, tk.bsp(), tk.asp()), tk.parameter_server())
    chain(switch(100, bsp(), asp()), parameter_server())
    """
    condition = at if isinstance(at, Condition) else updates(at)
    if condition.budget is not None:
        raise Refused(
            f"switch was told to wait for {condition!r}. That holds when all workers are finished, and then nobody is "
            f"left to switch. Wait for merges, such as updates(100), or for seconds, epochs or a metric."
        )
    for policy in (first, then):
        if not isinstance(policy, Strategy) or policy.kind != "policy":
            raise Refused(
                f"switch was given {policy!r}, which is not a policy. "
                f"It changes when workers go on, not how updates travel. "
                f"Give two policies such as bsp() and asp(), and put the exchange below the switch."
            )

    def init(cluster: Cluster) -> Phase:
        return Phase(Tally(rows=cluster.rows), (first.init(cluster), then.init(cluster)))

    def step(phase: Phase, message: Message) -> tuple[Phase, Sequence[Message]]:
        if isinstance(message, Action):
            return phase, (message,)
        assert isinstance(message, Event)
        phase = replace(phase, tally=phase.tally.observe(message)).move(message)
        draining = phase.draining or (not phase.switched and condition.reached(phase.tally))
        phase = replace(phase, draining=draining and not phase.switched)
        current = then if phase.switched else first
        state, wanted = current.step(phase.policy[phase.switched], message)
        policies = (phase.policy[0], state) if phase.switched else (state, phase.policy[1])
        phase = replace(phase, policy=policies)
        replies: list[Message] = []
        for reply in wanted:
            if phase.draining and isinstance(reply, Release):
                phase = phase.hold(reply.workers)
            else:
                phase, replies = phase.move(reply), [*replies, reply]
        if phase.draining and not phase.computing and not phase.merging:
            phase, replies = _settle(phase, then, replies)
        return phase, replies

    return Strategy(init, step, "policy")


def _settle(phase: Phase, then: Strategy, replies: list[Message]) -> tuple[Phase, list[Message]]:
    """Merge what still waits for a quorum, or, when everyone is at rest, start the second policy."""
    if phase.ready:
        commit = Commit(phase.ready)
        return phase.move(commit), [*replies, commit]
    state, time = phase.policy[1], phase.tally.time
    phase = replace(phase, draining=False, switched=True)
    for worker in sorted(phase.members):
        state, wanted = then.step(state, Joined(worker, time))
        for reply in wanted:
            phase, replies = phase.move(reply), [*replies, reply]
    return replace(phase, policy=(phase.policy[0], state)), replies

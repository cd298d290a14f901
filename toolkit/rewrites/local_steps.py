"""Local SGD.

S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019; J. Wang, G. Joshi, "Adaptive communication
strategies to achieve the best error-runtime trade-off in local-update SGD", MLSys 2019 (AdaComm).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.core.checks import few
from toolkit.core.messages import Apply, Compute, Measured
from toolkit.core.records import replace
from toolkit.core.strategy import Message, State, Strategy, named, strategy


@named
@dataclass(frozen=True, repr=False)
class adacomm:
    r"""As many local steps as the loss calls for: fewer as it falls (AdaComm).

    :math:`\tau = \lceil \tau_0 \sqrt{F / F_0} \rceil`, at least 1, with the first measured loss :math:`F_0` and the
    latest F. Until two losses are measured it is :math:`\tau_0`.

    Parameters
    ----------
    first : int [steps], in 1..100_000
        :math:`\tau_0`.

    References
    ----------
    Wang & Joshi, "Adaptive communication strategies to achieve the best error-runtime trade-off", 2019.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.local_steps(tk.adacomm(16))
    local_steps(adacomm(16))
    """

    first: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", few("first", self.first, 1, "steps"))

    def __repr__(self) -> str:
        return f"adacomm({self.first})"

    def steps(self, losses: tuple[float, float]) -> int:
        """The steps for the first and the latest loss."""
        start, now = losses
        if not (start > 0 and math.isfinite(now)):
            return self.first
        return max(1, math.ceil(self.first * math.sqrt(max(0.0, now) / start)))


@strategy
def local_steps(count: int | adacomm) -> Strategy:
    r"""Local SGD: `count` optimizer steps at the worker for each exchange.

    A worker that begins at x and ends at :math:`x'` sends the drift :math:`x - x'` as its update. The optimizer runs at
    the worker and keeps its state there; the averaged drift is applied by the outer optimizer, plain averaging by
    default.

    Parameters
    ----------
    count : int [steps], in 1..100_000, or adacomm
        1 with plain SGD is the exchange of gradients; so it is with momentum, which is linear. With Adam it differs,
        since each worker scales by its own second moments.

    References
    ----------
    Stich, "Local SGD converges fast and communicates little", 2019.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.bsp(), tk.all_reduce(tk.ring), tk.local_steps(8))
    chain(bsp(), all_reduce(ring), local_steps(8))
    """
    if not isinstance(count, adacomm):
        count = few("count", count, 1, "steps")

    def step(losses: State, message: Message) -> tuple[State, Sequence[Message]]:
        match message:
            case Measured("loss", value):
                return (losses[0] if losses else value, value), ()
            case Compute():
                steps = count if isinstance(count, int) else count.steps(losses or (1.0, 1.0))
                return losses, (replace(message, steps=steps, local=True),)
            case Apply():
                return losses, (replace(message, drift=True),)
        return losses, (message,)

    return Strategy(lambda cluster: (), step)

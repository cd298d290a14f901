"""Whether what a user asks of training fits together; each check says what came, why it cannot be and what to do."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from toolkit.core.conditions import Condition, Either, reaches
from toolkit.core.errors import Refused
from toolkit.core.strategy import Strategy
from toolkit.kernels.corrections import Correction
from toolkit.place import Setup
from toolkit.problems.problem import Problem
from toolkit.runtime.links import Link
from toolkit.runtime.simulator import Simulator


def checked(strategy: Strategy, until: Condition) -> None:
    """Refuse what is not a strategy with an exchange, or no condition."""
    if not isinstance(strategy, Strategy):
        raise Refused(
            f"{strategy!r} is not a strategy. A run needs a policy over an exchange. "
            f"Write chain(bsp(), all_reduce(ring))."
        )
    if not isinstance(until, Condition):
        raise Refused(
            f"until={until!r} is no condition. A run must know when to end. Use seconds(60), epochs(3), or another."
        )
    kinds = [layer.kind for layer in strategy.layers or (strategy,)]
    if kinds.count("policy") != 1 or kinds.count("exchange") != 1 or kinds.index("policy") > kinds.index("exchange"):
        raise Refused(
            f"{strategy!r} is made of {', '.join(kinds)}. A run needs one policy above one exchange. "
            f"Write for example chain(ssp(3), parameter_server(2))."
        )


def weighed(simulator: Simulator) -> None:
    """Warn if a bandwidth was described and nothing has a size."""
    link = simulator.link if isinstance(simulator.link, Link) else simulator.link.default
    if not simulator.nbytes and link.bandwidth < math.inf:
        warnings.warn(
            f"{link} has a bandwidth and the model has no size (nbytes=0), so messages take the latency alone. Traffic "
            f"and its time cannot be seen this way. Give Simulator(..., nbytes=4e6) for a million parameters.",
            stacklevel=3,
        )


def runnable(on: object) -> None:
    """Refuse what is no cluster."""
    if not hasattr(on, "describe") or isinstance(on, type):
        raise Refused(
            f"on={on!r} is no cluster. A run needs one, real or in virtual time. Use Simulator(4) or Dask(workers=4)."
        )


def known(options: Mapping[str, Any], function: Callable[..., Any], *more: str) -> None:
    """Refuse options that are neither optional keywords of a function nor `more`."""
    parameters = signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]
    names.extend(more)
    if strange := sorted(set(options) - set(names)):
        raise Refused(
            f"{', '.join(strange)} {'is no option' if len(strange) == 1 else 'are no options'} of training. It would "
            f"have no effect. The options are {', '.join(names)}."
        )


def expect(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse what is none of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        words = " or ".join(repr(word) for word in allowed)
        raise Refused(f"{name}={value!r} is unknown. It chooses between conventions that have names. Use {words}.")


def demand(name: str, value: object, kind: type, example: str) -> None:
    """Refuse what is not of a kind."""
    if not isinstance(value, kind):
        raise Refused(
            f"{name}={value!r} is a {type(value).__name__} and no {kind.__name__.lower()}. "
            f"Nothing else fits there. Give one such as {example}."
        )


def measurable(until: Condition, problem: Problem) -> None:
    """Refuse to wait for a metric that nobody measures."""
    if isinstance(until, Either):
        measurable(until.first, problem)
        measurable(until.second, problem)
    elif isinstance(until, reaches) and until.metric not in (known := ("loss", *problem.metrics)):
        raise Refused(
            f"{until!r} waits for a metric that {problem!r} does not measure. The run would never end by it. "
            f"Use one of {', '.join(known)}, or give the problem this metric."
        )


def recurring(every: Condition) -> None:
    """Refuse an interval that never passes."""
    if isinstance(every, Either):
        recurring(every.first)
        recurring(every.second)
    elif isinstance(every, reaches):
        raise Refused(
            f"evaluate={every!r} is no interval. A metric changes only when it is measured. "
            f"Give one such as epochs(1) or updates(100)."
        )


def correctable(correction: Correction, setup: Setup) -> None:
    """Refuse a correction that the strategy never asks for, or asks for where it means something else."""
    if not any(home.role == "server" for home in setup.cluster.homes.values()):
        raise Refused(
            f"{correction!r} was asked of a strategy without servers. "
            f"It compares what a worker pulled with the model that a server holds. "
            f"Put parameter_server() into the chain."
        )
    if correction.keeps_replica and not setup.local:
        raise Refused(
            f"{correction!r} was asked of a strategy without local steps. "
            f"Its workers keep replicas of their own, which only local steps move. "
            f"Add local_steps(1) or more to the chain."
        )

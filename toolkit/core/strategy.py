"""A strategy is a pair of pure functions; a chain of strategies is a strategy.

``step(state, message) -> (state, messages)``: events rise to the layer before, actions fall to the layer after.
What falls out at the bottom are tasks for the runtime; what rises out at the top is the trace.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from numbers import Integral, Real
from operator import is_
from typing import Any, ParamSpec, TypeAlias, TypeVar

from toolkit.core.checks import bound
from toolkit.core.cluster import Cluster, Home
from toolkit.core.errors import ChainError, Livelock, Refused
from toolkit.core.messages import RISING, Action, Event, Keys, PlaceName, Task

State: TypeAlias = Any
Message: TypeAlias = Event | Action
Homes: TypeAlias = Mapping[PlaceName, Home]
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

#: What may be called or named in the text of a strategy: strategies, codecs, schedules, topologies, conditions.
NAMES: dict[str, Callable[..., Any]] = {}

#: More messages than this for one event means that two layers answer each other without end.
LIMIT = 1_000_000


def nowhere(cluster: Cluster, homes: Homes) -> Homes:
    """The places of a layer that has none of its own."""
    return homes


@dataclass(frozen=True, eq=False)
class Strategy:
    """Two pure functions and the text that rebuilds them.

    With :math:`s_0 = init(cluster)`, message :math:`m_t` gives :math:`(s_{t+1}, replies) = step(s_t, m_t)`.

    Parameters
    ----------
    init : Cluster -> state
    step : (state, message) -> (state, messages)
        Events among the messages rise to the layer before, actions fall to the layer after.
    kind : {"policy", "exchange", "rewrite", "chain"}
    places : (Cluster, homes) -> homes
        The places this layer adds or changes.
    spec : str
        The call that made it; strategies are equal when their specs are.
    layers : tuple of Strategy
        The flat layers of a chain; empty for a single layer.
    doc : str
        Its first sentence, for :func:`explain`.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.ssp(3).kind, tk.ssp(3) == tk.parse("ssp(3)")
    ('policy', True)
    >>> tk.chain(tk.ssp(3), tk.parameter_server()).layers
    (ssp(3), parameter_server())
    """

    init: Callable[[Cluster], State]
    step: Callable[[State, Message], tuple[State, Sequence[Message]]]
    kind: str = "rewrite"
    places: Callable[[Cluster, Homes], Homes] = nowhere
    spec: str = "strategy()"
    layers: tuple[Strategy, ...] = ()
    doc: str = ""

    def __repr__(self) -> str:
        return self.spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Strategy) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)


def named(function: F) -> F:
    """Let the name of a function or class stand in the text of a strategy.

    Parameters
    ----------
    function : callable
        Defined by ``def`` or ``class``; a later one of the same name takes its place.

    Returns
    -------
    callable
        `function` itself.

    Examples
    --------
    >>> import toolkit as tk
    >>> @tk.named
    ... def pairs(worker, clock, live, seed):
    ...     "Workers 0 and 1, 2 and 3, and so on."
    ...     return tuple(other for other in live if other == worker ^ 1)
    >>> tk.gossip(pairs)
    gossip(pairs)
    >>> tk.parse("gossip(pairs)") == tk.gossip(pairs)
    True
    """
    name = getattr(function, "__name__", "")
    if not callable(function) or not name.isidentifier():
        raise Refused(
            f"{function!r} was to be named and has no name of its own. The text of a strategy calls it by that name. "
            f"Define it by `def` or `class`."
        )
    NAMES[name] = function
    return function


def text(value: object) -> str:
    """The text of an argument, such that parsing it gives an equal value."""
    name = getattr(value, "__name__", "")
    if callable(value) and not isinstance(value, type) and NAMES.get(name) is value:
        return str(name)
    if callable(value):
        raise Refused(
            f"The function {name or repr(value)} was given to a strategy but has no name that a record could keep. "
            f"A strategy is saved as the text of its call. Define it with `def` and decorate it with tk.named."
        )
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, bool):
        return repr(value)
    if isinstance(value, Integral):
        return repr(int(value))  # also of NumPy, whose numbers write their type
    return repr(float(value)) if isinstance(value, Real) else repr(value)


def strategy(function: Callable[P, Strategy]) -> Callable[P, Strategy]:
    """Record the call that makes a strategy: its ``repr`` is the text that makes it again.

    Parameters
    ----------
    function : callable that returns a Strategy
        Its name and arguments become the text, its first line the sentence in :func:`explain`. Arguments are numbers,
        texts, lists of these, strategies, codecs or functions that have a name by :func:`named`.

    Returns
    -------
    callable
        Like `function`, which then receives plain numbers and lists.

    Raises
    ------
    Refused
        When it is called with arguments that do not fit or a function that has no name, or makes no strategy.

    Examples
    --------
    >>> import toolkit as tk
    >>> @tk.strategy
    ... def patient(slack):
    ...     "Lead the slowest by less than `slack`."
    ...     return tk.gate(lambda progress, worker: progress.lead(worker) < slack)
    >>> patient(2)
    patient(2)
    >>> tk.parse("patient(2)") == patient(2)
    True
    """
    named(function)  # refuses what has no name
    signature = inspect.signature(function)
    doc = (inspect.getdoc(function) or "").strip().split("\n")[0]

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> Strategy:
        call = bound(function.__name__, signature, args, kwargs)
        spec = f"{function.__name__}({', '.join(arguments(signature, call))})"
        return replace(only(f"{spec} returned", function(*call.args, **call.kwargs)), spec=spec, doc=doc)

    return named(made)


def only(found: str, value: object) -> Strategy:
    """Refuse what is not a strategy, where `found` says how it came."""
    if not isinstance(value, Strategy):
        raise Refused(
            f"{found} {value!r}, which is a {type(value).__name__}. Only strategies can be there. "
            f"Call the strategy first, for example chain(bsp(), parameter_server())."
        )
    return value


def arguments(signature: inspect.Signature, bound: inspect.BoundArguments) -> list[str]:
    """The texts of the given arguments: by position as long as none is left out, then by name; no defaults."""
    texts: list[str] = []
    by_name = False
    for name, parameter in signature.parameters.items():
        if name not in bound.arguments:
            by_name = True
            continue
        value = bound.arguments[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            texts.extend(text(item) for item in value)
        elif value == parameter.default and type(value) is type(parameter.default):
            by_name = True
        else:
            by_name = by_name or parameter.kind is parameter.KEYWORD_ONLY
            texts.append(f"{name}={text(value)}" if by_name else text(value))
    return texts


@named
def chain(*strategies: Strategy) -> Strategy:
    """Stack strategies from coordinator to wire: a policy, an exchange, then rewrites.

    Events rise to the strategy before, actions fall to the one after. A chain of chains is the flat chain.

    Parameters
    ----------
    *strategies : Strategy

    Raises
    ------
    ChainError
        At the first event, when an action falls out that no layer below turned into a task.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.ssp(3), tk.parameter_server(shards=4))
    chain(ssp(3), parameter_server(4))
    """
    if not strategies:
        raise Refused(
            "chain was given no strategy. A run needs a policy and an exchange. Write chain(bsp(), all_reduce(ring))."
        )
    layers = tuple(layer for item in strategies for layer in (only("chain was given", item).layers or (item,)))
    spec = f"chain({', '.join(layer.spec for layer in layers)})"
    return Strategy(
        functools.partial(_init, layers),
        functools.partial(_step, layers),
        "chain",
        functools.partial(_places, layers),
        spec,
        layers,
    )


def _places(layers: tuple[Strategy, ...], cluster: Cluster, homes: Homes) -> Homes:
    for layer in layers:
        homes = layer.places(cluster, homes)
    return homes


def _init(layers: tuple[Strategy, ...], cluster: Cluster) -> State:
    cluster = replace(cluster, homes=_places(layers, cluster, cluster.homes))
    return tuple(layer.init(cluster) for layer in layers)


def _step(layers: tuple[Strategy, ...], states: State, message: Message) -> tuple[State, list[Message]]:
    states, out, last = list(states), list[Message](), len(layers) - 1
    queue = deque([(last if RISING[type(message)] else 0, message)])
    for _ in range(LIMIT):
        if not queue:
            return tuple(states), out
        i, message = queue.popleft()
        states[i], replies = layers[i].step(states[i], message)
        if RISING[type(message)] and not any(map(is_, replies, repeat(message))):
            replies = (message, *replies)  # a fact always rises on
        for reply in replies:
            if RISING[type(reply)]:
                if i:
                    queue.append((i - 1, reply))
                else:
                    out.append(reply)
            elif i < last:
                queue.append((i + 1, reply))
            elif isinstance(reply, Task):
                out.append(reply)
            else:
                raise ChainError(
                    f"{reply} fell out of {', '.join(layer.spec for layer in layers)}. No layer turns it into tasks. "
                    f"Put an exchange such as parameter_server() below the policy."
                )
    raise Livelock(
        f"One event caused {LIMIT} messages without end; the last was {message}. Two layers answer each other. "
        f"Look for those that answer {type(message).__name__}."
    )


def keys(tasks: Sequence[Task]) -> Keys:
    """The keys of some tasks, to be named in the `after` of another."""
    return tuple([task.key for task in tasks])

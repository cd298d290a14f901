"""Numbers that are carried about before they are computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from toolkit.core.errors import Refused
from toolkit.core.messages import Done, Event, Measured


class Looked(Refused):
    """Somebody computed with a number that is not known yet."""


class Unknown(float):
    """A number that is not computed yet: it can be passed on and written down, not looked at.

    Its value as a float is its place among all such numbers.

    Examples
    --------
    >>> from toolkit.work.unknown import Unknown
    >>> loss = Unknown(3)
    >>> filled([Measured("loss", loss, 0, 1.0)], [0.5, 0.4, 0.3, 0.2])[0].value
    0.2
    """


def _look(*_: object) -> NoReturn:
    raise Looked(
        "A strategy or a condition looked at a loss, a metric or the seed of a run. What it decides then depends on "
        "what is learned, which is not known when only the order of events is asked for. Train each seed by itself."
    )


for _name in ("bool", "eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "float", "int", "trunc", "round"):
    setattr(Unknown, f"__{_name}__", _look)
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow"):
    setattr(Unknown, f"__{_name}__", _look)
    setattr(Unknown, f"__r{_name}__", _look)
for _name in ("floor", "ceil", "and", "rand", "xor", "rxor", "rshift", "lshift", "index", "is_integer"):
    setattr(Unknown, _name if _name == "is_integer" else f"__{_name}__", _look)
Unknown.__hash__ = float.__hash__  # type: ignore[method-assign]


def number(unknown: float) -> int:
    """Where an unknown number stands among all."""
    return float.__int__(unknown)


def plain(value: float) -> float:
    """A number as it can be put into a table: an unknown one as its place."""
    return float.__add__(value, 0.0) if isinstance(value, Unknown) else value


def filled(events: Iterable[Event], known: Sequence[float]) -> tuple[Event, ...]:
    """The events with what was not known when they happened."""

    def fill(value: Any) -> Any:
        return float(known[number(value)]) if isinstance(value, Unknown) else value

    def facts(given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: fill(value) for name, value in given.items()}

    def event(one: Event) -> Event:
        match one:
            case Done(facts=given) if given:
                return replace(one, facts=facts(given))
            case Measured(value=value):
                return replace(one, value=fill(value))
        return one

    return tuple(map(event, events))

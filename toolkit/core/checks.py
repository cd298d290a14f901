"""Checks of arguments that many constructors share; each says what came, why it cannot be and what to do.

A check returns the argument as a plain number of Python, whoever made it, so that texts and messages hold nothing else.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Final

from toolkit.core.errors import Refused

#: What is gone through one by one is at most so many.
MOST: Final = 100_000


def native(value: Any) -> Any:
    """An argument as numbers and lists of Python, also if NumPy made it."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(native, value)) if type(value) in (list, tuple) else value
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value


def whole(
    name: str, value: object, least: int, unit: str, *, most: float = math.inf, infinite: bool = False, why: str = ""
) -> int:
    """Refuse what is not a whole number from `least` to `most` (or infinite, where that has a meaning)."""
    value = native(value)
    if infinite and isinstance(value, float) and value == math.inf:
        return value  # type: ignore[return-value]
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        bounds = f"from {least} on" if most == math.inf else f"from {least} to {most}"
        raise Refused(
            f"{name}={value!r} is not a whole number of {unit} {bounds}. "
            f"{why or f'Counts of {unit} have no other values'}. Give an integer {bounds}."
        )
    return int(value)


def few(name: str, value: object, least: int, unit: str, *, most: int = MOST) -> int:
    """Refuse what is not a whole number small enough to go through one by one."""
    return whole(name, value, least, unit, most=most, why=f"All {unit} are gone through one by one")


def positive(name: str, value: object, unit: str, *, infinite: bool = False) -> float:
    """Refuse what is not a number above zero, finite unless infinity has a meaning."""
    number = _number(value)
    if not number > 0 or (number == math.inf and not infinite):
        raise Refused(
            f"{name}={value!r} is not a positive number of {unit}. Nothing can take or have that. "
            f"Give a {'' if infinite else 'finite '}number above zero."
        )
    return number


def amount(name: str, value: object, unit: str, *, most: float = math.inf) -> float:
    """Refuse what is not a finite number from zero to `most`."""
    number = _number(value)
    if not 0 <= number <= most or number == math.inf:
        bounds = "from 0 on" if most == math.inf else f"from 0 to {most}"
        raise Refused(
            f"{name}={value!r} is not a finite number of {unit} {bounds}. "
            f"Nothing here is less or without end. Give a number {bounds}."
        )
    return number


def fraction(name: str, value: object) -> float:
    """Refuse what is outside (0, 1]."""
    number = _number(value)
    if not 0 < number <= 1:
        raise Refused(
            f"{name}={value!r} lies outside (0, 1]. It is a share of a whole. Give a number above 0 and at most 1."
        )
    return number


def finite(name: str, value: object) -> float:
    """Refuse what is not a finite number."""
    number = _number(value)
    if not math.isfinite(number):
        raise Refused(f"{name}={value!r} is not a finite number. Nothing compares with it. Give one such as 0.3.")
    return number


def seeding(value: object) -> int:
    """Refuse what cannot be the seed of counter-based draws."""
    number = native(value)
    if not isinstance(number, Integral) or isinstance(number, bool) or not 0 <= int(number) < 2**64:
        raise Refused(
            f"seed={value!r} is no seed. Draws are keyed by 64 bits. Give a whole number from 0 to 2**64 - 1."
        )
    return int(number)


def function(name: str, value: object, *arguments: str) -> None:
    """Refuse what cannot be called with these arguments."""
    try:
        signature = inspect.signature(value) if callable(value) else None
    except ValueError:  # some built-in functions tell nobody
        return
    try:
        if signature is None:
            raise TypeError(f"a {type(value).__name__} cannot be called")
        signature.bind(*arguments)
    except TypeError as error:
        given = ", ".join(arguments)
        raise Refused(
            f"{name}={value!r} is no function of ({given}): {error}. It is called with these. "
            f"Define one by `def f({given})`."
        ) from None


def bound(
    name: str, signature: inspect.Signature, args: Sequence[Any], named: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments of a call, as plain numbers and lists; refuse those that do not fit."""
    try:
        return signature.bind(*map(native, args), **{key: native(value) for key, value in named.items()})
    except TypeError as error:
        raise Refused(
            f"{name} was called with arguments that do not fit: {error}. A call gives what its definition asks for. "
            f"Look at help({name})."
        ) from None


def _number(value: object) -> float:
    """A plain number; what is none, or too large to compute with, is NaN."""
    number = native(value)
    if isinstance(number, bool) or not isinstance(number, Real):
        return math.nan
    try:
        close = float(number)
    except OverflowError:
        return math.nan
    return int(number) if isinstance(number, Integral) else close

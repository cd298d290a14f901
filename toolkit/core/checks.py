"""Checks of arguments that many constructors share; each says what came, why it cannot be and what to do."""

from __future__ import annotations

import math
from numbers import Integral, Real

from toolkit.core.errors import Refused


def whole(name: str, value: float, least: int, unit: str, *, most: float = math.inf, infinite: bool = False) -> None:
    """Refuse what is not a whole number from `least` to `most` (or infinite, where that has a meaning)."""
    if infinite and _number(value) and value == math.inf:
        return
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= value <= most:
        bounds = f"from {least} on" if most == math.inf else f"from {least} to {most}"
        raise Refused(
            f"{name}={value!r} is not a whole number of {unit} {bounds}. Counts of {unit} have no other values. "
            f"Give an integer {bounds}."
        )


def positive(name: str, value: float, unit: str, *, infinite: bool = False) -> None:
    """Refuse what is not a number above zero, finite unless infinity has a meaning."""
    if not _number(value) or not value > 0 or (value == math.inf and not infinite):
        raise Refused(
            f"{name}={value!r} is not a positive number of {unit}. Nothing can take or have that. "
            f"Give a {'' if infinite else 'finite '}number above zero."
        )


def fraction(name: str, value: float) -> None:
    """Refuse what is outside (0, 1]."""
    if not _number(value) or not 0 < value <= 1:
        raise Refused(
            f"{name}={value!r} lies outside (0, 1]. It is a share of a whole. Give a number above 0 and at most 1."
        )


def seeding(value: int) -> None:
    """Refuse what cannot be the seed of counter-based draws."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not 0 <= value < 2**64:
        raise Refused(
            f"seed={value!r} is no seed. Draws are keyed by 64 bits. Give a whole number from 0 to 2**64 - 1."
        )


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)

"""Checks of arguments that many constructors share; each says what came, why it cannot be and what to do."""

from __future__ import annotations

import math

from toolkit.core.errors import Refused


def whole(name: str, value: float, least: int, unit: str, infinite: bool = False) -> None:
    """Refuse what is not a whole number of at least `least` (or infinite, where that has a meaning)."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and infinite and value == math.inf:
        return
    if not number or not math.isfinite(value) or value != int(value) or value < least:
        raise Refused(
            f"{name}={value!r} is not a whole number of {unit} from {least} on. Counts of {unit} have no other values. "
            f"Give an integer of at least {least}."
        )


def positive(name: str, value: float, unit: str) -> None:
    """Refuse what is not a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise Refused(
            f"{name}={value!r} is not a positive number of {unit}. Nothing can take or have that. Give a number "
            f"above zero."
        )


def fraction(name: str, value: float) -> None:
    """Refuse what is outside (0, 1]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise Refused(
            f"{name}={value!r} lies outside (0, 1]. It is a share of a whole. Give a number above 0 and at most 1."
        )

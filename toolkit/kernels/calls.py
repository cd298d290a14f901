"""Reads the text of a call, such as ``top_k(0.01)``, in which codecs and corrections travel; runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, TypeVar

from toolkit.core.errors import Refused

T = TypeVar("T")


def read_call(text: str, known: Mapping[str, T]) -> tuple[T, tuple[Any, ...], dict[str, Any]]:
    """What `known` holds under the called name, and the literal arguments.

    Raises
    ------
    ValueError
        For anything but one call of a known name with literals.

    Examples
    --------
    >>> from toolkit.kernels.calls import read_call
    >>> read_call("half(3, of='x')", {"half": 0.5})
    (0.5, (3,), {'of': 'x'})
    """
    try:
        match ast.parse(text, mode="eval").body:
            case ast.Call(ast.Name(name), args, keywords) if name in known and all(keyword.arg for keyword in keywords):
                named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
                return known[name], tuple(map(ast.literal_eval, args)), named
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
        pass  # one message for everything that is no such call
    raise Refused(
        f"{text!r} cannot be resolved here. It is not one call of {', '.join(known)} with literal arguments. "
        f"Write it like {next(iter(known))!r} followed by its numbers in brackets."
    )

"""From the text of a strategy back to the strategy, without evaluating anything."""

from __future__ import annotations

import ast
import inspect
import math
from typing import Any

from toolkit.core.checks import bound
from toolkit.core.conditions import Either
from toolkit.core.errors import Refused
from toolkit.core.strategy import NAMES


def parse(source: str) -> Any:
    """Rebuild what a text such as ``repr(strategy)`` describes.

    The text is a call of known names whose arguments are literals, known names and further such calls. Known are the
    strategies, codecs, schedules, topologies and conditions of the toolkit, those made with ``@tk.strategy`` or
    ``tk.named``, and ``inf``. Nothing is evaluated.

    Parameters
    ----------
    source : str

    Raises
    ------
    Refused
        For an unknown name, arguments that do not fit, or anything that is not such a call.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.parse("chain(dssp(3, 15), parameter_server(shards=2))")
    chain(dssp(3, 15), parameter_server(2))
    """
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, TypeError, AttributeError, MemoryError, RecursionError) as error:
        raise Refused(
            f"{source!r} is not the text of a strategy: {error}. Such a text is a call of known names. "
            f"Write for example chain(ssp(3), parameter_server(2))."
        ) from None
    if not isinstance(tree, (ast.Call, ast.BinOp)):
        raise Refused(
            f"{source!r} is not a call. The text of a strategy is a call of known names. "
            f"Write for example chain(ssp(3), parameter_server(2))."
        )
    return _value(tree, source)


def _value(node: ast.expr, source: str) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in NAMES:
            named = {keyword.arg: _value(keyword.value, source) for keyword in keywords if keyword.arg}
            if len(named) == len(keywords) and not any(isinstance(arg, ast.Starred) for arg in args):
                return _called(name, [_value(arg, source) for arg in args], named)
        case ast.Name(id="inf"):
            return math.inf
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return tuple(_value(item, source) for item in items)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Constant(value=str() | int() | float() | bool() | None):
            return node.value
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return Either(_value(left, source), _value(right, source))
    found = ast.unparse(node)
    known = ", ".join(sorted(NAMES))
    raise Refused(
        f"{found!r} in {source!r} cannot be read. Only calls of known names with literals are. Known names: {known}."
    )


def _called(name: str, args: list[Any], named: dict[str, Any]) -> Any:
    call = bound(name, inspect.signature(NAMES[name]), args, named)
    return NAMES[name](*call.args, **call.kwargs)

"""Messages as plain data and back: lists, numbers and text, nothing that has to be trusted or unpickled."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from toolkit.core import messages
from toolkit.core.errors import Refused
from toolkit.core.messages import Action, Event, Ticket
from toolkit.core.records import Record

_CLASSES: dict[str, type[Record]] = {
    name: cls
    for name, cls in inspect.getmembers(messages, inspect.isclass)
    if issubclass(cls, (Event, Action, Ticket)) and cls.__module__ == messages.__name__
}
_FIELDS = {name: cls.__struct_fields__ for name, cls in _CLASSES.items()}
_MARK = "\x00"  # before the name of a message, so that no list of text can be taken for one


def plain(value: Any) -> Any:
    """A message, or a tuple or mapping of messages, as lists, numbers and text.

    Examples
    --------
    >>> from toolkit.core.messages import Cancel
    >>> restore(plain(Cancel(("cancel", 3, 0), 0, 3))) == Cancel(("cancel", 3, 0), 0, 3)
    True
    """
    name = type(value).__name__
    if name in _FIELDS:
        return [_MARK + name, *(plain(getattr(value, field)) for field in _FIELDS[name])]
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, frozenset):
        return [_MARK, *sorted(plain(item) for item in value)]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def restore(data: Any) -> Any:
    """What :func:`plain` made of a message: lists become tuples again."""
    if isinstance(data, (list, tuple)):
        if data and isinstance(data[0], str) and data[0].startswith(_MARK):
            return _message(data)
        return tuple(restore(item) for item in data)
    if isinstance(data, Mapping):
        return {key: restore(item) for key, item in data.items()}
    return data


def _message(data: Any) -> Any:
    name, values = data[0][1:], data[1:]
    if not name:
        return frozenset(restore(item) for item in values)
    if name not in _FIELDS or len(values) != len(_FIELDS[name]):
        raise Refused(
            f"A message {name!r} with {len(values)} fields arrived. The vocabulary has no such message. "
            f"Let all processes run the same version of the toolkit."
        )
    return _CLASSES[name](**dict(zip(_FIELDS[name], map(restore, values), strict=True)))

"""Immutable records: what messages, states and descriptions are made of.

A run of a thousand workers makes millions of them, so they are structs of msgspec, made and changed in C. They answer
:func:`dataclasses.fields` and :func:`dataclasses.replace` too: a layer of your own needs only the standard library.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from inspect import get_annotations
from typing import Any, ClassVar, dataclass_transform

from msgspec import Struct, field
from msgspec.structs import replace

__all__ = ["Record", "field", "replace"]


class Fields:
    """The fields of a class of records as :mod:`dataclasses` lists them."""

    def __get__(self, record: object, kind: type[Record]) -> dict[str, dataclasses.Field[Any]]:
        return listed(kind)


@cache
def listed(kind: type[Record]) -> dict[str, dataclasses.Field[Any]]:
    """Name and type of each field of a record; those given by name alone come last."""
    types = {name: text for base in kind.__mro__ for name, text in get_annotations(base).items()}
    twin = dataclasses.make_dataclass(kind.__name__, [(name, types[name]) for name in kind.__struct_fields__])
    return {field.name: field for field in dataclasses.fields(twin)}


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record(Struct, frozen=True, gc=False):
    """An immutable record without a ``__dict__``, equal to those of its class with equal fields.

    The garbage collector passes over records: they hold plain data and each other, never in a circle.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]] = Fields()  # type: ignore[assignment]

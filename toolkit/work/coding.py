"""Updates as they travel: encoded, with what codes lose kept for later updates, and decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from toolkit.core.messages import Span
from toolkit.kernels.compression.registry import decode, encode

if TYPE_CHECKING:
    from toolkit.place import Place, Places

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = tuple[Array, ...]


class Left(NamedTuple):
    """What the code of a part leaves for the next update: what it lost, and the codec's own memory."""

    lost: Array | None = None
    memory: Any = None


def encoded(places: Places, place: Place, part: Span, codec: str | None) -> Value:
    """A part of the place's own update as it travels; encoded once, whoever it is for."""
    assert place.update is not None
    if codec is None:
        return (place.cut(place.update, part),)
    if part not in place.encoded:
        key = (places.setup.cluster.seed, places.worker(place.name), place.clock, part[0])
        place.encoded[part] = encoding(places, place, part, codec, key)
    return place.encoded[part]


def encoding(places: Places, place: Place, part: Span, codec: str, key: tuple[int, ...]) -> Value:
    """Encode what is learned in a part, with what earlier codes lost; model state travels as it is.

    An update may be encoded again, for a sum that is issued again: what is left over counts from its last code.
    """
    assert place.update is not None
    update, learned, left = place.cut(place.update, part), learned_in(places, part), place.left.get(part, Left())
    wanted = update if learned is None else update[learned]
    wanted = wanted if left.lost is None else left.lost + wanted
    payload, memory = encode(codec, wanted, left.memory, key)
    lost = wanted - decode(codec, payload, len(wanted), key).astype(wanted.dtype, copy=False)
    place.leaves[part] = Left(lost, memory)
    return payload if learned is None else (*payload, update[~learned])


def decoded(places: Places, place: Place, part: Span, codec: str | None, values: Value, key: tuple[int, ...]) -> Array:
    """The update that a code stands for."""
    if codec is None:
        return values[0]
    dtype, learned = place.params.dtype, learned_in(places, part)
    if learned is None:
        return decode(codec, values, part[1] - part[0], key).astype(dtype, copy=False)
    update = np.empty(part[1] - part[0], dtype)
    update[learned], update[~learned] = decode(codec, values[:-1], int(learned.sum()), key), values[-1]
    return update


def learned_in(places: Places, part: Span) -> Array | None:
    """Which values of a part are learned; None when all are."""
    learned = places.learner.vector.trainable
    return None if learned is None or learned[slice(*part)].all() else learned[slice(*part)]

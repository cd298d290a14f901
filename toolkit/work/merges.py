"""Merges: from the updates of a group to one optimizer step, and from snapshots to their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toolkit.core.layout import cuts
from toolkit.core.messages import Apply, Mix, Reduce, Span
from toolkit.work.coding import Array, Value, decoded, encoded, encoding
from toolkit.work.steps import Result

if TYPE_CHECKING:
    from toolkit.place import Place, Places


#: XLA reads arrays that begin at multiples of so many bytes where they are.
ALIGNED = 64


class Sum(NamedTuple):
    """A sum under way: the part of the model vector it is of, and its values as they travel."""

    round: int | None
    part: Span
    values: Value


class Missing(ValueError):
    """A merge was asked for before all its updates had arrived."""


def apply(places: Places, place: Place, task: Apply) -> Result:
    """An optimizer step with the weighted mean of a group's updates; nothing if there are no rows behind them."""
    params, optimizer = place.params, places.optimizer(place, task.drift)
    if total := sum(task.weights):
        update = merged(places, place, task, total)
        factor = task.share if places.setup.scaling == "mean" else 1.0
        params, optimizer = places.applier(place.home.span, task.drift).apply(
            params, optimizer, update, task.samples, factor, task.share
        )

    def install(at: Place) -> None:
        at.params, at.optimizers = params, {**at.optimizers, task.drift: optimizer}
        if task.source == "inbox":
            for worker in task.group:
                at.inbox.pop(worker, None)
        elif task.source == "sum":
            at.sums, at.total = {}, None

    return Result(install)


def merged(places: Places, place: Place, task: Apply, total: float) -> Array:
    """The mean update, weighted by rows."""
    if task.source == "update":
        assert place.update is not None
        return place.update
    if task.source == "sum":
        return summed(places, place, task)
    mean: Array | None = None
    for i in range(len(task.group)):
        update = corrected(places, place, task, i, received(places, place, task, i))
        weighted = update if len(task.group) == 1 else update * update.dtype.type(task.weights[i] / total)
        mean = weighted if mean is None else mean + weighted
    assert mean is not None
    return mean


def received(places: Places, place: Place, task: Apply, i: int) -> Array:
    """The update of a member of a group, put together from its parts; the place's own is taken as others see it."""
    worker, clock = task.group[i], task.clocks[i]
    if worker == place.home.worker:
        version, pieces = clock, [(task.part, encoded(places, place, task.part, task.codec))]
    else:
        version, pieces = place.inbox.get(worker, (-1, []))
    size = task.part[1] - task.part[0]
    if version not in (clock, task.round) or sum(part[1] - part[0] for part, _ in pieces) != size:
        raise Missing(
            f"Merge {task.round} at {place.name} takes the update of worker {worker} in its iteration {clock}, and "
            f"{[part for part, _ in pieces]} of number {version} have arrived there. An update is merged whole. Let "
            f"the exchange wait for every part before it says that the update is ready."
        )
    seed = places.setup.cluster.seed
    found = {
        part: decoded(places, place, part, task.codec, values, (seed, worker, clock, part[0]))
        for part, values in pieces
    }
    if len(found) == 1:
        return found[task.part]
    whole = np.empty(size, place.params.dtype)
    for part, update in found.items():
        whole[part[0] - task.part[0] : part[1] - task.part[0]] = update
    return whole


def corrected(places: Places, place: Place, task: Apply, i: int, update: Array) -> Array:
    """What a correction at the server makes of a member's update; model state stays as it is."""
    correction = places.setup.correction
    if correction is None or correction.where != "server":
        return update
    pulled = place.pulled.get(task.group[i], place.params)
    changed = np.asarray(places.correct(update, np.int32(task.staleness[i]), pulled, place.params))
    learned = places.learner.vector.trainable
    return changed if learned is None else np.where(learned[slice(*task.part)], changed, update)


def mix(place: Place, task: Mix) -> Result:
    """The weighted mean of snapshots, the place's own parameters first."""
    known = {place.name: place.params} | {
        source: values for (number, source), values in place.snapshots.items() if number == task.round
    }
    mean: Array | None = None
    for source, weight in zip(task.sources, task.weights, strict=True):
        scaled = known[source] * place.params.dtype.type(weight)
        mean = scaled if mean is None else mean + scaled

    def install(at: Place) -> None:
        at.params = mean if mean is not None else at.params
        # A place mixes in the order of rounds: what is left of earlier ones was cancelled.
        at.snapshots = {key: values for key, values in at.snapshots.items() if key[0] > (task.round or 0)}

    return Result(install)


def begin(places: Places, place: Place, task: Reduce) -> None:
    """Begin a sum with the place's own update, encoded if a codec asks for it, times its weight."""
    assert place.update is not None
    weight = task.weights[task.group.index(place.name)] / (sum(task.weights) or 1.0)
    others = {key: one for key, one in place.sums.items() if one.round == task.round}
    if place.total is None or not others:
        place.total = aligned(len(place.params), place.params.dtype)
    if task.codec is None:
        values: Value = (place.cut(place.total, task.part),)
        np.multiply(place.cut(place.update, task.part), values[0].dtype.type(weight), out=values[0])
    else:
        # Codes that are to be added share their random numbers: those of the round.
        code = encoding(places, place, task.part, task.codec, common(places, task.round, task.part))
        values = tuple(array * array.dtype.type(weight) for array in code)
    place.sums = {**others, task.key: Sum(task.round, task.part, values)}


def summed(places: Places, place: Place, task: Apply) -> Array:
    """The sum of a group's updates, put together from its parts."""
    assert place.total is not None
    if task.codec is not None:
        for one in place.sums.values():
            key = common(places, task.round, one.part)
            place.cut(place.total, one.part)[:] = decoded(places, place, one.part, task.codec, one.values, key)
    return place.total


def common(places: Places, round: int | None, part: Span) -> tuple[int, ...]:
    """The random numbers of a part of a merge, the same for all its members."""
    return (places.setup.cluster.seed, round or 0, part[0])


def aligned(size: int, dtype: np.dtype[Any]) -> Array:
    """Room for `size` values where XLA need not copy them."""
    room = np.empty(size * dtype.itemsize + ALIGNED, np.uint8)
    start = -room.ctypes.data % ALIGNED
    return room[start : start + size * dtype.itemsize].view(dtype)


def chunk(values: int, count: int, start: int, stop: int) -> slice:
    """Where chunks ``[start, stop)`` of `count` lie in an array of `values` values."""
    edges = cuts((0, values), count)
    return slice(edges[start][0], edges[stop - 1][1])


def mean(arrays: Sequence[Array], weights: Sequence[float] | None = None) -> Array:
    """The weighted mean; equal arrays give themselves, bit for bit."""
    first = arrays[0]
    if all(np.array_equal(first, other) for other in arrays[1:]):
        return first
    known = weights if weights and sum(weights) else [1.0] * len(arrays)
    total = sum(a.astype(np.float64) * w for a, w in zip(arrays, known, strict=True)) / sum(known)
    return np.asarray(total).astype(first.dtype)

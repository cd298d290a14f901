"""Merges: from the updates of a group to one optimizer step, and from snapshots to their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from toolkit.core.layout import cuts
from toolkit.core.messages import Apply, Mix, Reduce
from toolkit.work.coding import Array, Value, decoded, encoded, encoding
from toolkit.work.steps import Result

if TYPE_CHECKING:
    from toolkit.place import Place, Places


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
            at.sums = {}

    return Result(install)


def merged(places: Places, place: Place, task: Apply, total: float) -> Array:
    """The mean update, weighted by rows."""
    if task.source == "update":
        assert place.update is not None
        return place.update
    if task.source == "sum":
        (values,) = place.sums.values()
        key = (places.setup.cluster.seed, task.round or 0, task.part[0])
        return decoded(places, place, task.part, task.codec, values, key)
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
    whole = np.empty(size, place.params.dtype)
    for part, values in pieces:
        key = (places.setup.cluster.seed, worker, clock, part[0])
        whole[part[0] - task.part[0] : part[1] - task.part[0]] = decoded(places, place, part, task.codec, values, key)
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


def own_part(places: Places, place: Place, task: Reduce) -> Value:
    """What a member puts into a sum: its update, encoded if a codec asks for it, times its weight."""
    assert place.update is not None
    weight = task.weights[task.group.index(place.name)] / (sum(task.weights) or 1.0)
    values: Value = (place.cut(place.update, task.part),)
    if task.codec is not None:
        # Codes that are to be added share their random numbers: those of the round.
        key = (places.setup.cluster.seed, task.round or 0, task.part[0])
        values = encoding(places, place, task.part, task.codec, key)
    return tuple(array * array.dtype.type(weight) for array in values)


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

"""The work of tasks on the arrays of a place: gradients, optimizer steps, mixing, encoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from toolkit.core.layout import cuts
from toolkit.core.messages import Apply, Compute, Facts, Mix, Reduce, Span, Stage, Ticket
from toolkit.data.sampling import positions
from toolkit.data.sources import targets
from toolkit.kernels.compression.registry import decode, encode
from toolkit.kernels.training import Rows as Batch

if TYPE_CHECKING:
    from toolkit.place import Place, Places, Setup

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = tuple[Array, ...]


@dataclass
class Result:
    """What work produced: how to install it at its place, and what to report."""

    install: Callable[[Place], None]
    facts: Facts = field(default_factory=dict)


@dataclass
class Microbatches:
    """What a pipeline stage holds between the passes of its microbatches."""

    incoming: dict[tuple[str, int], Array] = field(default_factory=dict)
    outgoing: dict[tuple[str, int], Value] = field(default_factory=dict)
    inputs: dict[int, Array] = field(default_factory=dict)
    update: Array | None = None
    loss: float = 0.0


class Rows:
    """The training rows behind tickets, the same for every process that asks."""

    def __init__(self, setup: Setup) -> None:
        self.source, self.seed = setup.problem.train, setup.cluster.seed
        self.shards = None
        if setup.way is not None:
            self.shards = deal(setup)

    def batch(self, ticket: Ticket) -> Batch:
        """Inputs and targets of a ticket."""
        if not ticket.count:
            return self.source.take(np.zeros(0, np.int64))
        return self.source.take(positions(ticket, self.source, self.seed, self.shards))


def deal(setup: Setup) -> dict[int, NDArray[np.int64]]:
    """The rows of each worker."""
    assert setup.way is not None
    labels = targets(setup.problem.train) if setup.way.labelled else None
    return setup.way(setup.problem.train.rows, setup.cluster.workers, setup.cluster.seed, labels)


# -- steps ----------------------------------------------------------------------------------------------------------


def compute(places: Places, place: Place, task: Compute) -> Result:
    """A gradient, the drift of local steps, or a forward pass."""
    worker, clock = int(task.key[1]), int(task.key[2])
    batches = [places.rows.batch(ticket) for ticket in task.tickets]
    rows = sum(ticket.count for ticket in task.tickets)
    if task.forward:
        losses = [places.learner.forward(place.params, place.local, batch) for batch in batches if len(batch[0])]
        return Result(
            lambda at: None,
            {"samples": rows, "loss": float(np.mean(losses)) if losses else 0.0, "norm": 0.0, "clock": clock},
        )
    seed = places.setup.cluster.seed
    keys = [(seed, worker, clock, i) for i in range(len(batches))]
    params, inner = place.params, place.inner
    if task.local:
        applier = places.local_applier(place)
        inner = applier.init(params) if inner is None else inner
        step, inner = places.learner.local_steps(
            params, place.local, batches, keys, applier, inner, seen(places, task.tickets[0])
        )
    else:
        step = places.learner.gradient(params, place.local, batches[0], keys[0])
    update, after = step.update, None
    correction = places.setup.correction
    if correction is not None and correction.where == "worker":
        own = params - update  # after the local steps
        pulled = place.pulled.get(worker, params)
        update = np.asarray(correction.fn(update, 0, pulled, own))
        after = own + update if correction.keeps_replica else None

    def install(at: Place) -> None:
        at.update, at.local, at.inner, at.clock = update, step.local, inner, clock
        at.encoded, at.rows = {}, at.rows + rows
        if after is not None:
            at.params = after

    loss = step.loss if rows else 0.0
    return Result(install, {"samples": rows, "loss": loss, "norm": step.norm, "clock": clock})


def seen(places: Places, ticket: Ticket) -> int:
    """The rows dealt before a ticket, to all workers together."""
    setup = places.setup
    if ticket.shard is None:
        return ticket.epoch * setup.problem.train.rows + ticket.first
    sizes = setup.shards or {}
    return (ticket.epoch * sizes.get(ticket.shard, 0) + ticket.first) * len(setup.cluster.workers)


def stage(places: Places, place: Place, task: Stage) -> Result:
    """One pass of one microbatch through the blocks of a stage."""
    kernel, held = places.stage(place.home.span), place.stage
    (s, count), (m, microbatches) = task.stage, task.microbatch
    clock, rows = int(task.key[2]), task.tickets[0].count
    start, stop = cuts((0, rows), microbatches)[m]
    share = (stop - start) / rows if rows else 0.0
    keys = (places.setup.cluster.seed, task.worker, clock, m)
    first, last = s == 0, s == count - 1
    ends = m == microbatches - 1
    x, y = places.rows.batch(task.tickets[0]) if first or last else (None, None)
    if task.phase == "forward":
        inputs = x[start:stop] if first and x is not None else held.incoming.pop(("activations", m))
        outgoing: Value = () if last else (np.zeros((0, 1), place.params.dtype),)  # of no rows
        if share and not last:
            outgoing = (kernel.forward(place.params, place.local, inputs, None if task.forward else keys),)
        loss = held.loss
        if last and task.forward and y is not None and share:
            loss += kernel.loss(place.params, place.local, inputs, y[start:stop], None, share)

        def passed(at: Place) -> None:
            at.stage.inputs[m], at.stage.outgoing["activations", m] = inputs, outgoing
            at.stage.loss = 0.0 if ends else loss

        known: Facts = (
            {"samples": rows, "loss": loss, "norm": 0.0, "clock": clock} if last and task.forward and ends else {}
        )
        return Result(passed, known)
    target = y[start:stop] if last and y is not None else held.incoming.pop(("cotangents", m))
    if share:
        back = kernel.backward(place.params, place.local, held.inputs[m], target, keys, share)
        update, local, cotangent, score = back.update, back.local, back.cotangent, back.loss or 0.0
    else:
        update, local, score = np.zeros_like(place.params), place.local, 0.0
        cotangent = held.inputs[m]
    total = update if held.update is None else held.update + update
    loss = held.loss + score

    def returned(at: Place) -> None:
        at.stage.inputs.pop(m)
        at.stage.update, at.stage.loss, at.local = (None, 0.0, local) if ends else (total, loss, local)
        if not first and cotangent is not None:
            at.stage.outgoing["cotangents", m] = (cotangent,)
        if ends:
            at.update, at.clock, at.encoded, at.rows = total, clock, {}, at.rows + rows

    facts: dict[str, Any] = {}
    if ends:
        learned = kernel.vector.trainable
        facts = {"norm": float(np.linalg.norm(total if learned is None else total[learned])), "clock": clock}
        if last:
            facts |= {"samples": rows, "loss": loss}
    return Result(returned, facts)


# -- merges ---------------------------------------------------------------------------------------------------------


def apply(places: Places, place: Place, task: Apply) -> Result:
    """An optimizer step with the weighted mean of a group's updates."""
    total = sum(task.weights)
    if not total:
        return Result(lambda at: at.inbox.clear() if task.source == "inbox" else None)
    update = merged(places, place, task, total)
    factor = task.share if places.setup.scaling == "mean" else 1.0
    before = places.optimizer(place, task.drift)
    params, optimizer = places.applier(place.home.span, task.drift).apply(
        place.params, before, update, task.samples, factor, task.share
    )

    def install(at: Place) -> None:
        at.params, at.optimizer = params, optimizer
        if task.source == "inbox":
            for worker in task.group:
                at.inbox.pop(worker, None)
        at.sums = {}

    return Result(install)


def merged(places: Places, place: Place, task: Apply, total: float) -> Array:
    """The mean update, weighted by rows."""
    if task.source == "update":
        assert place.update is not None
        return place.update
    if task.source == "sum":
        (values,) = place.sums.values()
        return decoded(
            places, place, task.part, task.codec, values, (places.setup.cluster.seed, task.round or 0, task.part[0])
        )
    mean: Array | None = None
    for i, worker in enumerate(task.group):
        update = received(places, place, task, i)
        correction = places.setup.correction
        if correction is not None and correction.where == "server":
            pulled = place.pulled.get(worker, place.params)
            corrected = np.asarray(correction.fn(update, np.int32(task.staleness[i]), pulled, place.params))
            learned = places.learner.vector.trainable
            update = corrected if learned is None else np.where(learned[slice(*task.part)], corrected, update)
        weighted = update if len(task.group) == 1 else update * update.dtype.type(task.weights[i] / total)
        mean = weighted if mean is None else mean + weighted
    assert mean is not None
    return mean


def received(places: Places, place: Place, task: Apply, i: int) -> Array:
    """The update of a member of a group, put together from its parts; the place's own is taken as others see it."""
    worker, clock = task.group[i], task.clocks[i]
    pieces = (
        [(task.part, encoded(places, place, task.part, task.codec))]
        if worker == place.home.worker
        else place.inbox[worker][1]
    )
    whole = np.empty(task.part[1] - task.part[0], place.params.dtype)
    for part, values in pieces:
        key = (places.setup.cluster.seed, worker, clock, part[0])
        whole[part[0] - task.part[0] : part[1] - task.part[0]] = decoded(places, place, part, task.codec, values, key)
    return whole


def mix(place: Place, task: Mix) -> Result:
    """The weighted mean of snapshots, the place's own parameters first."""
    mean: Array | None = None
    for source, weight in zip(task.sources, task.weights, strict=True):
        values = place.params if source == place.name else place.snapshots[task.round, source]
        scaled = values * values.dtype.type(weight)
        mean = scaled if mean is None else mean + scaled

    def install(at: Place) -> None:
        at.params = mean if mean is not None else at.params
        at.snapshots = {key: value for key, value in at.snapshots.items() if key[0] != task.round}

    return Result(install)


def own_part(places: Places, place: Place, task: Reduce) -> Value:
    """What a member puts into a sum: its update, encoded if a codec asks for it, times its weight."""
    assert place.update is not None
    total = sum(task.weights) or 1.0
    weight = task.weights[task.group.index(place.name)] / total
    if task.codec is None:
        return (place.cut(place.update, task.part) * place.update.dtype.type(weight),)
    key = (places.setup.cluster.seed, task.round or 0, task.part[0])
    return tuple((values * values.dtype.type(weight)) for values in encoding(places, place, task.part, task.codec, key))


# -- codes ----------------------------------------------------------------------------------------------------------


def encoded(places: Places, place: Place, part: Span, codec: str | None) -> Value:
    """A part of the place's own update as it travels; encoded once."""
    assert place.update is not None
    if codec is None:
        return (place.cut(place.update, part),)
    if part not in place.encoded:
        worker = places.worker(place.name)
        place.encoded[part] = encoding(
            places, place, part, codec, (places.setup.cluster.seed, worker, place.clock, part[0])
        )
    return place.encoded[part]


def encoding(places: Places, place: Place, part: Span, codec: str, key: tuple[int, ...]) -> Value:
    """Encode what is learned in a part, with what earlier codes lost; model state travels as it is."""
    assert place.update is not None
    if place.residual is None:
        place.residual = np.zeros_like(place.params)
    residual, update = place.cut(place.residual, part), place.cut(place.update, part)
    learned = learned_in(places, part)
    wanted = (residual + update) if learned is None else (residual + update)[learned]
    payload, place.memory[part] = encode(codec, wanted, place.memory.get(part), key)
    lost = wanted - decode(codec, payload, len(wanted), key).astype(wanted.dtype, copy=False)
    if learned is None:
        residual[:] = lost
        return payload
    residual[learned] = lost
    return (*payload, update[~learned])


def decoded(places: Places, place: Place, part: Span, codec: str | None, values: Value, key: tuple[int, ...]) -> Array:
    """The update that a code stands for."""
    if codec is None:
        return values[0]
    dtype = place.params.dtype
    learned = learned_in(places, part)
    if learned is None:
        return decode(codec, values, part[1] - part[0], key).astype(dtype, copy=False)
    update = np.empty(part[1] - part[0], dtype)
    update[learned], update[~learned] = decode(codec, values[:-1], int(learned.sum()), key), values[-1]
    return update


def learned_in(places: Places, part: Span) -> Array | None:
    """Which values of a part are learned; None when all are."""
    learned = places.learner.vector.trainable
    return None if learned is None or learned[slice(*part)].all() else learned[slice(*part)]


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


# -- compiling --------------------------------------------------------------------------------------------------------


def warm(places: Places) -> None:
    """Run every kernel that the places of this process need once, on zeros."""
    setup, learner = places.setup, places.learner
    roles = {place.home.role for place in places.places.values()}
    if "worker" in roles:
        learner.compile(counts(setup))
    if not places.places:
        rows = setup.problem.test.rows
        learner.compile((), {min(rows, 256), rows % 256})
    for place in places.places.values():
        if place.home.model:
            applier = places.applier(place.home.span, setup.local)
            applier.apply(place.params, applier.init(place.params), np.zeros_like(place.params))
        if place.home.role == "worker" and setup.local:
            applier = places.local_applier(place)
            applier.apply(place.params, applier.init(place.params), np.zeros_like(place.params))


def counts(setup: Setup) -> set[int]:
    """The numbers of rows that a step can read: a batch, and the short tails of epochs and of the run."""
    batch, rows = setup.problem.batch, setup.problem.train.rows
    sizes = [rows] if setup.shards is None else list(setup.shards.values())
    rest = set() if setup.limit is None else {setup.limit % batch, (setup.limit % rows) % batch}
    tails = rest | {size % batch for size in sizes} | {min(batch, size) for size in sizes}
    return {count for count in tails | {batch} if 0 < count <= max(sizes)}

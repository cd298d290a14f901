"""The steps of a worker: gradients, local steps, and the passes of pipeline stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.core.layout import cuts
from toolkit.core.messages import Compute, Facts, Stage, Ticket
from toolkit.kernels.training import Rows as Batch
from toolkit.kernels.training import Update
from toolkit.work.coding import Array, Value
from toolkit.work.rows import dealt

if TYPE_CHECKING:
    from toolkit.place import Place, Places


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
    rows: tuple[Ticket, Batch] | None = None  # the latest batch, for its next microbatch


def keep(at: Place, update: Array, clock: int, rows: int) -> None:
    """Leave a new update at a place: what codes of the one before have lost is now to be made up for."""
    at.left, at.leaves, at.encoded = {**at.left, **at.leaves}, {}, {}
    at.update, at.clock, at.rows = update, clock, at.rows + rows


def compute(places: Places, place: Place, task: Compute) -> Result:
    """A gradient, the drift of local steps, or a forward pass."""
    worker, clock = int(task.key[1]), int(task.key[2])
    batches = [places.rows.batch(ticket) for ticket in task.tickets]
    rows = sum(ticket.count for ticket in task.tickets)
    facts: dict[str, Any] = {"samples": rows, "loss": 0.0, "norm": 0.0, "clock": clock}
    if task.forward:
        losses = [(places.learner.forward(place.params, place.local, b), len(b[0])) for b in batches if len(b[0])]
        if rows:
            facts["loss"] = sum(loss * count for loss, count in losses) / rows
        return Result(lambda at: None, facts)
    step, optimizers = stepped(places, place, task, batches)
    update, after = step.update, None
    correction = places.setup.correction
    if correction is not None and correction.where == "worker":
        own = place.params - update  # after the local steps
        update = np.asarray(places.correct(update, np.int32(0), place.pulled.get(worker, place.params), own))
        after = own + update if correction.keeps_replica else None

    def install(at: Place) -> None:
        keep(at, update, clock, rows)
        at.local, at.optimizers = step.local, {**at.optimizers, **optimizers}
        if after is not None:
            at.params = after

    facts |= {"norm": step.norm, "loss": step.loss if rows else 0.0}
    return Result(install, facts)


def stepped(places: Places, place: Place, task: Compute, batches: list[Batch]) -> tuple[Update, dict[bool, Any]]:
    """A gradient, or the drift of local steps and the optimizer state after them."""
    seed, worker, clock = places.setup.cluster.seed, int(task.key[1]), int(task.key[2])
    if not task.local:
        return places.learner.gradient(place.params, place.local, batches[0], (seed, worker, clock, 0)), {}
    keys = [(seed, worker, clock, i) for i in range(len(batches))]
    applier, optimizer = places.applier(place.home.span, False), places.optimizer(place, False)
    before = dealt(places.setup, task.tickets[0])
    step, optimizer = places.learner.local_steps(place.params, place.local, batches, keys, applier, optimizer, before)
    return step, {False: optimizer}


# -- pipelines --------------------------------------------------------------------------------------------------------


def stage(places: Places, place: Place, task: Stage) -> Result:
    """One pass of one microbatch through the blocks of a stage."""
    (s, count), (m, microbatches) = task.stage, task.microbatch
    rows = task.tickets[0].count
    start, stop = cuts((0, rows), microbatches)[m]
    keys = (places.setup.cluster.seed, task.worker, int(task.key[2]), m)
    x, y = taken(places, place.stage, task.tickets[0]) if s in (0, count - 1) else (np.empty(0), np.empty(0))
    share = (stop - start) / rows if rows else 0.0
    if task.phase == "forward":
        inputs = x[start:stop] if s == 0 else place.stage.incoming.pop(("activations", m))
        return forward(places, place, task, inputs, y[start:stop], keys, share)
    target = y[start:stop] if s == count - 1 else place.stage.incoming.pop(("cotangents", m))
    return backward(places, place, task, target, keys, share)


def taken(places: Places, held: Microbatches, ticket: Ticket) -> Batch:
    """The rows of a ticket, read once for all its microbatches."""
    if held.rows is None or held.rows[0] != ticket:
        held.rows = (ticket, places.rows.batch(ticket))
    return held.rows[1]


def forward(
    places: Places, place: Place, task: Stage, inputs: Array, y: Array, keys: tuple[int, ...], share: float
) -> Result:
    """Activations for the next stage; at the last one the loss, where no backward pass follows to tell it."""
    kernel, m, last = places.stage(place.home.span), task.microbatch[0], task.stage[0] == task.stage[1] - 1
    outgoing: Value = () if last else (np.zeros((0, 1), place.params.dtype),)  # of no rows
    loss = place.stage.loss
    if share and not last:
        outgoing = (kernel.forward(place.params, place.local, inputs, None if task.forward else keys),)
    if share and last and task.forward:
        loss += kernel.loss(place.params, place.local, inputs, y, None, share)
    ends = m == task.microbatch[1] - 1

    def install(at: Place) -> None:
        at.stage.loss = 0.0 if ends else loss
        if not task.forward:
            at.stage.inputs[m] = inputs
        if not last:
            at.stage.outgoing["activations", m] = outgoing

    if not (last and task.forward and ends):
        return Result(install)
    rows, clock = task.tickets[0].count, int(task.key[2])
    return Result(install, {"samples": rows, "loss": loss, "norm": 0.0, "clock": clock})


def backward(places: Places, place: Place, task: Stage, target: Array, keys: tuple[int, ...], share: float) -> Result:
    """A contribution to the update of the stage; after the last microbatch the update is complete."""
    kernel, held, m = places.stage(place.home.span), place.stage, task.microbatch[0]
    clock, rows = int(task.key[2]), task.tickets[0].count
    first, last, ends = task.stage[0] == 0, task.stage[0] == task.stage[1] - 1, m == task.microbatch[1] - 1
    update, local, loss = np.zeros_like(place.params), place.local, held.loss
    cotangent: Array | None = held.inputs[m]  # of no rows, as what goes back
    if share:
        back = kernel.backward(place.params, place.local, held.inputs[m], target, keys, share)
        update, local, cotangent, loss = back.update, back.local, back.cotangent, loss + (back.loss or 0.0)
    total = update if held.update is None else held.update + update

    def install(at: Place) -> None:
        at.stage.inputs.pop(m)
        at.stage.update, at.stage.loss, at.local = (None, 0.0, local) if ends else (total, loss, local)
        if not first and cotangent is not None:
            at.stage.outgoing["cotangents", m] = (cotangent,)
        if ends:
            keep(at, total, clock, rows)

    if not ends:
        return Result(install)
    learned = kernel.vector.trainable
    norm = float(np.linalg.norm(total if learned is None else total[learned]))
    return Result(install, {"norm": norm, "clock": clock} | ({"samples": rows, "loss": loss} if last else {}))

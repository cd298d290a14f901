"""What goes from place to place: parameters, updates, snapshots, replicas, and what passes between stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from toolkit.core.messages import Send
from toolkit.work.coding import Array, Value, encoded

if TYPE_CHECKING:
    from toolkit.place import Place, Places

#: The two optimizers of a place: by gradients, and by drifts.
BOTH = (False, True)


def sent(places: Places, place: Place, task: Send) -> Value:
    """What leaves a place."""
    match task.item:
        case "params":
            if places.setup.correction and places.setup.correction.where == "server":
                place.pulled[places.worker(task.dst)] = place.params
            return (place.cut(place.params, task.part),)
        case "update":
            return encoded(places, place, task.part, task.codec)
        case "snapshot":
            return (place.params,)
        case "replica":
            leaves = jax.tree.leaves([places.optimizer(place, drift) for drift in BOTH])
            return (place.params, place.local, *(np.asarray(leaf) for leaf in leaves))
    return place.stage.outgoing.pop((task.item, task.microbatch[0]))


def arrived(places: Places, place: Place, task: Send, value: Value) -> None:
    """Take up what came to a place."""
    match task.item:
        case "params":
            pulled(places, place, task, value[0])
        case "update":
            worker = places.worker(task.src)
            version = int(task.key[2]) if task.round is None else task.round
            known, pieces = place.inbox.get(worker, (-1, []))  # an update that was dropped gives way to the next
            place.inbox[worker] = (version, [*(pieces if known == version else []), (task.part, value)])
        case "snapshot":
            place.snapshots[task.round or 0, task.src] = value[0]
        case "replica":
            place.params, place.local = value[:2]
            structure = jax.tree.structure([places.optimizer(place, drift) for drift in BOTH])
            place.optimizers = dict(zip(BOTH, jax.tree.unflatten(structure, value[2:]), strict=True))
        case _:
            place.stage.incoming[task.item, task.microbatch[0]] = value[0]


def pulled(places: Places, place: Place, task: Send, values: Array) -> None:
    """Take up a part of the pulled model; with a correction that keeps replicas, beside the worker's own."""
    keeps = places.setup.correction is not None and places.setup.correction.keeps_replica
    worker, pull = places.worker(place.name), task.key[:3]
    model = values
    if task.part != place.home.span:
        if place.pulling[0] != pull:
            before = place.pulled.get(worker, place.params) if keeps else place.params
            place.pulling = (pull, before.copy())
        model = place.pulling[1]
        place.cut(model, task.part)[:] = values
    if keeps:
        place.pulled[worker] = model
    if not keeps or not place.clock:
        place.params = model

"""Compiling ahead: every kernel that the places of a process will need runs once, on zeros."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from toolkit.core.layout import cuts
from toolkit.core.messages import Compute, Stage
from toolkit.kernels.vector import Vector
from toolkit.work.rows import counts

if TYPE_CHECKING:
    from toolkit.place import Place, Places


def warm(places: Places) -> None:
    """Compile steps, optimizer steps and corrections for the places held here; evaluation where there are none."""
    if not places.places:
        warm_evaluation(places)
    spans = {place.home.span for place in places.places.values() if place.home.role == "stage"}
    if spans:
        warm_stages(places, spans)
    if any(place.home.role == "worker" for place in places.places.values()):
        warm_steps(places)
    for place in places.places.values():
        warm_place(places, place)


def warm_evaluation(places: Places) -> None:
    """Compile the measuring of a model on the test rows."""
    rows = places.setup.problem.test.rows
    places.learner.compile((), {min(rows, 256), rows % 256})


def warm_steps(places: Places) -> None:
    """Compile the steps of a worker on batches of every size."""
    setup, learner = places.setup, places.learner
    vector, local = places.zeros()
    x, y = learner.problem.train.take(np.zeros(1, np.int64))
    for count in sorted(counts(setup)):
        rows = np.repeat(x, count, axis=0), np.repeat(y, count, axis=0)
        if isinstance(setup.first, Compute) and setup.first.forward:
            learner.forward(vector, local, rows)
        else:
            learner.gradient(vector, local, rows, (0, 0, 0, 0))
    if setup.local:
        applier = places.applier(learner.layout.whole, False)
        learner.local_steps(vector, local, [], [], applier, applier.init(vector))


def warm_place(places: Places, place: Place) -> None:
    """Compile the optimizer steps and the correction of a place."""
    correction, zeros = places.setup.correction, np.zeros_like(place.params)
    drifts = {places.setup.local} if place.home.model else set()
    if place.home.role != "server" and places.setup.local:
        drifts.add(False)
    for drift in drifts:
        applier = places.applier(place.home.span, drift)
        applier.apply(place.params, applier.init(place.params), zeros)
    if correction is not None and (place.home.role == "server") == (correction.where == "server"):
        np.asarray(places.correct(zeros, np.int32(0), zeros, zeros))


def warm_stages(places: Places, held: set[tuple[int, int]]) -> None:
    """Compile both passes of the stages held here for microbatches of every size."""
    setup, learner = places.setup, places.learner
    assert isinstance(setup.first, Stage)
    spans = sorted({home.span for home in setup.cluster.homes.values() if home.role == "stage"})
    sizes = {stop - start for count in counts(setup) for start, stop in cuts((0, count), setup.first.microbatch[1])}
    x, y = learner.problem.train.take(np.zeros(1, np.int64))
    keys = None if setup.first.forward else (0, 0, 0, 0)
    for rows in sorted(sizes - {0}):
        inputs = np.repeat(learner.cast(x), rows, axis=0)
        for span in spans:
            kernel, last = places.stage(span), span == spans[-1]
            vector, local = (part[slice(*cut)] for part, cut in zip(places.zeros(), (span, kernel.local), strict=True))
            outputs = jax.eval_shape(partial(activations, kernel.vector), vector, local, inputs)
            target = np.repeat(y, rows, axis=0) if last else np.zeros(outputs.shape, outputs.dtype)
            if span in held:
                if not last:
                    kernel.forward(vector, local, inputs, keys)
                if last and setup.first.forward:
                    kernel.loss(vector, local, inputs, target)
                if not setup.first.forward:
                    kernel.backward(vector, local, inputs, target, (0, 0, 0, 0))
            inputs = np.zeros(outputs.shape, outputs.dtype)


def activations(vector: Vector, flat: Any, local: Any, x: Any) -> jax.Array:
    """What a part of a model makes of some rows."""
    return vector.call(*vector.unpack(flat, local), x, None)[0]

"""Batch-norm statistics: averaged by rows with the updates, or kept at each worker."""

from __future__ import annotations

import numpy as np
import pytest

import toolkit as tk
from toolkit.core.messages import Compute
from toolkit.kernels.training import Learner
from toolkit.problems.measures import cross_entropy
from toolkit.runtime.numerics import model


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(1)
    x, y = rng.normal(2.0, 1.0, size=(24, 4, 4, 1)).astype(np.float32), (np.arange(24) % 2).astype(np.int32)
    return tk.problem(
        lambda rngs: tk.models.CNN(rngs, shape=(4, 4, 1), classes=2, widths=(2, 2)), cross_entropy, (x, y), (x, y), 4
    )


def test_statistics_are_averaged_by_rows_with_the_updates(perform, pictures):
    run = perform(pictures, "chain(bsp(), all_reduce(ring))", 3, until=tk.updates(1))
    learner, start = Learner(pictures), run.places.start[0]
    state = ~learner.vector.trainable
    after, rows = [], []
    for task in run.tasks(Compute)[:3]:
        (ticket,) = task.tickets
        step = learner.gradient(start, np.zeros(0), run.places.rows.batch(ticket), (0, task.at, 1, 0))
        after.append((start - step.update)[state])
        rows.append(ticket.count)
    np.testing.assert_allclose(run.model()[state], np.average(after, axis=0, weights=rows), atol=1e-6)
    assert not np.allclose(run.model()[state], start[state])


@pytest.mark.parametrize("exchange", ["all_reduce(ring)", "parameter_server(2)"])
def test_local_statistics_stay_and_are_averaged_by_rows_when_measured(perform, pictures, exchange):
    run = perform(
        pictures,
        f"chain(asp(), {exchange})" if "server" in exchange else f"chain(bsp(), {exchange})",
        3,
        until=tk.epochs(1),
        state="local",
        cluster={"step": tk.constant([1.0, 1.5, 2.5])},
    )
    held = {w: run.places.places[w] for w in range(3)}
    assert len({place.local.tobytes() for place in held.values()}) == 3
    _, local = run.places.assemble(model(run.places, run.drive.log))
    expected = np.average([p.local for p in held.values()], axis=0, weights=[p.rows for p in held.values()])
    np.testing.assert_allclose(local, expected, rtol=1e-6)

"""Places that join and leave."""

from __future__ import annotations

import numpy as np
import pytest

import toolkit as tk
from toolkit.core.messages import Apply

POINTS = tk.problems.quadratic(dim=6, rows=64, batch=4)


@pytest.mark.parametrize("exchange", ["all_reduce(ring)", "all_reduce(tree)", "all_gather()"])
@pytest.mark.parametrize("more", ["", ", local_steps(2)"])
def test_a_newcomer_receives_model_and_optimizer_and_then_keeps_step(perform, exchange, more):
    run = perform(
        tk.problems.logistic(dim=5, rows=256, batch=4),
        f"chain(bsp(), {exchange}{more})",
        3,
        until=tk.updates(12),
        optimizer="sgd(0.05, momentum=0.9)",
        outer="sgd(1.0, momentum=0.5)",
        cluster={"joins": [(3.5, 3)], "leaves": [(7.5, 1)], "link": tk.Link(0.01, 1e6), "apply": 0.01},
    )
    for worker in (2, 3):
        np.testing.assert_array_equal(run.params(worker), run.params(0))
    assert len(run.tasks(Apply)[-1].group) == 3


@pytest.mark.parametrize("moment", [3.005, 3.02, 3.04, 3.06, 3.08, 3.1, 3.12])
@pytest.mark.parametrize("codec", ["", ", compress(fp16())", ", compress(random_k(0.5))"])
def test_a_worker_that_leaves_inside_a_collective(perform, moment, codec):
    """Survivors issue the merge again, and codes that were encoded for the lost sum count as never sent."""
    run = perform(
        POINTS,
        f"chain(bsp(), all_reduce(ring){codec})",
        3,
        until=tk.updates(8),
        optimizer="sgd(0.05, momentum=0.9)",
        cluster={"leaves": [(moment, 1)], "link": tk.Link(0.02, 1e6), "apply": 0.01},
    )
    np.testing.assert_array_equal(run.params(0), run.params(2))
    assert np.isfinite(run.params(0)).all()


@pytest.mark.parametrize(
    "strategy",
    [
        "chain(asp(), parameter_server(2))",
        "chain(asp(), gossip(random_peer))",
        "chain(bsp(), gossip(complete_neighbours))",
        "chain(ssp(2), parameter_server())",
    ],
)
def test_membership_changes_under_servers_and_gossip(perform, strategy):
    run = perform(
        POINTS,
        strategy,
        3,
        until=tk.seconds(30),
        optimizer="sgd(0.1)",
        cluster={"joins": [(4.5, 3)], "leaves": [(9.2, 0)], "link": tk.Link(0.1, 1e4), "apply": 0.05},
    )
    x, y = POINTS.train.take(np.arange(64))
    distance = np.abs(run.model() - y.mean(axis=0) / x[0]).max()
    assert distance < 0.2
    assert run.places.places[3].clock > 5
    assert all(len(place.snapshots) <= 2 for place in run.places.places.values())


def test_a_worker_that_came_and_did_nothing_yet_is_not_part_of_the_model(perform):
    run = perform(POINTS, "chain(bsp(), all_reduce(ring))", 2, until=tk.updates(5), cluster={"joins": [(4.9, 2)]})
    np.testing.assert_array_equal(run.model(), run.params(0))

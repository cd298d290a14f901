"""What tasks read from places and leave there: a value that was read stays what it was."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import toolkit as tk
from toolkit.core.messages import Evaluate, Send

UNEVEN = {"step": tk.constant([1.0, 1.3, 1.7, 3.1])}
POINTS = tk.problems.quadratic(dim=6, rows=64, batch=4)


class Watchful:
    """Places that copy every value as it is read and compare the copy when the value is written."""

    def __init__(self, places) -> None:
        self.places, self.copies, self.compared = places, {}, 0

    def __getattr__(self, name):
        return getattr(self.places, name)

    def read(self, name, task):
        value = self.places.read(name, task)
        if isinstance(value, tuple):
            self.copies[id(value)] = (value, tuple(np.array(array) for array in value))
        return value

    def write(self, name, task, value):
        if isinstance(value, tuple):
            for now, then in zip(*self.copies.pop(id(value)), strict=True):
                np.testing.assert_array_equal(now, then, err_msg=str(task))
            self.compared += 1
        self.places.write(name, task, value)


@pytest.mark.parametrize(
    "strategy",
    [
        "chain(bsp(), all_reduce(ring))",
        "chain(bsp(), all_reduce(tree))",
        "chain(asp(), parameter_server(3))",
        "chain(asp(), parameter_server(2), local_steps(2), compress(top_k(0.5)))",
        "chain(backup(2), all_reduce(halving_doubling))",
        "chain(asp(), gossip(random_peer))",
        "chain(ssp(1), all_gather())",
        "chain(asp(), parameter_server(2), pipeline(2, 2))",
    ],
)
def test_values_on_their_way_do_not_change(perform, strategy):
    watched = []
    problem = tk.problems.digits(batch=8) if "pipeline" in strategy else POINTS
    perform(
        problem,
        strategy,
        until=tk.iterations(4),
        cluster=UNEVEN | {"link": tk.Link(0.3, 1e4), "apply": 0.4},
        watch=lambda places: watched.append(Watchful(places)) or watched[0],
    )
    assert watched[0].compared > 20


def test_a_pull_leaves_the_parameters_of_the_one_before_alone(perform):
    """Optimizers may hold on to them (lookahead, schedule-free), and JAX may share their memory."""
    places = perform(POINTS, "chain(asp(), parameter_server(2))", 2, until=tk.updates(1)).places
    worker, spans = places.places[0], [places.home(name).span for name in ("s0", "s1")]
    held = []
    for clock in (8, 9):
        for name, span in zip(("s0", "s1"), spans, strict=True):
            values = (np.full(span[1] - span[0], clock, np.float32),)
            places.write(0, Send(("pull", 0, clock, name), name, 0, "params", span), values)
        held.append(worker.params)
    assert [set(params.tolist()) for params in held] == [{8.0}, {9.0}]


def test_what_is_no_task_is_refused(perform):
    places = perform(POINTS, "chain(bsp(), all_reduce(ring))", 2, until=tk.updates(1)).places
    with pytest.raises(TypeError, match="Perform tasks of the vocabulary"):
        places.read(0, object())
    assert jnp.ndim(places.read(0, Evaluate(("evaluate",), 0, ()))[0]) == 1

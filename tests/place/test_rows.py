"""Who reads which row, and what becomes of workers and updates without any."""

from __future__ import annotations

import numpy as np
import pytest

import toolkit as tk
from toolkit.core.messages import Apply, Compute, Send, Ticket
from toolkit.data.partition import contiguous
from toolkit.data.sampling import positions
from toolkit.problems.measures import cross_entropy

UNEVEN = {"step": tk.constant([1.0, 1.3, 1.7, 3.1])}
POINTS = tk.problems.quadratic(dim=6, rows=64, batch=4)


@pytest.mark.parametrize(
    "way",
    ["shards", tk.contiguous(), tk.by_label(), tk.dirichlet(0.1), tk.full_copy(), tk.by_speed([1, 1, 2, 4])],
    ids=repr,
)
@pytest.mark.parametrize("policy", ["bsp()", "asp()"])
def test_each_row_of_a_shard_is_read_once_per_epoch_of_its_worker(perform, way, policy):
    problem = tk.problems.logistic(dim=3, rows=50, classes=3, batch=4)
    run = perform(problem, f"chain({policy}, parameter_server())", until=tk.epochs(2), deal=way, cluster=UNEVEN)
    read: dict[tuple[int, int], list[int]] = {}
    setup = run.recipe.setup
    for task in run.tasks(Compute):
        for ticket in task.tickets:
            found = positions(ticket, problem.train, setup.cluster.seed, run.places.rows.shards) if ticket.count else []
            read.setdefault((ticket.shard, ticket.epoch), []).extend(found)
    for (worker, _), rows in read.items():
        own = run.places.rows.shards[worker]
        assert len(rows) == len(set(rows))
        assert set(rows) <= set(own.tolist())
    assert sum(map(len, read.values())) == 100 == run.drive.tally.samples


@pytest.mark.parametrize("policy", ["bsp()", "asp()", "ssp(1)", "backup(1)", "elastic_bsp(3)"])
@pytest.mark.parametrize("exchange", ["all_reduce(ring)", "parameter_server(2)"])
def test_workers_without_rows_hang_nobody(perform, policy, exchange):
    """Three of five workers own nothing, and there are fewer rows than workers."""
    if "ring" in exchange and policy not in ("bsp()", "backup(1)"):
        pytest.skip("replicas that move together take no stale update")
    x, y = np.eye(3, dtype=np.float32), np.arange(3, dtype=np.int32)
    from flax import nnx

    problem = tk.problem(lambda rngs: nnx.Linear(3, 3, rngs=rngs), cross_entropy, (x, y), (x, y), batch=1)
    run = perform(problem, f"chain({policy}, {exchange})", 5, until=tk.epochs(4), deal=contiguous())
    assert run.drive.tally.samples > 0
    assert np.isfinite(run.model()).all()
    assert not np.array_equal(run.model(), run.places.start[0])


def test_an_update_without_rows_leaves_others_in_the_inbox(perform):
    """A merge of weight zero takes away its own update only."""
    run = perform(POINTS, "chain(asp(), parameter_server())", 2, until=tk.updates(1))
    places, server = run.places, run.places.places["s0"]
    whole = places.learner.layout.whole
    value = (np.ones(whole[1], np.float32),)
    for worker in (0, 1):
        places.write("s0", Send(("push", worker, 9, "s0"), worker, "s0", "update", whole), value)
    before = server.params
    empty = Apply(("apply", 9, "s0"), "s0", (0,), (9,), "inbox", whole, (0.0,), (0,), round=9)
    places.write("s0", empty, places.read("s0", empty))
    np.testing.assert_array_equal(server.params, before)
    assert list(server.inbox) == [1]


def test_an_update_that_has_not_arrived_is_not_merged(perform):
    places = perform(POINTS, "chain(asp(), parameter_server())", 2, until=tk.updates(1)).places
    whole = places.learner.layout.whole
    task = Apply(("apply", 9, "s0"), "s0", (0,), (9,), "inbox", whole, (1.0,), (0,), round=9)
    with pytest.raises(ValueError, match="takes the update of worker 0 in its iteration 9"):
        places.read("s0", task)


def test_dropped_updates_do_not_pile_up(perform):
    run = perform(POINTS, "chain(backup(1), parameter_server())", until=tk.updates(30), cluster=UNEVEN)
    pieces = [piece for _, held in run.places.places["s0"].inbox.values() for piece in held]
    assert len(pieces) <= 4


def test_epochs_are_counted_in_rows(perform):
    run = perform(tk.problems.logistic(rows=103, batch=8), "chain(asp(), parameter_server())", until=tk.epochs(2.5))
    assert run.drive.tally.samples == round(2.5 * 103)


def test_rows_of_no_ticket_are_no_rows(perform):
    places = perform(POINTS, "chain(bsp(), all_reduce(ring))", 2, until=tk.updates(1)).places
    x, y = places.rows.batch(Ticket(0, 0, 0))
    assert len(x) == len(y) == 0

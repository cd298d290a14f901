"""Corrections, clocks and scalings of updates, and gossip, against loops written by hand."""

from __future__ import annotations

import numpy as np
import pytest

import toolkit as tk
from toolkit.core.messages import Apply, Compute, Mix

UNEVEN = {"step": tk.constant([1.0, 1.3, 1.7, 3.1])}
POINTS = tk.problems.quadratic(dim=6, rows=64, batch=4)


def gradient(run, worker: int, clock: int, params: np.ndarray, step: int = 0) -> np.ndarray:
    """The gradient of the quadratic on the rows of a step, in NumPy."""
    (task,) = [task for task in run.tasks(Compute) if task.key == ("compute", worker, clock)]
    x, y = run.places.rows.batch(task.tickets[step])
    return (x * (x * params - y)).mean(axis=0)


@pytest.mark.parametrize("correction", [tk.scale_by_staleness(), tk.delay_compensation(0.5), None], ids=repr)
def test_corrections_at_a_server_as_a_loop_over_the_recorded_order(perform, correction):
    run = perform(
        POINTS,
        "chain(asp(), parameter_server())",
        until=tk.updates(30),
        correction=correction,
        cluster=UNEVEN,
        optimizer="sgd(0.2)",
    )
    server = run.places.start[0].copy()
    pulled, updates, pending = {}, {}, {}
    frame = run.trace.frame()
    applies = {task.key: task for task in run.tasks(Apply)}
    order = []
    for row in frame.itertuples():
        if row.kind == "send" and row.key.startswith("pull"):
            order.append((row.src_seq, "pull", int(row.worker), int(row.clock)))
        elif row.kind == "apply":
            order.append((row.dst_seq, "apply", int(row.round), row.place))
    seen = 0
    for _, kind, a, b in sorted(order):
        if kind == "pull":
            pulled[a, b] = server
            pending[a] = (a, b)
            continue
        task = applies["apply", a, b]
        (worker,), (clock,), (stale,) = task.group, task.clocks, task.staleness
        read = pulled[worker, clock]
        update = gradient(run, worker, clock, read)
        if correction == tk.scale_by_staleness():
            update = update / max(1, stale)
        elif correction is not None:
            update = update + 0.5 * update**2 * (server - read)
        server, seen = server - 0.2 * update, seen + 1
        updates[a] = stale
    assert seen >= 30
    assert max(updates.values()) > 1
    np.testing.assert_allclose(run.params("s0"), server, rtol=0, atol=1e-6)


def test_elastic_averaging_as_a_loop(perform):
    alpha, rate, steps, rounds, workers = 0.3, 0.1, 2, 4, 3
    run = perform(
        POINTS,
        f"chain(bsp(), parameter_server(2), local_steps({steps}))",
        workers,
        until=tk.updates(rounds),
        optimizer=f"sgd({rate})",
        correction=tk.elastic(alpha),
    )
    centre = run.places.start[0].copy()
    replicas = [centre.copy() for _ in range(workers)]
    for clock in range(1, rounds + 1):
        pulls = []
        for worker in range(workers):
            for step in range(steps):
                replicas[worker] = replicas[worker] - rate * gradient(run, worker, clock, replicas[worker], step)
            pulls.append(alpha * (centre - replicas[worker]))
            replicas[worker] = replicas[worker] + pulls[-1]
        centre = centre - np.mean(pulls, axis=0)
    np.testing.assert_allclose(run.model(), centre, atol=1e-6)
    for worker in range(workers):
        np.testing.assert_allclose(run.params(worker), replicas[worker], atol=1e-6)


def test_elastic_averaging_without_learning_conserves_the_mean(perform):
    """Replicas first go apart by gradients, then only the springs between them and the centre act."""
    options = {"correction": tk.elastic(0.4), "cluster": {"step": tk.constant(1.0)}}
    strategy = "chain(bsp(), parameter_server(), local_steps(1))"
    schedule = "sgd(piecewise_constant_schedule(0.3, {4: 0.0}))"
    sums = {}
    for rounds in (4, 5, 9):
        run = perform(POINTS, strategy, until=tk.updates(rounds), optimizer=schedule, **options)
        replicas = [run.params(worker) for worker in range(4)]
        sums[rounds] = run.model() + np.mean(replicas, axis=0)
        spread = np.ptp(replicas, axis=0).max()
    np.testing.assert_allclose(sums[9], sums[4], atol=1e-6)
    assert spread < 0.05
    assert not np.allclose(run.model(), run.places.start[0], atol=1e-2)


@pytest.mark.parametrize(("clock", "boundary"), [("updates", 8), ("samples", 8 * 16)])
@pytest.mark.parametrize("policy", ["bsp()", "asp()"])
def test_a_schedule_steps_at_its_boundary(perform, clock, boundary, policy):
    """The rate falls to zero there: 8 merges of 16 rows under BSP, of 4 rows under ASP (128 rows: 32)."""
    strategy = f"chain({policy}, parameter_server())"
    optimizer = f"sgd(piecewise_constant_schedule(0.1, {{{boundary}: 0.0}}))"
    last = 32 if (policy, clock) == ("asp()", "samples") else 8

    def end(updates):
        return perform(POINTS, strategy, until=tk.updates(updates), optimizer=optimizer, clock=clock).model()

    before, at, after = (end(updates) for updates in (last - 1, last, last + 4))
    assert not np.array_equal(before, at)
    np.testing.assert_array_equal(at, after)


def test_scaling_by_the_part_of_the_workers(perform):
    """From one model, a step of plain SGD with scaling "mean" is a quarter of one with "one"."""
    moves = {}
    for scaling in ("one", "mean"):
        run = perform(POINTS, "chain(asp(), parameter_server())", until=tk.updates(1), scaling=scaling)
        moves[scaling] = run.model() - run.places.start[0]
    np.testing.assert_allclose(moves["mean"], moves["one"] / 4, rtol=1e-6)


def test_a_round_of_gossip_mixes_and_then_learns(perform):
    """x <- W x - rate * g(x), with the matrix taken from the tasks, which is doubly stochastic."""
    rate, rounds = 0.2, 4
    run = perform(
        POINTS, "chain(bsp(), gossip(ring_neighbours))", 5, until=tk.updates(rounds), optimizer=f"sgd({rate})"
    )
    x = np.tile(run.places.start[0], (5, 1))
    for number in range(rounds):
        matrix = np.zeros((5, 5))
        for task in run.tasks(Mix):
            if task.round == number:
                matrix[task.at, list(task.sources)] = task.weights
        np.testing.assert_allclose([matrix.sum(0), matrix.sum(1)], 1.0)
        gradients = [gradient(run, worker, number + 1, x[worker]) for worker in range(5)]
        x = matrix @ x - rate * np.array(gradients)
    np.testing.assert_allclose([run.params(worker) for worker in range(5)], x, atol=1e-6)


@pytest.mark.parametrize("policy", ["bsp()", "asp()", "ssp(2)"])
@pytest.mark.parametrize("topology", ["ring_neighbours", "random_peer"])
def test_gossip_without_learning_keeps_the_mean(perform, policy, topology):
    """Workers begin far apart; messages and mixing take time, so that pairs overlap."""
    first = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)

    def apart(places):
        for worker in range(4):
            places.places[worker].params = first[worker]
        return places

    cluster = UNEVEN | {"link": tk.Link(0.2, 1e5), "apply": 0.1}
    strategy = f"chain({policy}, gossip({topology}))"
    run = perform(POINTS, strategy, until=tk.iterations(12), optimizer="sgd(0.0)", cluster=cluster, watch=apart)
    last = np.array([run.params(worker) for worker in range(4)])
    np.testing.assert_allclose(last.mean(axis=0), first.mean(axis=0), atol=1e-6)
    assert np.ptp(last, axis=0).max() < np.ptp(first, axis=0).max() / 2

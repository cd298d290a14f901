"""The arrays of places: what tasks take from them and leave there, against loops written by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import toolkit as tk
from toolkit.core.messages import Apply, Compute, Evaluate, Mix, Send, Ticket
from toolkit.data.partition import contiguous
from toolkit.data.sampling import positions
from toolkit.kernels.training import Learner
from toolkit.problems.measures import cross_entropy
from toolkit.runtime.numerics import model

UNEVEN = {"step": tk.constant([1.0, 1.3, 1.7, 3.1])}
POINTS = tk.problems.quadratic(dim=6, rows=64, batch=4)


def gradient(run, worker: int, clock: int, params: np.ndarray, step: int = 0) -> np.ndarray:
    """The gradient of the quadratic on the rows of a step, in NumPy."""
    (task,) = [task for task in run.tasks(Compute) if task.key == ("compute", worker, clock)]
    x, y = run.places.rows.batch(task.tickets[step])
    return (x * (x * params - y)).mean(axis=0)


# -- a value that was read stays what it was ---------------------------------------------------------------------------


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


# -- corrections ------------------------------------------------------------------------------------------------------


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


# -- clocks and scalings ----------------------------------------------------------------------------------------------


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


# -- gossip -----------------------------------------------------------------------------------------------------------


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


# -- who reads which row ----------------------------------------------------------------------------------------------


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


# -- batch norm -------------------------------------------------------------------------------------------------------


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


# -- rewrites that change the work ------------------------------------------------------------------------------------


def test_forward_only_learns_nothing_and_tells_the_loss(perform):
    for more in ("", ", pipeline(2, 2)"):
        problem = tk.problems.digits(batch=8)
        run = perform(problem, f"chain(bsp(), parameter_server(){more}, forward_only())", 2, until=tk.iterations(3))
        np.testing.assert_array_equal(run.model(), run.places.start[0])
        losses = [e.facts["loss"] for e in run.drive.log if getattr(e, "facts", None) and e.task.key[0] == "ready"]
        assert losses
        assert all(1.5 < loss < 4 for loss in losses)


def test_adacomm_communicates_more_as_the_loss_falls(perform):
    run = perform(
        tk.problems.quadratic(dim=4, noise=0.0, rows=4096, batch=4),
        "chain(bsp(), all_reduce(ring), local_steps(adacomm(8)))",
        until=tk.updates(20),
        evaluate=tk.updates(1),
        optimizer="sgd(0.1)",
    )
    steps = [task.steps for task in run.tasks(Compute)]
    assert steps[0] == 8
    assert steps[-1] < 8
    assert sorted(steps, reverse=True) == steps


# -- joining and leaving ----------------------------------------------------------------------------------------------


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


# -- compiling ahead --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("chain(bsp(), all_reduce(ring))", {}),
        ("chain(asp(), parameter_server(2), local_steps(2))", {"correction": tk.elastic(0.5)}),
        ("chain(asp(), parameter_server(2))", {"correction": tk.delay_compensation()}),
        ("chain(bsp(), parameter_server(), pipeline(2, 3))", {}),
        ("chain(bsp(), all_reduce(ring), pipeline(2, 3), forward_only())", {}),
        ("chain(bsp(), all_reduce(ring), forward_only())", {}),
    ],
)
def test_everything_is_compiled_before_the_run(perform, strategy, options):
    """No function is traced for a new shape once the places are warm (but evaluation, outside of the timed lanes)."""
    counts = {}

    def watch(places):
        places.compile()
        places.learner.compile((), {256, 360 - 256})
        counts["before"] = traces(places)
        return places

    run = perform(
        tk.problems.digits(batch=32),
        strategy,
        3,
        until=tk.epochs(1),
        watch=watch,
        **options,
        cluster={"step": tk.constant([1, 1.1, 1.2])},
    )
    assert traces(run.places) == counts["before"]
    assert any(counts["before"].values())


def traces(places) -> dict[str, int]:
    """How many shapes each compiled function has been traced for."""
    learner = places.learner
    functions = {"gradient": learner._gradient, "loss": learner._loss, "drift": learner._drift}
    for key, applier in places._appliers.items():
        functions[f"{key} step"] = applier._step
    for span, stage in places._stages.items():
        functions |= {f"{span} out": stage._output, f"{span} back": stage._pull, f"{span} score": stage._score}
    functions["correct"] = places.correct
    return {name: function._cache_size() for name, function in functions.items()}


def test_rows_of_no_ticket_are_no_rows(perform):
    places = perform(POINTS, "chain(bsp(), all_reduce(ring))", 2, until=tk.updates(1)).places
    x, y = places.rows.batch(Ticket(0, 0, 0))
    assert len(x) == len(y) == 0


def test_what_is_no_task_is_refused(perform):
    places = perform(POINTS, "chain(bsp(), all_reduce(ring))", 2, until=tk.updates(1)).places
    with pytest.raises(TypeError, match="Perform tasks of the vocabulary"):
        places.read(0, object())
    assert jnp.ndim(places.read(0, Evaluate(("evaluate",), 0, ()))[0]) == 1

"""Runs with arrays whose outcome is known: from a plain loop over the same rows, or from another run."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx

import toolkit as tk
from toolkit.core.layout import Layout, Piece
from toolkit.core.messages import Apply, Compute, Send
from toolkit.core.parse import parse
from toolkit.data.sampling import positions
from toolkit.kernels.training import Learner
from toolkit.models.mlp import MLP
from toolkit.problems.measures import cross_entropy, half_square

SYNCHRONOUS = [
    "all_reduce(ring)",
    "all_reduce(tree)",
    "all_reduce(halving_doubling)",
    "parameter_server(1)",
    "parameter_server(3)",
    "all_gather()",
]
ROUNDING = 1e-6
rng = np.random.default_rng(0)
X = rng.normal(size=(103, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.3 + 0.1 * rng.normal(size=103)


class Regression(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(3, 1, param_dtype=np.float64, rngs=rngs)

    def __call__(self, x):
        return self.linear(x)


@pytest.fixture
def regression():
    with jax.enable_x64(True):
        yield tk.problem(Regression, half_square, train=(X, Y[:, None]), test=(X, Y[:, None]), batch=8)


def tickets_of_rounds(run):
    """For each merge, the positions of all rows behind it."""
    tickets = {task.key[1:3]: task.tickets for task in run.tasks(Compute)}
    setup = run.recipe.setup
    merges = {}
    for apply in run.tasks(Apply):
        members = zip(apply.group, apply.clocks, strict=True)
        drawn = [ticket for member in members for ticket in tickets[member] if ticket.count]
        found = [positions(t, setup.problem.train, setup.cluster.seed, run.places.rows.shards) for t in drawn]
        merges[apply.round] = np.concatenate(found) if found else np.zeros(0, int)
    return merges


@pytest.mark.parametrize("exchange", SYNCHRONOUS)
def test_bsp_is_large_batch_sgd_over_the_same_rows(perform, regression, exchange):
    run = perform(regression, f"chain(bsp(), {exchange})", until=tk.epochs(3))
    merges = tickets_of_rounds(run)
    used = np.concatenate(list(merges.values()))
    assert np.array_equal(np.sort(used), np.repeat(np.arange(103), 3))
    assert len({tuple(np.sort(used[e * 103 : (e + 1) * 103])) for e in range(3)}) == 1  # each row once per epoch

    weights = run.places.start[0].copy()  # bias, kernel
    extended = np.concatenate([np.ones((103, 1)), X], axis=1)
    for rows in merges.values():
        error = extended[rows] @ weights - Y[rows]
        weights = weights - 0.1 * extended[rows].T @ error / len(rows)
    np.testing.assert_allclose(run.model(), weights, rtol=0, atol=1e-12)
    assert run.drive.tally.samples == 309


@pytest.mark.parametrize(
    "strategy",
    [
        *(f"chain(bsp(), {exchange})" for exchange in SYNCHRONOUS if "server" not in exchange),
        "chain(bsp(), all_gather(), compress(top_k(0.1)))",
        "chain(bsp(), all_reduce(ring), compress(power_sgd(1, 'shared')))",
        "chain(bsp(), all_reduce(tree), compress(fp16()))",
        "chain(backup(1), all_reduce(ring))",
        "chain(backup(2), all_gather())",
        "chain(bsp(), all_reduce(halving_doubling), local_steps(3))",
        "chain(asp(), all_gather())",
    ],
)
def test_replicas_stay_equal_bit_for_bit(perform, strategy):
    """With momentum, whose state must be equal too; some workers are slower."""
    run = perform(
        tk.problems.digits(batch=8),
        strategy,
        until=tk.iterations(12),
        optimizer="sgd(0.05, momentum=0.9)",
        cluster={"step": tk.constant([1.0, 1.1, 1.3, 2.9])},
    )
    for worker in range(1, 4):
        np.testing.assert_array_equal(run.params(worker), run.params(0))
    assert np.abs(run.params(0) - run.places.start[0]).max() > 0


def test_the_schedules_of_all_reduce_differ_by_rounding_only(perform):
    runs = [
        perform(tk.problems.digits(), f"chain(bsp(), {exchange})", 5, until=tk.updates(10)).model()
        for exchange in SYNCHRONOUS
    ]
    for other in runs[1:]:
        np.testing.assert_allclose(other, runs[0], rtol=0, atol=1e-6)


# -- limits of bounded staleness --------------------------------------------------------------------------------------

SLOW = {"step": tk.constant([1.0, 1.0, 1.0, 4.0])}


def test_a_lead_of_zero_with_mean_scaling_is_bsp_at_the_end_of_each_round(perform):
    """Plain SGD: n steps of a quarter at one model are one step of their mean, if all are computed at one model."""
    problem = tk.problems.logistic(dim=4, rows=64, batch=4)
    for rounds in (1, 2, 5):
        ends = []
        for policy, scaling, updates in (("bsp()", "one", rounds), ("ssp(0)", "mean", 4 * rounds)):
            options = {"scaling": scaling, "until": tk.updates(updates), "cluster": SLOW, "deal": "shards"}
            ends.append(perform(problem, f"chain({policy}, parameter_server())", **options).model())
        np.testing.assert_allclose(ends[1], ends[0], rtol=0, atol=ROUNDING)


def test_without_a_bound_ssp_is_asp(perform):
    problem = tk.problems.logistic(dim=4, rows=64, batch=4)
    a, b = (
        perform(problem, f"chain({policy}, parameter_server(2))", until=tk.iterations(8), cluster=SLOW)
        for policy in ("ssp(inf)", "asp()")
    )
    assert a.drive.log == b.drive.log
    np.testing.assert_array_equal(a.model(), b.model())


# -- local SGD --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", ["all_reduce(ring)", "parameter_server(2)"])
@pytest.mark.parametrize("optimizer", ["sgd(0.1)", "sgd(0.02, momentum=0.9)"])
def test_one_local_step_is_bsp(perform, exchange, optimizer):
    """Momentum is linear, so that the mean of the workers' own states is the state of the mean."""
    with jax.enable_x64(True):
        problem = tk.problems.logistic(dim=8, rows=512, batch=8)
        one, two = (
            perform(problem, f"chain(bsp(), {exchange}{more})", until=tk.updates(50), optimizer=optimizer).model()
            for more in ("", ", local_steps(1)")
        )
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-7)


def test_until_a_switch_the_first_policy_rules(perform):
    problem = tk.problems.logistic(dim=8, rows=512, batch=8)
    one, two = (
        perform(problem, f"chain({policy}, parameter_server())", until=tk.updates(25), cluster=SLOW)
        for policy in ("bsp()", "switch(25, bsp(), asp())")
    )
    np.testing.assert_array_equal(one.model(), two.model())
    later = perform(problem, "chain(switch(25, bsp(), asp()), parameter_server())", until=tk.updates(40), cluster=SLOW)
    groups = [len(task.group) for task in later.tasks(Apply)]
    assert groups[:25] == [4] * 25
    assert set(groups[25:]) == {1}


@tk.strategy
def post_local(rounds, count):
    """One gradient per exchange for some rounds, then `count` local steps."""
    from dataclasses import replace

    from toolkit.core.messages import Join

    def step(merged, message):
        later = merged >= rounds
        match message:
            case Compute() if later:
                return merged, (replace(message, steps=count, local=True),)
            case Apply() if later:
                return merged, (replace(message, drift=True),)
            case Join(("merged", number)):
                return number + 1, (message,)
        return merged, (message,)

    return tk.Strategy(lambda cluster: 0, step)


def test_post_local_sgd_begins_as_bsp_and_goes_on_with_local_steps(perform):
    problem = tk.problems.logistic(dim=8, rows=512, batch=8)
    options = {"optimizer": "sgd(0.05, momentum=0.9)"}
    strategy = tk.chain(tk.bsp(), tk.all_reduce(tk.ring), post_local(25, 4))
    a = perform(problem, "chain(bsp(), all_reduce(ring))", until=tk.updates(25), **options)
    b = perform(problem, strategy, until=tk.updates(25), **options)
    np.testing.assert_array_equal(a.model(), b.model())
    later = perform(problem, strategy, until=tk.updates(30), **options)
    assert [task.steps for task in later.tasks(Compute)][-4:] == [4] * 4
    np.testing.assert_array_equal(later.params(0), later.params(3))


# -- bytes and codes --------------------------------------------------------------------------------------------------


def test_shards_are_balanced_whatever_the_tensors(simulate):
    layout = Layout(tuple(Piece(str(i), size) for i, size in enumerate((1_000_000, 10, 10, 10))))
    run = simulate(parse("chain(bsp(), parameter_server(4))"), 4, budget=3, layout=layout)
    pushed = run.of("send")[run.of("send")["key"].str.startswith("push")].groupby("peer")["nbytes"].sum()
    pulled = run.of("send")[run.of("send")["key"].str.startswith("pull")].groupby("place")["nbytes"].sum()
    assert len(pushed) == len(pulled) == 4
    assert pushed.max() / pushed.min() <= 1.2
    assert pushed.sum() == pulled.sum() == 3 * 4 * 4 * layout.size


class Books:
    """Places that also keep the sum of all updates and of all that was sent of them, for one worker."""

    def __init__(self, places) -> None:
        self.places, self.made, self.gone = places, {}, {}

    def __getattr__(self, name):
        return getattr(self.places, name)

    def read(self, name, task):
        value = self.places.read(name, task)
        if isinstance(task, Send) and task.item == "update":
            from toolkit.work.coding import decoded

            key = (self.places.setup.cluster.seed, name, task.key[2], task.part[0])
            sent = decoded(self.places, self.places.at(name), task.part, task.codec, value, key)
            total = self.gone.setdefault(name, np.zeros(self.places.learner.layout.size))
            total[slice(*task.part)] += sent
        return value

    def write(self, name, task, value):
        self.places.write(name, task, value)
        if isinstance(task, Compute):
            self.made[name] = self.made.get(name, 0.0) + self.places.at(name).update.astype(float)


@pytest.mark.parametrize("codec", ["top_k(0.01)", "random_k(0.05)", "sign()", "qsgd(4)", "power_sgd(1)", "fp16()"])
def test_what_was_sent_and_what_is_left_are_the_updates(perform, codec):
    books = []
    with jax.enable_x64(True):
        run = perform(
            tk.problems.quadratic(dim=200),
            f"chain(asp(), parameter_server(2), compress({codec}))",
            3,
            until=tk.updates(300),
            watch=lambda places: books.append(Books(places)) or books[0],
            optimizer="sgd(0.02)",
        )
    for worker, total in books[0].gone.items():
        place = run.places.places[worker]
        left = {**place.left, **place.leaves}
        lost = np.concatenate([left[part].lost for part in sorted(left)])
        np.testing.assert_allclose(total + lost, books[0].made[worker], rtol=0, atol=1e-6)


def test_error_feedback_finds_the_optimum_of_the_uncompressed_run(perform):
    problem = tk.problems.quadratic(dim=50, noise=0.0)
    best = tk.problems.quadratic(dim=50, noise=0.0, rows=1).train.take(np.arange(1))[1][0]
    ends = {
        more: perform(problem, f"chain(bsp(), parameter_server(){more})", 2, until=tk.updates(300)).model()
        for more in ("", ", compress(top_k(0.1))")
    }
    for found in ends.values():
        np.testing.assert_allclose(found, best, atol=1e-3)


# -- pipelines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("exchange", ["parameter_server(2)", "all_reduce(ring)"])
def test_a_pipeline_is_the_model_that_was_split(perform, reduction, exchange):
    """Microbatches of 3, 3 and 2 rows, and a short last batch."""
    x = rng.normal(size=(43, 6)).astype(np.float32)
    y = (np.arange(43) % 3).astype(np.int32)
    sizes = (6, 5, 4, 3)
    problem = tk.problem(
        lambda rngs: MLP(rngs, sizes=sizes),
        cross_entropy,
        train=(x, y),
        test=(x, y),
        batch=8,
        blocks=MLP.blocks(sizes),
        reduction=reduction,
    )
    whole, split = (
        perform(problem, f"chain(bsp(), {exchange}{more})", 2, until=tk.epochs(3), optimizer="sgd(0.05)")
        for more in ("", ", pipeline(2, 3)")
    )
    np.testing.assert_allclose(split.model(), whole.model(), rtol=0, atol=ROUNDING)
    loss, losses = (
        {
            (event.task.key[1], event.task.key[2]): event.facts["loss"]
            for event in run.drive.log
            if hasattr(event, "task") and event.task.key[0] == "ready"
        }
        for run in (whole, split)
    )
    assert losses == pytest.approx(loss, abs=ROUNDING * (8 if reduction == "sum" else 1))


@pytest.mark.slow
@pytest.mark.parametrize("state", ["averaged", "local"])
def test_a_stage_with_batch_norm_keeps_its_own_statistics(perform, state):
    x = rng.normal(size=(32, 8, 8, 1)).astype(np.float32)
    y = (np.arange(32) % 3).astype(np.int32)
    cnn = tk.models.CNN
    problem = tk.problem(
        lambda rngs: cnn(rngs, shape=(8, 8, 1), classes=3, widths=(2, 3)),
        cross_entropy,
        train=(x, y),
        test=(x, y),
        batch=8,
        blocks=cnn.blocks,
    )
    strategy = "chain(bsp(), parameter_server(){})"
    whole, split = (
        perform(problem, strategy.format(more), 2, until=tk.updates(3), state=state) for more in ("", ", pipeline(2)")
    )
    np.testing.assert_allclose(split.model(), whole.model(), atol=1e-5)
    assert Learner(problem, 0, state).layout.size == len(whole.model())

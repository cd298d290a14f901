"""A run can be performed again from its log: the same bits, from seed and data alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx

import toolkit as tk
from toolkit.problems.measures import half_square

UNEVEN = tk.Simulator(3, step=tk.lognormal(1.0, 0.6), link=tk.Link(0.1, 1e4), apply=0.05, seed=1)
DIGITS = tk.problems.digits(batch=8)
POINTS = tk.problems.quadratic(dim=6, rows=64, batch=4)


def train(strategy, problem=POINTS, **options):
    options = {
        "optimizer": "sgd(0.05, momentum=0.9)",
        "on": UNEVEN,
        "until": tk.updates(9),
        "progress": False,
    } | options
    return tk.train(problem, tk.parse(strategy), **options)


def same(one, two) -> bool:
    pairs = zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


RUNS = [
    ("chain(bsp(), all_reduce(ring), compress(fp16()))", {}),
    ("chain(backup(1), all_gather(), compress(top_k(0.1)))", {}),
    ("chain(asp(), parameter_server(2), compress(top_k(0.1)))", {}),
    ("chain(ssp(1), parameter_server(2), pipeline(2, 3))", {}),
    ("chain(asp(), parameter_server(2), local_steps(3))", {"correction": tk.elastic(0.5)}),
    ("chain(asp(), parameter_server(3))", {"correction": tk.delay_compensation(0.1)}),
    ("chain(asp(), gossip(random_peer))", {}),
    ("chain(bsp(), gossip(ring_neighbours), local_steps(2))", {"deal": tk.contiguous()}),
    ("chain(elastic_bsp(3), parameter_server())", {"scaling": "mean", "clock": "samples"}),
]


@pytest.mark.parametrize(("strategy", "options"), RUNS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_replay_has_the_same_bits(strategy, options):
    run = train(strategy, DIGITS if "pipeline" in strategy else POINTS, **options)
    assert same(run.replay(), run)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["averaged", "local"])
def test_a_convolutional_network_with_batch_norm_replays(state):
    """After this process has used JAX with settings of its own."""
    jax.block_until_ready(jax.jit(lambda x: x @ x)(np.ones((256, 256), np.float32)))
    x = np.random.default_rng(0).normal(size=(60, 8, 8, 1)).astype(np.float32)
    y = (np.arange(60) % 3).astype(np.int32)
    problem = tk.problem(network, tk.problems.digits().loss, train=(x, y), test=(x, y), batch=8)
    run = train("chain(asp(), parameter_server(2))", problem, state=state, optimizer="adam(0.01)", until=tk.updates(5))
    assert same(run.replay(), run)


def network(rngs: nnx.Rngs) -> nnx.Module:
    return tk.models.CNN(rngs, shape=(8, 8, 1), classes=3, widths=(4, 4))


@pytest.mark.parametrize("strategy", ["chain(bsp(), all_reduce(ring))", "chain(asp(), parameter_server(2))"])
def test_members_that_come_and_go_replay(strategy):
    on = tk.Simulator(3, step=tk.lognormal(1.0, 0.3), link=tk.Link(0.05, 1e5), joins=[(3.0, 3)], leaves=[(6.1, 0)])
    run = train(strategy, on=on, until=tk.updates(12))
    assert same(run.replay(), run)


@pytest.mark.parametrize("strategy", ["chain(bsp(), all_reduce(tree))", "chain(asp(), parameter_server(2))"])
def test_a_log_can_be_cut_at_any_round(strategy):
    """A replay of the first rounds is the run that ends there."""
    long = train(strategy, until=tk.updates(8))
    for rounds in (0, 3, 7):
        cut = long.replay(rounds=rounds)
        if rounds:
            assert same(cut, train(strategy, until=tk.updates(rounds)))
        else:
            start = train(strategy, until=tk.updates(1)).replay(rounds=0)
            assert same(cut, start)
        assert not same(cut, long)


def test_a_loaded_run_replays_from_its_texts(tmp_path):
    run = train("chain(ssp(1), parameter_server(2))", deal="shards", evaluate=tk.updates(4), seed=4)
    run.save(tmp_path / "run")
    again = tk.load(tmp_path / "run")
    assert same(again, run)
    assert again.made is None
    assert same(again.replay(), run)


def test_a_loaded_run_in_double_precision_replays_as_such(tmp_path):
    with jax.enable_x64(True):
        run = train("chain(bsp(), all_reduce(ring))", until=tk.updates(3))
    run.save(tmp_path / "run")
    again = tk.load(tmp_path / "run").replay()
    assert same(again, run)
    assert jax.tree.leaves(again.params)[0].dtype == np.float64


def line(rngs: nnx.Rngs) -> nnx.Module:
    return nnx.Linear(2, 1, rngs=rngs)


def test_a_loaded_run_of_a_users_problem_asks_for_it(tmp_path):
    import optax

    x = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
    problem = tk.problem(line, half_square, train=(x, x[:, :1]), test=(x, x[:, :1]), batch=2)
    optimizer = optax.sgd(0.1)
    run = train("chain(asp(), parameter_server())", problem, optimizer=optimizer)
    run.save(tmp_path / "run")
    loaded = tk.load(tmp_path / "run")
    with pytest.raises(ValueError, match=r"Call replay\(problem=...\)"):
        loaded.replay()
    with pytest.raises(ValueError, match=r"Call replay\(optimizer=...\)"):
        loaded.replay(problem=problem)
    assert same(loaded.replay(problem=problem, optimizer=optimizer), run)


def test_a_trace_with_a_missing_row_is_refused():
    run = train("chain(asp(), parameter_server())", until=tk.updates(4))
    rows = run.trace[(run.trace["kind"] == "send") & run.trace["key"].str.startswith("push")]
    run.trace = run.trace.drop(rows.index[0])
    with pytest.raises(ValueError):
        run.replay()


def test_other_settings_are_said():
    run = train("chain(bsp(), all_reduce(ring))", until=tk.updates(2))
    run.cluster["settings"] = {**run.cluster["settings"], "NPROC": "2"}
    with pytest.warns(UserWarning, match="NPROC was '2'"):
        run.replay()

"""A run can be performed again from its log: the same bits, from seed and data alone."""

from __future__ import annotations

import warnings
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import toolkit as tk
from toolkit.core.errors import Refused
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
    ("chain(ssp(1), all_gather())", {"on": replace(UNEVEN, control=0.2)}),
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


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"problem": tk.problems.quadratic(dim=6, rows=64, batch=4, seed=9)}, "and no other"),
        ({"problem": DIGITS}, "and no other"),
        ({"problem": "x"}, "no problem"),
        ({"problem": 0}, "no problem"),
        ({"optimizer": "sgd(5.0)"}, "and no other"),
        ({"optimizer": optax.sgd(0.05, momentum=0.9)}, "and no other"),
        ({"optimizer": 3}, "it is a int"),
        ({"optimizer": ""}, "cannot be used"),
        ({"rounds": -1}, "rounds=-1"),
        ({"rounds": 1.5}, "rounds=1.5"),
        ({"rounds": "a"}, "rounds='a'"),
        ({"rounds": True}, "rounds=True"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_replay_of_another_run_is_refused(options, says, loaded, tmp_path, memo):
    run = tk.load(memo.save(tmp_path / "run")) if loaded else memo
    with pytest.raises(Refused, match=says):
        run.replay(**options)


@pytest.fixture(scope="module")
def memo():
    return train("chain(asp(), parameter_server())", until=tk.updates(4))


def test_what_is_given_is_used_and_may_be_what_is_recorded(memo):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = memo.replay(problem=POINTS, optimizer=memo.optimizer)
        assert again.status == "replayed" and same(again, memo)
        cut = memo.replay(rounds=2)
        assert cut.status == "replayed up to update 2"
        assert cut.replay().status == "replayed"


@pytest.mark.parametrize(
    "change",
    [
        lambda run: {"params": jax.tree.map(lambda array: array + 1, run.params)},
        lambda run: {"params": {"model": {}}},
        lambda run: {"seed": run.seed + 1, "made": None},
        lambda run: {"optimizer": "sgd(0.01)", "made": None},
    ],
    ids=["parameters", "other parameters", "seed", "optimizer"],
)
def test_a_replay_to_other_parameters_says_so(change, memo):
    with pytest.warns(UserWarning, match="ended at other parameters than the run holds. Under"):
        again = replace(memo, **change(memo)).replay()
    assert again.status == "replayed to other parameters"


def test_a_problem_of_the_same_text_with_other_rows_is_noticed(tmp_path):
    x = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
    first, other = (tk.problem(line, half_square, train=(a, a[:, :1]), test=(a, a[:, :1]), batch=2) for a in (x, -x))
    run = tk.load(train("chain(asp(), parameter_server())", first).save(tmp_path / "run"))
    with pytest.warns(UserWarning, match="other parameters"):
        run.replay(problem=other)


@pytest.mark.parametrize(
    "change",
    [
        lambda run: {"events": run.events[:-1]},
        lambda run: {"events": ()},
        lambda run: {"trace": run.trace[run.trace["kind"] != "committed"]},
        lambda run: {"trace": run.trace.iloc[:0]},
    ],
    ids=["an event", "all events", "merges", "all rows"],
)
def test_a_log_and_a_trace_that_do_not_agree_are_refused(change, memo):
    with pytest.raises(Refused, match=r"merges and its trace holds"):
        replace(memo, **change(memo)).replay()


@pytest.mark.parametrize(
    "options",
    [
        {"until": None},
        {"until": "x"},
        {"until": "bsp()"},
        {"workers": "__import__('os')"},
        {"workers": "5"},
        {"evaluate": None},
        {"correction": "evil(3)"},
    ],
    ids=str,
)
def test_options_that_do_not_tell_how_a_run_was_trained_are_refused(options, memo):
    changed = {name: text for name, text in (memo.options | options).items() if text is not None}
    with pytest.raises(Refused, match="do not tell how it was trained"):
        replace(memo, options=changed, made=None).replay()


def test_a_run_without_arrays_is_not_replayed():
    run = tk.simulate(tk.parse("chain(bsp(), all_reduce(ring))"), tk.Simulator(2), until=tk.iterations(2))
    with pytest.raises(Refused, match="without arrays"):
        run.replay()

"""Training as users call it: the numerics run in a process of their own."""

from __future__ import annotations

import hashlib
import time
import warnings

import jax
import numpy as np
import optax
import pytest

import toolkit as tk
from toolkit.core.errors import Diverged, Refused
from toolkit.runtime import numerics
from toolkit.runtime.handle import Handle

POINTS = tk.problems.quadratic(dim=6, rows=64, batch=4)
UNEVEN = tk.Simulator(4, step=tk.lognormal(1.0, 0.5), link=tk.Link(0.05, 1e5), seed=3)


def train(strategy="chain(bsp(), all_reduce(ring))", problem=POINTS, **options):
    options = {"optimizer": "sgd(0.1)", "on": tk.Simulator(4), "until": tk.updates(6), "progress": False} | options
    return tk.train(problem, tk.parse(strategy), **options)


def flat(run) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.params)])


def fingerprint(run) -> str:
    """A hash of every byte of the trace, the metrics and the parameters."""
    frames = (run.trace.to_csv(index=False).encode(), run.metrics.to_csv(index=False).encode(), flat(run).tobytes())
    return hashlib.sha256(b"".join(frames)).hexdigest()


@pytest.mark.parametrize("strategy", ["chain(asp(), parameter_server(2))", "chain(asp(), gossip(random_peer))"])
def test_the_same_seed_gives_the_same_bytes(strategy):
    one, two, other = (train(strategy, on=UNEVEN, seed=seed) for seed in (5, 5, 6))
    assert fingerprint(one) == fingerprint(two) != fingerprint(other)


def test_what_this_process_has_done_with_jax_does_not_matter():
    """No fork of a process that has used JAX, and no warning of one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = train("chain(asp(), parameter_server(2))", on=UNEVEN)
        with jax.default_matmul_precision("float32"):
            jax.block_until_ready(jax.jit(lambda x: x @ x.T)(np.ones((64, 64), np.float32)))
            after = train("chain(asp(), parameter_server(2))", on=UNEVEN)
    assert fingerprint(before) == fingerprint(after)


def test_double_precision_here_is_double_precision_there():
    with jax.enable_x64(True):
        run = train(until=tk.updates(3))
    assert {leaf.dtype for leaf in jax.tree.leaves(run.params)} == {np.dtype("float64")}
    again = run.replay()
    np.testing.assert_array_equal(flat(again), flat(run))
    assert {leaf.dtype for leaf in jax.tree.leaves(train(until=tk.updates(3)).params)} == {np.dtype("float32")}


def test_the_first_and_the_last_model_are_measured():
    run = train(until=tk.updates(6), evaluate=tk.updates(2))
    loss = run.metrics[run.metrics["name"] == "loss"]
    assert loss["round"].tolist() == [-1, 1, 3, 5]
    assert loss["value"].is_monotonic_decreasing
    assert loss["samples"].tolist() == [0, 32, 64, 96]


def test_the_record_says_what_was_asked():
    run = train(name="a name", seed=7, outer="sgd(0.5)", clock="samples", scaling="mean", correction=None)
    assert (run.name, run.seed, run.optimizer, run.problem) == ("a name", 7, "sgd(0.1)", repr(POINTS))
    told = {"outer": "sgd(0.5)", "clock": "samples", "scaling": "mean", "state": "averaged", "deal": "global"}
    assert told.items() <= run.options.items()
    assert run.cluster["settings"]["NPROC"] == "1"
    assert not run.measured


# -- optimizers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("sgd(0.1)", optax.sgd(0.1)),
        ("sgd(0.1, momentum=0.9, nesterov=True)", optax.sgd(0.1, momentum=0.9, nesterov=True)),
        ("adam(1e-2)", optax.adam(1e-2)),
        ("adamw(0.01, weight_decay=0.1)", optax.adamw(0.01, weight_decay=0.1)),
        ("chain(clip_by_global_norm(0.5), sgd(0.1))", optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1))),
        ("sgd(exponential_decay(0.1, 2, 0.5))", optax.sgd(optax.exponential_decay(0.1, 2, 0.5))),
        (
            "sgd(join_schedules([constant_schedule(0.1), constant_schedule(0.01)], [3]))",
            optax.sgd(optax.join_schedules([optax.constant_schedule(0.1), optax.constant_schedule(0.01)], [3])),
        ),
    ],
)
def test_an_optimizer_as_text_is_the_one_of_optax(perform, text, made):
    """Both against a loop of optax itself over the same gradients."""
    run = perform(POINTS, "chain(bsp(), all_reduce(ring))", 2, until=tk.updates(5), optimizer=text)
    same = perform(POINTS, "chain(bsp(), all_reduce(ring))", 2, until=tk.updates(5), optimizer=made)
    np.testing.assert_array_equal(run.model(), same.model())
    from toolkit.core.messages import Compute

    params, computes = run.places.start[0], run.tasks(Compute)
    state = made.init(params)
    for clock in range(1, 6):
        rows = [run.places.rows.batch(task.tickets[0]) for task in computes if task.key[2] == clock]
        x, y = (np.concatenate(parts) for parts in zip(*rows, strict=True))
        step, state = made.update((x * (x * params - y)).mean(axis=0).astype(np.float32), state, params)
        params = optax.apply_updates(params, step)
    np.testing.assert_allclose(run.model(), params, atol=2e-6)


def test_an_optimizer_made_of_objects_travels():
    run = train(optimizer=optax.chain(optax.clip(0.1), optax.sgd(optax.cosine_decay_schedule(0.1, 100))))
    assert run.optimizer.startswith("optax: ")
    np.testing.assert_array_equal(flat(run.replay()), flat(run))


# -- start, stop, wait ------------------------------------------------------------------------------------------------


def test_a_started_run_reports_and_stops_and_keeps_what_it_has():
    began = time.monotonic()
    options = {"optimizer": "sgd(0.01)", "on": tk.Simulator(2), "evaluate": tk.updates(200)}
    started = tk.start(POINTS, tk.parse("chain(asp(), parameter_server())"), until=tk.seconds(1e9), **options)
    with pytest.raises(TimeoutError, match=r"goes on (.*). It was not waited for"):
        started.wait(0.01)
    assert started.status in ("compiling", "running")
    while started.progress["updates"] < 400 and time.monotonic() - began < 60:
        time.sleep(0.05)
    assert {"seconds", "updates", "samples", "loss"} <= set(started.progress)
    assert len(started.metrics) >= 2
    started.stop()
    run = started.wait(30)
    assert run.status == "stopped"
    assert run.summary()["updates"].item() >= 400
    np.testing.assert_array_equal(flat(run.replay()), flat(run))


@pytest.mark.slow
def test_two_runs_go_on_side_by_side():
    """The second is stopped and waited for while the first is still under way."""
    strategy = tk.parse("chain(asp(), parameter_server())")
    options = {"optimizer": "sgd(0.01)", "on": tk.Simulator(2), "until": tk.seconds(1e9)}
    first, second = (tk.start(POINTS, strategy, **options) for _ in range(2))
    second.stop()
    assert second.wait(60).status == "stopped"
    assert first.status == "running"
    first.stop()
    assert first.wait(60).status == "stopped"


def test_an_update_that_is_not_finite_stops_the_run_and_keeps_it():
    with pytest.raises(Diverged, match=r"worker \d in its iteration \d+ is not finite: .*staleness \d") as found:
        train("chain(asp(), parameter_server())", optimizer="sgd(1e12)", until=tk.updates(500))
    run = found.value.run
    assert run.status.startswith("stopped: The update of worker")
    assert len(run.trace) > 0
    assert run.events
    assert (run.trace["kind"] == "committed").sum() >= 1


def test_a_failed_run_of_a_comparison_keeps_those_before():
    strategies = {"good": tk.parse("chain(bsp(), all_reduce(ring))"), "bad": tk.parse("chain(asp(), all_reduce(ring))")}
    with pytest.raises(ValueError, match="cannot merge stale updates") as found:
        tk.compare(
            strategies,
            POINTS,
            optimizer="sgd(0.1)",
            on=tk.Simulator(3, tk.constant([1, 2, 3])),
            until=tk.updates(9),
            progress=False,
        )
    assert list(found.value.runs) == ["good"]
    assert any("'bad'" in note for note in found.value.__notes__)


def test_a_comparison_flags_what_differs():
    runs = tk.compare(
        {"BSP": tk.parse("chain(bsp(), all_reduce(ring))"), "ASP": tk.parse("chain(asp(), parameter_server())")},
        POINTS,
        optimizer="sgd(0.1)",
        on=tk.Simulator(2),
        until=tk.updates(4),
        progress=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(runs.summary()["comparable"]) == {"yes"}
    other = train(problem=tk.problems.quadratic(dim=6, rows=64, batch=8), on=tk.Simulator(2), until=tk.updates(4))
    other.cluster["settings"]["NPROC"] = "2"
    with pytest.warns(UserWarning, match="NPROC: 2, not 1"):
        frame = (runs | {"other": other}).summary()
    assert "problem" in frame["comparable"].iloc[2]


def test_compiling_is_apart_and_phases_sum_to_the_time():
    """Under BSP each second of a worker is a step, a message, a merge or a wait."""
    on = tk.Simulator(3, step=tk.constant([1.0, 1.5, 2.0]), link=tk.Link(0.01, 1e4), apply=0.02)
    run = train("chain(bsp(), parameter_server(place='separate'))", on=on, until=tk.iterations(10))
    assert run.compile_seconds > 0
    total = run.summary()["seconds"].item()
    trace = run.trace
    waiting = tk.metrics.waiting(run)
    applied = trace.loc[trace["kind"] == "apply", "ended"].sub(trace.loc[trace["kind"] == "apply", "began"]).sum()
    for worker in range(3):
        own = trace[(trace["worker"] == worker) & trace["kind"].isin(("compute", "send"))]
        busy = (own["ended"] - own["wanted"]).sum()
        assert busy + waiting[worker] + applied == pytest.approx(total, rel=0.05)


def test_a_simulated_worker_that_joins_has_a_budget_too():
    run = train(on=tk.Simulator(2, joins=[(2.5, 2)]), until=tk.iterations(5))
    assert run.status == "finished"
    finished = run.trace[run.trace["kind"] == "finished"]
    assert set(finished["worker"]) == {0, 1, 2}


def test_progress_is_shown(capsys):
    train(progress=True)
    captured = capsys.readouterr()
    assert "bsp" in captured.err + captured.out


def test_running_here_is_running_there(perform):
    """The same arithmetic in this process, up to the settings of the compiler."""
    run = train("chain(asp(), parameter_server(2))", on=UNEVEN, until=tk.updates(10))
    recipe = run.made
    outcome = numerics.run(recipe.strategy, recipe.setup, UNEVEN, tk.updates(10), lambda said: True)
    np.testing.assert_allclose(outcome.params, flat(run), atol=1e-6)


def test_an_interrupt_ends_a_run_and_carries_it(monkeypatch):
    """Also the runs that ended before it in a comparison."""
    options = {"optimizer": "sgd(0.01)", "on": tk.Simulator(2), "until": tk.updates(10), "progress": False}
    strategies = {name: tk.parse("chain(asp(), parameter_server())") for name in ("first", "second")}
    within = Handle._within
    waits = iter([within, None, within])

    def interrupted(self, late, future):
        if (wait := next(waits)) is None:
            time.sleep(2.0)
            raise KeyboardInterrupt
        return wait(self, late, future)

    monkeypatch.setattr(Handle, "_within", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        tk.compare(strategies, POINTS, **options)
    assert caught.value.run.name == "second"
    assert [run.status for run in caught.value.runs.values()] == ["finished"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scalling": "mean"}, r"scalling is no option of training.*scaling"),
        ({"on": tk.Dask}, "no cluster"),
        ({"strategies": {1: tk.chain(tk.asp(), tk.parameter_server())}}, r"names \[1\]"),
        ({"strategies": tk.chain(tk.asp(), tk.parameter_server())}, "no mapping"),
        ({"name": "BSP"}, "name is no option"),
    ],
)
def test_a_comparison_of_something_else_is_refused(change, words):
    strategies = {"ASP": tk.chain(tk.asp(), tk.parameter_server())}
    options = {"strategies": strategies, "optimizer": "sgd(0.1)", "on": tk.Simulator(2), "until": tk.updates(1)}
    with pytest.raises(Refused, match=words):
        tk.compare(problem=POINTS, progress=False, **options | change)


def test_a_bandwidth_without_bytes_is_said():
    with pytest.warns(UserWarning, match="the model has no size"):
        tk.simulate(tk.chain(tk.asp(), tk.parameter_server()), tk.Simulator(2, link=tk.Link(0.0, 1e6)), tk.updates(1))

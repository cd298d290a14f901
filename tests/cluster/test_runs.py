"""Runs on real processes: the same numbers as in virtual time, and handles that wait, stop, leave and come back."""

from __future__ import annotations

import time
from dataclasses import replace

import jax
import numpy as np
import pytest

import toolkit as tk
from toolkit.core.errors import Overdue, Refused
from toolkit.kernels.vector import Vector
from toolkit.runtime.cluster.live import attach
from toolkit.runtime.wire import span_nbytes

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore:.*processes compute on:UserWarning")]

RING = tk.chain(tk.bsp(), tk.all_reduce(tk.ring))
SERVERS = tk.chain(tk.bsp(), tk.parameter_server(2))
HASTY = tk.chain(tk.asp(), tk.parameter_server(2))


def same(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def train(problem, strategy, on, until, **options):
    return tk.train(problem, strategy, optimizer="sgd(0.05)", on=on, until=until, progress=False, **options)


def begun(started) -> None:
    """Wait until a run computes."""
    late = time.monotonic() + 60
    while started.status != "running" and time.monotonic() < late:
        time.sleep(0.05)
    assert started.status == "running"


@pytest.fixture(scope="module")
def hasty(on, convolution):
    return train(convolution, HASTY, on, tk.iterations(6))


@pytest.mark.parametrize("strategy", [RING, SERVERS], ids=repr)
def test_synchronous_runs_have_the_bits_of_virtual_time(on, convolution, strategy):
    real = train(convolution, strategy, on, tk.updates(6))
    virtual = train(convolution, strategy, tk.Simulator(4), tk.updates(6))
    assert real.status == "finished"
    assert same(real.params, virtual.params)
    assert real.metrics.drop(columns="time").equals(virtual.metrics.drop(columns="time"))


def test_an_asynchronous_run_replays_to_the_same_bits(hasty):
    assert same(hasty.params, hasty.replay().params)


def test_times_are_in_order(hasty):
    trace = hasty.trace
    assert (trace.wanted <= trace.began).all() and (trace.began <= trace.ended).all()
    assert hasty.measured and (trace.wanted >= 0).all()


def test_bytes_are_those_of_the_formula(on, convolution):
    codec = "top_k(0.1)"
    strategy = tk.chain(tk.bsp(), tk.parameter_server(1, "separate"), tk.compress(tk.top_k(0.1)))
    run = train(convolution, strategy, replace(on, workers=3), tk.updates(2))
    sends = run.trace[run.trace.kind == "send"]
    layout = Vector.of(convolution.model, ()).layout
    pushes, pulls = (sends[sends.key.str.startswith(word)].nbytes for word in ("push", "pull"))
    assert set(pushes) == {span_nbytes(layout, layout.whole, codec)}
    assert set(pulls) == {layout.size * layout.itemsize}


def test_the_record_tells_how_the_processes_were_set(hasty):
    settings = hasty.cluster["settings"]["processes"].values()
    assert {setting["NPROC"] for setting in settings} == {"1"}
    assert all(len(setting["affinity"]) == 1 for setting in settings)
    assert all("--xla_cpu_multi_thread_eigen=false" in setting["XLA_FLAGS"] for setting in settings)
    assert hasty.compile_seconds > 0


def test_a_slow_worker_is_padded_to_its_factor(on, convolution):
    slow = replace(on, workers=2, slowdown={1: 3.0}, pace=0.05)
    run = train(convolution, HASTY, slow, tk.iterations(4))
    steps = run.trace[run.trace.kind == "compute"]
    assert ((steps.ended - steps.began)[steps.worker == 0] >= 0.05).all()
    assert ((steps.ended - steps.began)[steps.worker == 1] >= 0.15).all()


def test_stopping_waits_for_no_step(on, convolution):
    started = tk.start(convolution, HASTY, optimizer="sgd(0.05)", on=replace(on, pace=30.0), until=tk.updates(1000))
    begun(started)
    began = time.monotonic()
    started.stop()
    assert time.monotonic() - began < 10  # a step takes 30 s
    assert started.wait().status == "stopped"


def test_a_run_may_be_stopped_before_it_begins(on, convolution):
    started = tk.start(convolution, HASTY, optimizer="sgd(0.05)", on=on, until=tk.seconds(1000))
    started.stop()
    assert started.wait(60).status == "stopped"
    started.stop()  # once more is no harm


def test_what_hangs_is_named(on, convolution):
    stuck = replace(on, workers=2, pace=30.0, deadline=2.0)
    with pytest.raises(Overdue, match=r"round 0.*worker 0, 1.*compute:0:1 at 0"):
        train(convolution, RING, stuck, tk.updates(3))


def test_a_run_is_left_and_found_again(on, convolution):
    started = tk.start(
        convolution, RING, optimizer="sgd(0.05)", on=replace(on, pace=0.05), until=tk.updates(10), name="far"
    )
    started.detach()
    run = attach(on, "far").wait(60)
    assert run.name == "far" and run.status == "finished"
    with pytest.raises(Refused, match="found 0 runs"):
        attach(on, "far")


def test_a_second_run_waits_for_the_first(on, convolution):
    slow = replace(on, pace=0.1)
    first, second = (
        tk.start(convolution, RING, optimizer="sgd(0.05)", on=slow, until=tk.updates(8), name=name) for name in "ab"
    )
    assert same(second.wait(90).params, first.wait(90).params)


def test_a_second_run_is_refused_at_its_deadline(on, convolution):
    first = tk.start(convolution, RING, optimizer="sgd(0.05)", on=replace(on, pace=30.0), until=tk.updates(8), name="a")
    begun(first)
    try:
        with pytest.raises(Overdue, match="take part in the run 'a'"):
            train(convolution, RING, replace(on, deadline=1.0), tk.updates(1))
    finally:
        first.stop()
        first.wait(60)


def test_an_update_that_is_not_finite_ends_the_run(on, convolution):
    with pytest.raises(ValueError, match=r"worker \d in its iteration \d+ is not finite"):
        tk.train(convolution, RING, optimizer="sgd(1e30)", on=on, until=tk.updates(20), progress=False)

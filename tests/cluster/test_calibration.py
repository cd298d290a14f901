"""A real cluster, calibrated: a slow worker is found, and what follows is close to what happens."""

from __future__ import annotations

import pytest

import toolkit as tk
from toolkit.core.errors import Overdue

pytestmark = pytest.mark.cluster
PACE, SLOW = 0.05, 3.0


@pytest.fixture(scope="module")
def problem() -> tk.Problem:
    return tk.problems.quadratic(dim=500, rows=64, batch=4)


@pytest.fixture(scope="module")
def paced(on: tk.Dask) -> tk.Dask:
    """Three of the workers, with padded steps; a server may live with worker 0."""
    return tk.Dask(on.client, workers=3, pace=PACE, slowdown={2: SLOW}, hosts={"s0": 0}, deadline=on.deadline)


@pytest.fixture(scope="module")
def simulator(paced: tk.Dask, problem: tk.Problem) -> tk.Simulator:
    return tk.calibrate(paced, problem, steps=12, seconds=10.0, seed=5)


def test_what_is_described_is_what_was_given(simulator):
    assert (simulator.workers, simulator.hosts, simulator.seed) == (3, {"s0": 0}, 5)
    assert simulator.nbytes == 4 * 500
    assert simulator.control > 0 and simulator.apply > 0 and simulator.link.latency > 0
    assert isinstance(simulator.link, tk.Link)


def test_a_slow_worker_is_found_slower_by_its_factor(simulator):
    means = {worker: sum(times) / len(times) for worker, times in simulator.step.seconds.items()}
    assert all(mean >= PACE for mean in means.values())
    assert means[2] >= SLOW * PACE  # padded by sleep; how much longer a step takes says the machine


def test_a_run_that_sleeps_takes_as_long_as_predicted(paced, problem, simulator):
    budget = {"optimizer": "sgd(0.1)", "until": tk.iterations(20), "progress": False}
    strategy = tk.chain(tk.bsp(), tk.parameter_server())
    measured, predicted = (
        tk.train(problem, strategy, on=on, **budget).summary()["seconds"].item() for on in (paced, simulator)
    )
    assert predicted >= 20 * SLOW * PACE
    assert predicted == pytest.approx(measured, rel=0.05, abs=20 * 0.02)


def test_processes_of_another_run_are_waited_for_but_not_taken(paced, problem):
    """All or nothing: while a run has the processes a calibration says so; the run goes on."""
    server = tk.chain(tk.bsp(), tk.parameter_server())
    other = tk.start(problem, server, optimizer="sgd(0.1)", on=paced, until=tk.seconds(60), name="other")
    try:
        assert other.hosts
        hasty = tk.Dask(paced.cluster, workers=3, deadline=1.0)
        with pytest.raises(Overdue, match=r"waited 1 s for processes that take part in the run 'other'"):
            tk.calibrate(hasty, problem, steps=4)
    finally:
        other.stop()
    assert other.wait().status == "stopped"

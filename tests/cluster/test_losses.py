"""Processes are killed for real: a run ends with a reason or goes on, and never hangs."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest

import toolkit as tk
from toolkit.core.errors import Lost, Refused
from toolkit.core.messages import COORDINATOR
from toolkit.runtime.cluster.agent import card
from toolkit.runtime.cluster.processes import asked

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore:.*processes compute on:UserWarning")]

RING = tk.chain(tk.bsp(), tk.all_reduce(tk.ring))
SERVERS = tk.chain(tk.bsp(), tk.parameter_server(1, "separate"))


def start(problem, strategy, on, on_loss="continue", updates=60):
    return tk.start(
        problem, strategy, optimizer="sgd(0.05)", on=replace(on, pace=0.05), until=tk.updates(updates), on_loss=on_loss
    )


def under_way(started) -> None:
    """Wait for the first merges."""
    late = time.monotonic() + 60
    while started.tally.updates < 3 and started.status != "ended" and time.monotonic() < late:
        time.sleep(0.02)
    if started.tally.updates < 3:
        started.wait(0.5)
        raise AssertionError(started.progress)


def kill(started, on, host) -> None:
    """SIGKILL the process of a host once the run is under way."""
    under_way(started)
    cards = on.client.run(card, on_error="ignore").values()
    os.kill(next(c["pid"] for c in cards if c["address"] == started.hosts[host]), signal.SIGKILL)


@pytest.mark.parametrize(("strategy", "workers"), [(RING, 4), (SERVERS, 3)], ids=["ring", "servers"])
def test_the_others_go_on(on, convolution, strategy, workers):
    started = start(convolution, strategy, replace(on, workers=workers))
    kill(started, on, 1)
    run = started.wait(60)
    assert run.status == "finished"
    trace = run.trace
    assert list(trace.worker[trace.kind == "left"]) == [1]
    last = trace[trace.kind == "committed"].key.iloc[-1]
    assert last == ":".join(["committed", *(str(w) for w in range(workers) if w != 1)])


@pytest.mark.parametrize(
    ("host", "on_loss", "reason"),
    [(1, "stop", r"worker 1 was lost in round \d+"), ("s0", "continue", r"server s0 was lost in round \d+")],
)
def test_a_run_that_cannot_go_on_says_why_and_keeps_its_rows(on, convolution, host, on_loss, reason):
    started = start(convolution, SERVERS, replace(on, workers=3), on_loss)
    kill(started, on, host)
    with pytest.raises(Lost, match=reason) as caught:
        started.wait(60)
    assert (caught.value.run.trace.kind == "committed").sum() >= 3


def test_without_its_coordinator_a_run_ends(on, convolution):
    started = start(convolution, RING, replace(on, workers=2), updates=1000)
    kill(started, on, COORDINATOR)
    with pytest.raises(Lost, match="process that leads"):
        started.wait(60)
    late = time.monotonic() + 10
    while (members := {c["member"] for c in on.client.run(card, on_error="ignore").values() if c}) != {None}:
        assert time.monotonic() < late, members
        time.sleep(0.1)


def test_a_coordinator_that_stands_still_is_a_lost_one(on, convolution):
    """It can be found again when it moves."""
    started = start(convolution, RING, replace(on, workers=2, deadline=4.0), updates=5000)
    under_way(started)
    pid = next(c["pid"] for c in asked(on.client, card)[0].values() if c["address"] == started.hosts[COORDINATOR])
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Lost, match="gave no sign within 4 s"):
            started.wait(60)
    finally:
        os.kill(pid, signal.SIGCONT)
    again = tk.attach(on, started.name)
    again.stop()
    assert again.wait(60).status == "stopped"


def test_a_process_that_does_not_answer_is_named(elsewhere, monkeypatch):
    monkeypatch.setattr("toolkit.runtime.cluster.processes.ANSWER", 2.0)
    process, pid = next(iter(elsewhere.run(os.getpid).items()))
    on, ring = tk.Dask(elsewhere, workers=2), tk.chain(tk.bsp(), tk.all_reduce(tk.ring))
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Refused, match=rf"has 2, and {process} gave no answer within 2 s"):
            tk.train(tk.problems.quadratic(), ring, optimizer="sgd(0.1)", on=on, until=tk.updates(1), progress=False)
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.long
def test_a_retired_worker_is_a_lost_one(on, convolution):
    started = start(convolution, RING, replace(on, workers=3), updates=90)
    under_way(started)
    cards = on.client.run(card, on_error="ignore").items()
    on.client.retire_workers([address for address, c in cards if c["address"] == started.hosts[2]])
    run = started.wait(60)
    assert run.status == "finished"
    assert list(run.trace.worker[run.trace.kind == "left"]) == [2]

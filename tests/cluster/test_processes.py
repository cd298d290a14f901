"""The processes behind a run: one core each, started without a fork, each step done anew, none left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from flax import nnx

import toolkit as tk
from toolkit.runtime.cluster.lanes import allowed

pytestmark = pytest.mark.cluster
crowded = pytest.mark.filterwarnings("ignore:.*processes compute on:UserWarning")

RING = tk.chain(tk.bsp(), tk.all_reduce(tk.ring))


def train(problem, on, until=None, strategy=RING):
    until = until or tk.updates(2)
    return tk.train(problem, strategy, optimizer="sgd(0.0)", on=on, until=until, progress=False)


@dataclass
class Counted:
    """Two rows, always the same; each taking of both is noted in a file."""

    log: Path
    rows: int = 2
    chunks: tuple[int, ...] = (2,)

    def take(self, positions):
        if len(positions) == self.rows:
            with self.log.open("a") as file:
                file.write("x")
        return np.ones((len(positions), 3), np.float32), np.ones((len(positions), 1), np.float32)


def test_rows_are_taken_anew_in_each_round(on, tmp_path):
    """With equal arguments in all rounds, and a model that stays as it is."""

    def loss(outputs, targets):
        return ((outputs - targets) ** 2)[:, 0]

    counts = []
    for rounds in (2, 6):
        log = tmp_path / str(rounds)
        test = (np.ones((3, 3), np.float32), np.ones((3, 1), np.float32))
        build = lambda rngs: nnx.Linear(3, 1, rngs=rngs)  # noqa: E731
        problem = tk.problem(build, loss, train=Counted(log), test=test, batch=2)
        train(problem, replace(on, workers=1), tk.iterations(rounds))
        counts.append(len(log.read_text()))
    assert counts[1] - counts[0] == 4


@crowded
def test_a_worker_keeps_to_its_core(on):
    """While it multiplies matrices of 1,500 x 1,500, which libraries like to do with all cores there are."""
    size = 1500
    x, y = np.ones((size, size), np.float32), np.zeros((size, 1), np.float32)

    def loss(outputs, targets):
        return (outputs * 1e-3 - targets).mean(axis=1) ** 2

    def build(rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Linear(size, size, use_bias=False, rngs=rngs)

    problem = tk.problem(build, loss, train=(x, y), test=(x[:1], y[:1]), batch=size)
    run = train(problem, replace(on, workers=2), tk.seconds(4), tk.chain(tk.asp(), tk.parameter_server()))
    settings = run.cluster["settings"]["processes"]
    assert [len(settings[worker]["affinity"]) for worker in "01"] == [1, 1]
    if len(allowed()) > 1:
        assert settings["0"]["affinity"] != settings["1"]["affinity"]
    used = run.resources[run.resources.place.isin(["0", "1"])]
    assert set(used.place) == {"0", "1"}
    assert 20 < used.cpu.max() <= 110, "per cent of a core"


def test_more_workers_than_cores_are_allowed_said_once_and_flagged(on):
    strategies = {"ring": RING, "servers": tk.chain(tk.bsp(), tk.parameter_server())}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        runs = tk.compare(
            strategies,
            tk.problems.quadratic(),
            optimizer="sgd(0.1)",
            on=replace(on, workers=4),
            until=tk.updates(2),
            progress=False,
        )
    many = len(allowed()) < 4
    assert sum("4 processes compute on" in str(warning.message) for warning in said) == many
    assert all(run.cluster["oversubscribed"] is many for run in runs.values())


SCRIPT = """
import sys, psutil
import jax, jax.numpy as jnp
jax.jit(lambda x: x @ x)(jnp.ones((200, 200))).block_until_ready()  # threads of JAX are there now
import toolkit as tk
def mine():
    return [c for c in psutil.Process().children(recursive=True) if "spawn_main" in " ".join(c.cmdline())]
strategy = tk.chain(tk.bsp(), tk.parameter_server())
for _ in range(int(sys.argv[1])):
    run = tk.train(tk.problems.quadratic(), strategy, optimizer="sgd(0.1)", on=tk.Dask(workers=1),
                   until=tk.updates(2), progress=False)
    print(run.status, len(mine()), flush=True)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_process_that_has_used_jax_starts_clusters_without_fork_or_hang(tmp_path):
    """With all warnings as errors, here and in the processes started; and none of these is left after a run."""
    starts = 20
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "script.py", str(starts)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60 + 25 * starts)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["finished 0"] * starts
    assert "fork" not in done.stderr


KILLED = """
import psutil, time
import toolkit as tk
with tk.Dask(workers=1) as on:
    tk.start(tk.problems.quadratic(), tk.chain(tk.bsp(), tk.parameter_server()), optimizer="sgd(0.1)", on=on,
             until=tk.seconds(1000))
    print(*(c.pid for c in psutil.Process().children(recursive=True)), flush=True)
    time.sleep(1000)
"""


def alive(pids: Collection[int]) -> set[int]:
    """Those of some processes that are still there."""
    found = set()
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def test_no_process_outlives_a_notebook_that_was_killed(tmp_path):
    (tmp_path / "script.py").write_text(KILLED)
    with subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            children = {int(pid) for pid in parent.stdout.readline().split()}
            assert len(alive(children)) >= 2
        finally:
            os.kill(parent.pid, signal.SIGKILL)
    late = time.monotonic() + 40
    while alive(children) and time.monotonic() < late:
        time.sleep(0.2)
    assert not alive(children)

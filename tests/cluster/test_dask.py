"""What users bring: clusters, addresses, scripts, modules, slow kernels."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

import toolkit as tk
from toolkit.core.errors import Refused
from toolkit.runtime.cluster import processes

ONE = tk.chain(tk.bsp(), tk.all_reduce(tk.ring))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workers": 0}, "workers=0"),
        ({"workers": -1}, "workers=-1"),
        ({"workers": 2.5}, "workers=2.5"),
        ({"workers": 2, "slowdown": {2: 2.0}}, "worker 2 of 2 workers"),
        ({"workers": 2, "slowdown": {1: 0.0}}, r"slowdown\[1\]=0.0"),
        ({"workers": 2, "slowdown": {1: -2}}, r"slowdown\[1\]=-2"),
        ({"pace": 0.0}, "pace=0.0"),
        ({"deadline": -1.0}, "deadline=-1.0"),
        ({"workers": 2, "slowdown": [2.0]}, r"slowdown=\[2.0\] is no mapping"),
        ({"hosts": "s0"}, "hosts='s0'"),
        ({"deadline": None}, "deadline=None"),
        ({"cluster": 17}, "Dask was given 17"),
    ],
)
def test_what_cannot_be_a_cluster_is_refused(arguments, words):
    with pytest.raises(Refused, match=words):
        tk.Dask(**arguments)


def test_its_text_is_its_call():
    assert repr(tk.Dask(workers=4, slowdown={2: 2.0}, pace=0.5)) == "Dask(workers=4, slowdown={2: 2.0}, pace=0.5)"
    assert repr(tk.Dask("tcp://here:8786")) == "Dask('tcp://here:8786')"


def test_a_strategy_is_told_of_its_workers():
    assert tk.Dask(workers=3).describe(seed=7).workers == (0, 1, 2)
    assert tk.Dask(workers=3).describe(seed=7).seed == 7


@pytest.mark.cluster
def test_an_address_where_nobody_listens_is_refused(monkeypatch):
    assert processes.CONNECT < 15
    monkeypatch.setattr(processes, "CONNECT", 2.0)
    with pytest.raises(Refused, match=r"No scheduler answered at tcp://127.0.0.1:9 "):
        tk.Dask("tcp://127.0.0.1:9").describe()


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore:.*processes compute on:UserWarning")
class TestOnACluster:
    """On the processes of the other tests."""

    def test_a_client_a_cluster_and_an_address_are_the_same(self, elsewhere):
        given = [elsewhere, elsewhere.cluster, elsewhere.scheduler.address]
        runs = [train(tk.Dask(cluster, workers=2), tk.problems.quadratic()) for cluster in given]
        assert elsewhere.status == "running"
        assert all(same(run.params, runs[0].params) for run in runs)

    def test_too_few_processes_are_counted(self, on):
        crowd = tk.Dask(on.client.scheduler.address, workers=20)
        with pytest.raises(Refused, match=r"needs 21 processes and the cluster at .* has [1-5]"):
            train(crowd, tk.problems.quadratic())

    def test_places_may_share_a_process(self, on):
        strategy = tk.chain(tk.bsp(), tk.parameter_server(2, "separate"))
        shared = replace(on, workers=3, hosts={"s0": 0, "s1": 0, 2: 1})
        run = train(shared, tk.problems.quadratic(), strategy)
        alone = train(tk.Simulator(3), tk.problems.quadratic(), strategy)
        assert same(run.params, alone.params)
        assert len({run.cluster["hosts"][name] for name in ("s0", "s1", "0")}) == 1

    def test_a_kernel_runs_each_time_it_is_asked_to(self, on, tmp_path):
        """With equal arguments in all rounds: nothing is remembered."""
        log = tmp_path / "steps"

        def note() -> None:
            with log.open("a") as file:
                file.write("x")

        def loss(outputs, targets):
            if len(targets) == 2:  # a step, not an evaluation
                jax.debug.callback(note)
            return ((outputs - targets) ** 2)[:, 0]

        x, y = np.ones((2, 3), np.float32), np.ones((2, 1), np.float32)
        test = (np.ones((3, 3), np.float32), np.ones((3, 1), np.float32))
        problem = tk.problem(lambda rngs: nnx.Linear(3, 1, rngs=rngs), loss, train=(x, y), test=test, batch=2)
        counts = []
        for iterations in (1, 4):
            log.write_text("")
            train(replace(on, workers=1), problem, until=tk.iterations(iterations), optimizer="sgd(0.0)")
            counts.append(len(log.read_text()))
        assert counts[1] - counts[0] == 3


def train(on, problem, strategy=ONE, until=None, optimizer="sgd(0.1)"):
    until = until or tk.updates(3)
    return tk.train(problem, strategy, optimizer=optimizer, on=on, until=until, progress=False)


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
jax.jit(lambda x: x + 1)(jnp.ones(3)).block_until_ready()  # this process has used JAX before
from flax import nnx
import toolkit as tk
from beside import Line

def loss(outputs, targets):  # defined as in a cell of a notebook
    return ((outputs - targets) ** 2)[:, 0]

@tk.schedule
def star(n):
    up = [tk.Hop(r, 0, 0, 1, True) for r in range(1, n)]
    return 1, up + [tk.Hop(0, r, 0, 1, False) for r in range(1, n)]

x = np.ones((8, 3), np.float32)
problem = tk.problem(lambda rngs: Line(rngs), loss, train=(x, x[:, :1]), test=(x, x[:, :1]), batch=2)
strategy = tk.chain(tk.bsp(), tk.all_reduce(star))
run = tk.train(problem, strategy, optimizer="sgd(0.1)", on=tk.Dask(workers=2), until=tk.updates(3), progress=False)
print("ended:", run.status)
"""

BESIDE = """
from flax import nnx

class Line(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 1, rngs=rngs)
    def __call__(self, x):
        return self.linear(x)
"""


@pytest.mark.cluster
def test_a_script_needs_no_guard_and_its_code_travels(tmp_path):
    """No fork after JAX has started, no second run of the script, no module that the workers would have to find."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "beside.py").write_text(textwrap.dedent(BESIDE))
    command = [sys.executable, "-W", "error::RuntimeWarning", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ended:", "finished"]
    assert "fork" not in done.stderr


AT_ONCE = """
import os, psutil, signal, threading, time, __main__
import toolkit as tk
problem, strategy = tk.problems.quadratic(), tk.chain(tk.bsp(), tk.parameter_server())
options = dict(optimizer="sgd(0.1)", on=tk.Dask(workers=1), until=tk.updates(3))
tk.train(problem, strategy, **options | {"on": tk.Simulator(1)}, progress=False)  # imports are not counted
before, before_children = dict(os.environ), len(psutil.Process().children())
began = time.monotonic()
started = tk.start(problem, strategy, **options)
took, status = time.monotonic() - began, started.status
try:
    started.detach()
except ValueError as error:
    print("end with it here" in str(error))
while not started.status == "ended":
    assert __file__ and __main__.__spec__ is None and dict(os.environ) == before
    time.sleep(0.001)
print(status, took < 1, started.wait().status)
started = tk.start(problem, strategy, **options | {"until": tk.seconds(1000)})
while not started.tally.updates:
    time.sleep(0.01)
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    started.wait(60)
except KeyboardInterrupt as interrupt:
    print(interrupt.run.status, len(psutil.Process().children()) - before_children)
"""


@pytest.mark.cluster
def test_starting_returns_at_once_and_nothing_of_it_is_left_by_an_interrupt(tmp_path):
    (tmp_path / "script.py").write_text(AT_ONCE)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "starting True finished", "stopped 0"]

"""What users bring to a cluster: a module beside their script, arrays of NumPy and Dask, a store larger than memory."""

from __future__ import annotations

import importlib
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import dask.array
import jax
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

import toolkit as tk

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore:.*processes compute on:UserWarning")]

SERVERS = tk.chain(tk.asp(), tk.parameter_server(2))
ROWS, CHUNK = 96, 8

MODULE = """
    import jax
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(5, 8, rngs=rngs)
            self.drop = nnx.Dropout(0.2, rngs=rngs)
            self.last = nnx.Linear(8, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(self.drop(nnx.relu(self.first(x))))

    def loss(outputs, labels):
        return -jax.nn.log_softmax(outputs)[jax.numpy.arange(len(labels)), labels]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that this process can import and no worker can."""
    (tmp_path / "beside_the_script.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("beside_the_script")
    del sys.modules["beside_the_script"]


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 5)).astype(np.float32)
    return x, (x.sum(axis=1) > 0).astype(np.int32)


def train(problem, on, until):
    return tk.train(problem, SERVERS, optimizer="sgd(0.1)", on=on, until=until, progress=False)


def losses(run) -> np.ndarray:
    return run.metrics.value[run.metrics.name == "loss"].to_numpy()


def test_a_module_beside_the_script_needs_not_be_found_by_the_workers(on, mine, rows):
    problem = tk.problem(mine.Net, mine.loss, train=rows, test=rows, batch=8)
    run = train(problem, replace(on, workers=2), tk.epochs(4))
    assert losses(run)[-1] < losses(run)[0]
    again = run.replay()
    assert all(map(np.array_equal, jax.tree.leaves(run.params), jax.tree.leaves(again.params)))


def test_a_dask_array_is_computed_by_the_workers_and_never_whole(on, mine, rows, tmp_path):
    log = tmp_path / "blocks"

    def seen(block: np.ndarray) -> np.ndarray:
        with log.open("a") as file:
            file.write(f"{os.getpid()} {len(block)}\n")
        return block

    x, y = rows
    lazy = dask.array.from_array(x, chunks=(CHUNK, 5)).map_blocks(seen, dtype=x.dtype, meta=x[:0])
    data = (lazy, dask.array.from_array(y, chunks=CHUNK))
    problem = tk.problem(mine.Net, mine.loss, train=data, test=(x[:20], y[:20]), batch=8)
    run = train(problem, replace(on, workers=2), tk.epochs(1))
    assert run.status == "finished" and run.summary().samples.item() == ROWS
    read = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    assert max(size for _, size in read) <= CHUNK
    here = sum(size for process, size in read if process == os.getpid())
    there = sum(size for process, size in read if process != os.getpid())
    assert here <= 2 * CHUNK < ROWS <= there, "this process looks at the first rows to check them"


LIMIT = 2**30  # bytes of memory for each worker
SIDE, STORED, BLOCK = 128, 28_672, 128  # images of 64 KiB, 1.75 GiB of them in chunks of 8 MiB


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[zarr.Array, zarr.Array]:
    """Images of one grey each, so that all of them take no space on the disk."""
    folder = tmp_path_factory.mktemp("store")
    shape, chunks = (STORED, SIDE, SIDE, 1), (BLOCK, SIDE, SIDE, 1)
    x = zarr.create_array(str(folder / "x"), shape=shape, chunks=chunks, dtype="float32")
    y = zarr.create_array(str(folder / "y"), shape=(STORED,), chunks=(STORED,), dtype="int32")
    grey = (np.arange(STORED) % 2).astype(np.float32)
    block = np.broadcast_to(grey[:BLOCK, None, None, None] + 1, chunks)
    for start in range(0, STORED, BLOCK):
        x[start : start + BLOCK] = block
    y[:] = grey.astype(np.int32)
    return x, y


def test_a_store_larger_than_the_memory_of_a_worker_is_read_in_parts(store, mine):
    from flax import nnx

    class Grey(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.linear = nnx.Linear(1, 2, rngs=rngs)

        def __call__(self, x):
            return self.linear(x.mean(axis=(1, 2)))

    x, y = store
    assert x.nbytes > 1.5 * LIMIT
    problem = tk.problem(Grey, mine.loss, train=store, test=(x[:8], y[:8]), batch=64)
    cluster = LocalCluster(
        n_workers=3, threads_per_worker=1, memory_limit=LIMIT, host="127.0.0.1", dashboard_address=":0"
    )
    with cluster, Client(cluster, set_as_default=False) as client:
        before = client.run(os.getpid)
        run = train(problem, tk.Dask(client, workers=2), tk.epochs(0.75))
        assert client.run(os.getpid) == before, "no worker was killed"
        said = [text for lines in client.get_worker_logs().values() for _, text in lines]
    assert run.status == "finished" and run.summary().samples.item() == 0.75 * STORED
    assert not [text for text in said if re.search("paus", text, re.IGNORECASE)]
    assert run.resources.memory.max() < 0.8 * LIMIT, "where Dask begins to pause"
    assert losses(run)[-1] < losses(run)[0]

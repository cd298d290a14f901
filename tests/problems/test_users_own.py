"""A user's own problem, in one call: any flax module, any loss, arrays of any library."""

from __future__ import annotations

from pathlib import Path

import dask
import dask.array
import jax
import numpy as np
import pytest
import xarray
import zarr
from flax import nnx

import toolkit as tk

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 5)).astype(np.float32)
Y = (X @ rng.normal(size=5) > 0).astype(np.int32)


class Net(nnx.Module):
    """With dropout, which needs random numbers in training only."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(5, 8, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)
        self.last = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(self.drop(nnx.relu(self.first(x))))


def loss(outputs, labels):
    return -jax.nn.log_softmax(outputs)[jax.numpy.arange(len(labels)), labels]


def error_rate(outputs, labels):
    return (outputs.argmax(axis=1) != labels).astype("float32")


def stored(kind: str, folder: Path):
    if kind == "numpy":
        return X, Y
    if kind == "dask":
        return dask.array.from_array(X, chunks=(16, 5)), dask.array.from_array(Y, chunks=20)
    if kind == "xarray":
        table = xarray.Dataset({"x": (("row", "value"), X), "y": ("row", Y)})
        return table["x"], table["y"]
    x = zarr.create_array(str(folder / "x"), shape=X.shape, chunks=(16, 5), dtype="float32")
    y = zarr.create_array(str(folder / "y"), shape=Y.shape, chunks=(16,), dtype="int32")
    x[:], y[:] = X, Y
    return x, y


@pytest.mark.parametrize("kind", ["numpy", "dask", "xarray", "zarr"])
def test_a_problem_of_ones_own_is_learned(kind: str, tmp_path: Path) -> None:
    data = stored(kind, tmp_path)
    problem = tk.problem(Net, loss, train=data, test=(X, Y), batch=6, metrics={"error": error_rate})
    run = tk.train(
        problem,
        tk.chain(tk.asp(), tk.parameter_server(2)),
        optimizer="adam(0.05)",
        on=tk.Simulator(3),
        until=tk.epochs(4) | tk.reaches("error", 0.0),
        progress=False,
    )
    measured = run.metrics.pivot_table(index="round", columns="name", values="value")
    assert measured["error"].iloc[-1] < measured["error"].iloc[0]
    again = run.replay()
    for one, two in zip(jax.tree.leaves(run.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(one, two)


def test_double_precision(perform) -> None:
    with jax.enable_x64(True):
        build = lambda rngs: nnx.Linear(5, 2, param_dtype=np.float64, rngs=rngs)  # noqa: E731
        data = (X.astype(float), Y)
        problem = tk.problem(build, loss, train=data, test=data, batch=10)
        run = perform(problem, "chain(bsp(), all_reduce(ring))", 2, until=tk.epochs(1))
    assert run.model().dtype == np.float64
    assert run.recipe.setup.cluster.layout.itemsize == 8


def test_chunks_are_read_where_rows_are_needed_and_nothing_is_gathered(perform) -> None:
    """Each chunk once per epoch by this process, and never the whole array."""
    reads: list[int] = []

    def seen(block: np.ndarray) -> np.ndarray:
        if block.size:
            reads.append(len(block))
        return block

    x = dask.array.from_array(X, chunks=(10, 5)).map_blocks(seen, dtype=X.dtype, meta=X[:0])
    problem = tk.problem(Net, loss, train=(x, dask.array.from_array(Y, chunks=10)), test=(X, Y), batch=6)
    with dask.config.set(scheduler="synchronous"):
        reads.clear()
        run = perform(problem, "chain(asp(), parameter_server())", 3, until=tk.epochs(2))
    assert run.drive.tally.samples == 120
    assert max(reads) <= 10
    assert len(reads) <= 6 * 2 + 2

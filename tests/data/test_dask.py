"""Chunked sources: only the chunks needed are read, few are held, nothing is gathered, little is pickled."""

from __future__ import annotations

import shutil
import sys
import threading
import time
import tracemalloc
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import cloudpickle
import dask.array
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.core.errors import Refused
from toolkit.core.messages import Ticket
from toolkit.data.dask import Chunked
from toolkit.data.sampling import positions
from toolkit.data.sources import Arrays, DamagedData, source, targets

xarray = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")

X, Y = np.arange(60.0).reshape(20, 3), np.arange(20) % 4


class Watched:
    """An array that notes which rows were read."""

    def __init__(self, array: Any) -> None:
        self.array, self.reads = array, Counter[int]()
        self.shape, self.dtype, self.chunks = array.shape, array.dtype, array.chunks

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.reads[rows.start] += 1
        return np.asarray(self.array[rows])


def stored(folder: Path, values: np.ndarray, rows: int) -> Any:
    array = zarr.create_array(str(folder), shape=values.shape, dtype=values.dtype, chunks=(rows, *values.shape[1:]))
    array[:] = values
    return zarr.open_array(str(folder), mode="r")


def kinds(tmp_path: Path) -> dict[str, tuple[Any, Any]]:
    x, y = stored(tmp_path / "x", X, 6), stored(tmp_path / "y", Y, 20)
    xarray.Dataset({"x": (("row", "band"), X), "y": ("row", Y)}).to_zarr(
        tmp_path / "set", encoding={"x": {"chunks": (6, 3)}}, consolidated=False
    )
    lazy = xarray.open_zarr(tmp_path / "set", chunks=None, consolidated=False)
    graph = xarray.open_zarr(tmp_path / "set", consolidated=False)
    return {
        "dask": (dask.array.from_array(X, chunks=(6, 2)), dask.array.from_array(Y, chunks=7)),
        "dask and numpy": (dask.array.from_array(X, chunks=(6, 3)), Y),
        "zarr": (x, y),
        "dask over zarr": (dask.array.from_zarr(x), dask.array.from_zarr(y)),
        "xarray over zarr": (lazy["x"], lazy["y"]),
        "xarray over dask": (graph["x"], graph["y"]),
        "xarray variable": (graph["x"].variable, graph["y"].variable),
    }


@pytest.mark.parametrize(
    "kind",
    ["dask", "dask and numpy", "zarr", "dask over zarr", "xarray over zarr", "xarray over dask", "xarray variable"],
)
def test_every_kind_of_array_gives_the_rows_of_numpy(kind: str, tmp_path: Path) -> None:
    for data in (
        source(kinds(tmp_path)[kind]),
        cloudpickle.loads(cloudpickle.dumps(source(kinds(tmp_path / "b")[kind]))),
    ):
        assert isinstance(data, Chunked) and data.rows == 20 and data.chunks == (6, 6, 6, 2)
        asked = np.array([19, 0, 7, 7, 18, 5])
        for got, expected in zip(data.take(asked), Arrays(X, Y).take(asked), strict=True):
            np.testing.assert_array_equal(got, expected)
            assert got.dtype == expected.dtype
        np.testing.assert_array_equal(targets(data), Y)


@given(asked=st.lists(st.integers(0, 19), max_size=30), chunk=st.integers(1, 25), limit=st.integers(1, 700))
def test_any_rows_in_any_order_under_any_limit(asked: list[int], chunk: int, limit: int) -> None:
    data = Chunked(dask.array.from_array(X, chunks=(chunk, 3)), Y, limit=limit)
    inputs, outputs = data.take(np.array(asked, int))
    np.testing.assert_array_equal(inputs, X[asked])
    np.testing.assert_array_equal(outputs, Y[asked])


@pytest.mark.parametrize("harm", ["gone", "other"])
def test_a_zarr_store_that_is_gone_is_not_read_as_fill_values(tmp_path: Path, harm: str) -> None:
    data = cloudpickle.loads(cloudpickle.dumps(Chunked(stored(tmp_path / "x", X, 4), Y)))
    data.take(np.array([0]))
    shutil.rmtree(tmp_path / "x")
    if harm == "other":
        stored(tmp_path / "x", X[:10], 4)
    np.testing.assert_array_equal(data.take(np.array([1]))[0], X[[1]])  # is held
    with pytest.raises(DamagedData, match="no longer the one that was opened"):
        data.take(np.array([19]))


def test_a_zarr_store_in_memory_or_of_the_other_byte_order_has_rows(tmp_path: Path) -> None:
    for x in zarr.array(X, chunks=(4, 3)), stored(tmp_path / "x", X.astype(">f8"), 4):
        np.testing.assert_array_equal(Chunked(x, Y).take(np.array([3, 19]))[0], X[[3, 19]])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda block: block[:2], r"shape \(2, 3\) and type float64, not \(4, 3\)"),
        (lambda block: block[:, :1], r"shape \(4, 1\)"),
        (lambda block: block.astype(int), "type int64, not .* float64"),
        (lambda block: np.ma.masked_array(block, block >= 0), "masked array"),
    ],
)
def test_a_chunk_that_is_not_what_was_promised_is_refused(change: Any, says: str) -> None:
    x = dask.array.from_array(X, chunks=(4, 3)).map_blocks(change, dtype=X.dtype, chunks=(4, 3), meta=X[:0])
    with pytest.raises(Refused, match=says):
        Chunked(x, Y).take(np.array([0, 3]))


def test_a_store_in_memory_of_xarray_has_rows_too() -> None:
    data = source((xarray.DataArray(X), xarray.DataArray(Y)))
    np.testing.assert_array_equal(data.take(np.array([3, 1]))[0], X[[3, 1]])


def test_only_the_chunks_needed_are_read(tmp_path: Path) -> None:
    x = Watched(stored(tmp_path / "x", X, 4))
    Chunked(x, Y).take(np.array([4, 7, 12, 5]))
    assert x.reads == {4: 1, 12: 1}


def test_an_epoch_reads_each_chunk_once_and_holds_a_window(tmp_path: Path) -> None:
    """A store eight times the limit: each chunk is decoded once per epoch and memory stays near the limit."""
    values = np.random.default_rng(0).normal(size=(4096, 256))
    x, y = Watched(stored(tmp_path / "x", values, 64)), np.arange(4096)
    data = Chunked(x, y, limit=2**20)
    assert data.window == 7, "131,584 bytes per chunk"
    read, labels = [], []
    tracemalloc.start()
    for first in range(0, 4096, 50):
        rows, numbers = data.take(positions(Ticket(0, first, min(50, 4096 - first)), data, seed=3))
        read.append(rows[:, 0].copy())
        labels.append(numbers)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(x.reads.values()) == {1} and len(x.reads) == 64
    assert data._cache.held <= 2**20 and peak < 3 * 2**20 < values.nbytes
    order = np.concatenate(labels)
    np.testing.assert_array_equal(np.sort(order), y)
    np.testing.assert_array_equal(np.concatenate(read), values[order, 0])


def test_a_source_travels_without_its_rows(tmp_path: Path) -> None:
    x = stored(tmp_path / "x", np.zeros((4096, 64)), 64)
    for data in Chunked(x, x), Chunked(dask.array.from_zarr(x), dask.array.from_zarr(x)):
        data.take(np.arange(1000))
        assert len(cloudpickle.dumps(data)) < 10_000


def test_nothing_is_read_when_the_source_is_made_and_chunks_are_computed_here() -> None:
    places: list[str] = []

    def block(info: Any = None) -> np.ndarray:
        places.append(threading.current_thread().name)
        return np.ones((5, 2))

    x = dask.array.map_blocks(block, chunks=((5, 5), (2,)), dtype=float, meta=np.empty((0, 0)))
    data = Chunked(x, np.arange(10))
    assert places == []
    data.take(np.array([7]))
    assert places == [threading.current_thread().name]


def test_not_a_number_is_found_in_the_chunk_that_holds_it() -> None:
    x = X.copy()
    x[13, 1] = np.nan
    data = Chunked(dask.array.from_array(x, chunks=(5, 3)), Y)
    data.take(np.arange(10))
    with pytest.raises(ValueError, match="1 values that are NaN or infinite, the first in row 13"):
        data.take(np.array([10]))


def test_unknown_chunks_wrong_lengths_and_rows_outside_are_refused() -> None:
    x = dask.array.from_array(X, chunks=(5, 3))
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        Chunked(x[x[:, 0] > 7], Y)
    with pytest.raises(ValueError, match="equal length"):
        Chunked(x, Y[:-1])
    for row in -1, 20:
        with pytest.raises(ValueError, match="source of 20 rows"):
            Chunked(x, Y).take(np.array([row]))


def test_a_persisted_array_is_read_through_the_cluster() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        x = (dask.array.from_array(X, chunks=(5, 3)) * 2).persist()
        data = source((x[::-1], Y))
        np.testing.assert_array_equal(data.take(np.array([2, 19]))[0], 2 * X[::-1][[2, 19]])
        there = client.submit(lambda data: data.take(np.array([2]))[0], data, pure=False)
        np.testing.assert_array_equal(there.result(timeout=20), 2 * X[::-1][[2]])


def begin(data: Chunked, dask_worker: Any) -> None:
    """Read rows in a thread that is no Dask task, as a long-lived agent does."""
    dask_worker.found = Future[np.ndarray]()
    threading.Thread(target=lambda: dask_worker.found.set_result(data.take(np.array([2, 19]))[0]), daemon=True).start()


def found(dask_worker: Any) -> np.ndarray | None:
    return dask_worker.found.result() if dask_worker.found.done() else None


@pytest.mark.cluster
def test_a_persisted_array_is_read_from_any_thread_of_a_worker_process() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        data = source(((dask.array.arange(60, chunks=15).reshape(20, 3) * 2.0).persist(), Y))
        (address,) = client.scheduler_info()["workers"]
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        client.run(begin, data)
        deadline = time.monotonic() + 20
        while (rows := client.run(found)[address]) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        np.testing.assert_array_equal(rows, 2 * X[[2, 19]])


def test_a_persisted_array_without_its_cluster_says_so() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None):
        data = source((dask.array.from_array(X, chunks=(5, 3)).persist(), Y))
    with pytest.raises(ValueError, match=r"no Dask cluster is known.*without persist"):
        data.take(np.array([0]))

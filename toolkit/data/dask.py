"""Rows of chunked arrays: Dask arrays, xarray variables, Zarr arrays. The one file of this layer that knows Dask.

Every process reads the chunks it needs for itself; nothing is gathered, and a source that travels takes the recipe
(graph, path) and not the rows. So a store may be larger than the memory of any worker.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from numpy.typing import NDArray

from toolkit.core.errors import Refused
from toolkit.data.cache import Cache
from toolkit.data.sampling import WINDOW
from toolkit.data.sources import DamagedData, Rows, WrongData, check_lengths, check_values, describe, plain

BLOCK = 16 * 2**20  # bytes read at once from a store that has no chunks of its own


class Chunked:
    """A source over arrays that are stored, or computed, in chunks along the rows.

    Row i is :math:`(x_i, y_i)`; `chunks` are those of `x`, and `y` is read over the same rows, however it is stored.

    Parameters
    ----------
    x, y : array [rows, ...]
        Dask arrays (lazy or persisted), xarray variables or DataArrays, Zarr arrays, or anything else with `shape`,
        `dtype` and slices. Values are checked to be finite as they are read.
    limit : int [byte], > 0
        Chunks read are kept up to this size, the latest used first; one chunk is always kept.
    window : int [chunks], >= 1
        Wanted number of chunks whose rows are mixed. The attribute `window` is what of it fits into `limit`, so that
        a reader that follows :func:`toolkit.data.sampling.order` reads each chunk once per epoch.

    Raises
    ------
    ValueError
        Lengths that differ, no rows, chunk sizes that Dask does not know; on reading, values that are not finite.

    Examples
    --------
    >>> import dask.array
    >>> rows = Chunked(dask.array.arange(10, chunks=4), dask.array.arange(10, chunks=5) % 2)
    >>> rows
    Chunked(10 rows in 3 chunks, x int64[], y int64[])
    >>> rows.take(np.array([9, 0, 3]))
    (array([9, 0, 3]), array([1, 0, 1]))
    """

    def __init__(self, x: Any, y: Any, limit: int = 256 * 2**20, window: int = WINDOW) -> None:
        # of an xarray DataArray only the variable: its coordinates would be read along
        self.x, self.y = getattr(x, "variable", x), getattr(y, "variable", y)
        _check_arrays(x=self.x, y=self.y)
        check_lengths(self.x.shape, self.y.shape)
        self.chunks = _sizes(self.x)
        self._edges = np.cumsum((0, *self.chunks))
        self._row_nbytes = sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in (self.x, self.y))
        self._remote = {"x": _persisted(self.x), "y": _persisted(self.y)}
        self.window = max(1, min(window, limit // max(1, max(self.chunks) * self._row_nbytes)))
        self._cache: Cache[Rows] = Cache(limit)

    def __repr__(self) -> str:
        return f"Chunked({self.rows} rows in {len(self.chunks)} chunks, x {describe(self.x)}, y {describe(self.y)})"

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.x.shape[0])

    def take(self, positions: NDArray[np.integer[Any]]) -> Rows:
        """Rows at `positions` `[n]`, in this order; only the chunks that hold them are read."""
        positions = np.asarray(positions)
        if positions.size and not 0 <= positions.min() <= positions.max() < self.rows:
            raise Refused(
                f"Rows {positions.min()} to {positions.max()} were asked of a source of {self.rows} rows. Rows are "
                "counted from 0. Ask for positions below the number of rows."
            )
        x = np.empty((len(positions), *self.x.shape[1:]), self.x.dtype)
        y = np.empty((len(positions), *self.y.shape[1:]), self.y.dtype)
        chunk = np.searchsorted(self._edges, positions, side="right") - 1
        # held chunks first: a batch at the border of two windows must not push out what it still needs
        for c in sorted(np.unique(chunk).tolist(), key=lambda c: c not in self._cache):
            mine = np.flatnonzero(chunk == c)
            inputs, outputs = self._cache.get(c, self.chunks[c] * self._row_nbytes, lambda c=c: self._chunk(c))  # type: ignore[misc]
            x[mine], y[mine] = inputs[positions[mine] - self._edges[c]], outputs[positions[mine] - self._edges[c]]
        return x, y

    def targets(self) -> NDArray[Any]:
        """All targets `[rows, ...]`, read chunk by chunk in this process; inputs are not touched."""
        return np.concatenate([self._read("y", start, stop) for start, stop in pairwise(self._edges.tolist())])

    def _chunk(self, c: int) -> Rows:
        start, stop = int(self._edges[c]), int(self._edges[c + 1])
        return self._read("x", start, stop), self._read("y", start, stop)

    def _read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        whole = getattr(self, name)
        _check_there(whole)
        part = whole[start:stop]
        if is_dask_collection(part):
            part = part.compute(scheduler=_cluster() if self._remote[name] else "synchronous")
        what = {"x": "inputs", "y": "targets"}[name]
        values = plain(part, what)
        shape = (stop - start, *whole.shape[1:])
        if (values.shape, _native(values)) != (shape, _native(whole)):
            raise DamagedData(
                f"The {what} from row {start} on came with shape {values.shape} and type {values.dtype}, not {shape} "
                f"and {whole.dtype}. What a chunk holds must be what its array promises. "
                f"Look at the function or the store that makes this chunk."
            )
        check_values(values, what, start)
        return values


def _native(array: Any) -> np.dtype[Any]:
    """Its type, whatever the order of bytes."""
    return np.dtype(array.dtype).newbyteorder("=")


def _check_there(array: Any) -> None:
    """Refuse a Zarr array whose store is gone or another one: missing chunks would be read as fill values."""
    import zarr  # slow to import

    if not isinstance(array, zarr.Array):
        return
    try:
        now = zarr.open_array(array.store, path=array.path, mode="r")
        same = (now.shape, now.chunks, _native(now)) == (array.shape, array.chunks, _native(array))
    except (FileNotFoundError, KeyError, ValueError):
        same = False
    if not same:
        raise DamagedData(
            f"The Zarr array {array.store}/{array.path} is no longer the one that was opened. "
            f"Its chunks would be read as fill values, and the model would learn from these. "
            f"Leave the store in place while a run reads it, and on every machine that takes part."
        )


def _check_arrays(**arrays: Any) -> None:
    for name, array in arrays.items():
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise WrongData(
                f"{name} is a {type(array).__name__}, which has no shape and dtype of its own. "
                f"Rows are taken from one array. Give an array, such as dataset['name'] or np.asarray(values)."
            )
    shapes = [array.shape for array in arrays.values()]
    if any(math.isnan(size) for shape in shapes for size in shape):
        raise Refused(
            f"The arrays have shapes {', '.join(map(str, shapes))}: Dask does not know how many rows some chunks have. "
            "Rows cannot be dealt without their number. Call compute_chunk_sizes() on the Dask array first."
        )


def _sizes(array: Any) -> tuple[int, ...]:
    """Sizes of the chunks along the rows."""
    rows, stored = int(array.shape[0]), getattr(array, "chunks", None)
    if stored is None:
        encoding = getattr(array, "encoding", {})  # of an xarray variable that is read lazily
        stored = encoding.get("chunks") or encoding.get("chunksizes")
    if stored and isinstance(stored[0], tuple):
        return tuple(map(int, stored[0]))
    row = array.dtype.itemsize * math.prod(array.shape[1:])
    size = int(stored[0]) if stored else max(1, BLOCK // max(1, row))
    return tuple(min(size, rows - start) for start in range(0, rows, size))


def _persisted(array: Any) -> bool:
    """Whether chunks lie in the memory of a cluster: then the graph holds futures, which only the cluster resolves."""
    if not is_dask_collection(array):
        return False
    from distributed import Future  # slow to import

    graph = array.__dask_graph__()
    layers = getattr(graph, "layers", {"all": graph}).values()
    return any(isinstance(value, Future) for layer in layers if not _blockwise(layer) for value in layer.values())


def _blockwise(layer: Any) -> bool:
    """Whether a layer is symbolic: it holds no futures, and listing its tasks would be slow."""
    return hasattr(layer, "is_materialized") and not layer.is_materialized()


def _cluster() -> Any:
    """The scheduler function of the client, or of the worker process, that we are in."""
    from distributed import Status, Worker, get_client  # slow to import

    try:
        return get_client().get
    except ValueError:  # neither a client nor a task: a thread of its own in a worker process
        workers = [worker for worker in Worker._instances if worker.status == Status.running]
    if not workers:
        raise Refused(
            "A persisted Dask array is read where no Dask cluster is known. Its chunks lie in the memory of that "
            "cluster. Read it on its workers or beside its Client, or pass the array without persist()."
        )
    return workers[0]._get_client().get

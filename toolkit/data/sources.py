"""Sources: rows of inputs `x` and targets `y` that can be taken by position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from toolkit.core.errors import Refused

Rows: TypeAlias = tuple[NDArray[Any], NDArray[Any]]


class MissingData(FileNotFoundError, Refused):
    """A data file is not where it was looked for; the message says where users get it."""


class WrongData(Refused, TypeError):
    """Data of a kind that nothing can be learned from."""


class DamagedData(Refused):
    """A data file is there but its content is not what its format or its checksum says."""


@runtime_checkable
class Source(Protocol):
    """Rows that can be taken by position; `chunks` are the sizes along the rows in which they are stored."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Sizes of the stored pieces along the rows, ``(rows,)`` for arrays in memory."""

    def take(self, positions: NDArray[np.integer[Any]]) -> Rows:
        """Inputs `[n, ...]` and targets `[n, ...]` at `positions` `[n]`, in this order."""


@dataclass(frozen=True, eq=False, repr=False)
class Arrays:
    r"""A source over two arrays in memory.

    Row i is :math:`(\text{scale} \cdot x_i, y_i)`.

    Parameters
    ----------
    x : array [rows, ...]
        Inputs. NaN and infinity are refused.
    y : array [rows, ...]
        Targets, as many as inputs.
    scale : float, optional
        Images stay bytes in memory: rows are taken as ``float32(x) * scale``. None takes them as they are.

    Raises
    ------
    ValueError
        No rows, lengths that differ, or values that are not finite.
    TypeError
        Values that are not numbers.

    Examples
    --------
    >>> rows = Arrays(np.array([[0], [64], [128]], np.uint8), np.array([7, 8, 9]), scale=1 / 256)
    >>> rows
    Arrays(3 rows, x uint8[1], y int64[])
    >>> rows.take(np.array([2, 1]))
    (array([[0.5 ],
           [0.25]], dtype=float32), array([9, 8]))
    """

    x: NDArray[Any]
    y: NDArray[Any]
    scale: float | None = None

    def __post_init__(self) -> None:
        check_lengths(self.x.shape, self.y.shape)
        check_values(self.x, "inputs")
        check_values(self.y, "targets")

    def __repr__(self) -> str:
        return f"Arrays({self.rows} rows, x {describe(self.x)}, y {describe(self.y)})"

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.x)

    @property
    def chunks(self) -> tuple[int, ...]:
        """One chunk: everything."""
        return (self.rows,)

    def take(self, positions: NDArray[np.integer[Any]]) -> Rows:
        """Copies of the rows at `positions` `[n]`, in this order."""
        x = self.x[positions]
        return (x if self.scale is None else x.astype(np.float32) * np.float32(self.scale)), self.y[positions]

    def targets(self) -> NDArray[Any]:
        """All targets `[rows, ...]`."""
        return self.y


def source(data: Any) -> Source:
    """The source behind whatever holds the data.

    Parameters
    ----------
    data : Source, or pair (x, y)
        Arrays in memory (NumPy, JAX, lists) become :class:`Arrays`; a pair with a Dask array, an xarray variable or
        a Zarr array becomes a :class:`toolkit.data.dask.Chunked`, which reads chunk by chunk where rows are needed.

    Examples
    --------
    >>> source((np.zeros((4, 2)), np.arange(4)))
    Arrays(4 rows, x float64[2], y int64[])
    """
    if isinstance(data, Source):
        return data
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise WrongData(
            f"Data were given as {type(data).__name__}. Learning needs inputs and targets. "
            "Pass a pair (x, y) of arrays, or a Source with rows, chunks and take()."
        )
    x, y = data
    if hasattr(x, "chunks") or hasattr(y, "chunks"):
        from toolkit.data.dask import Chunked  # Dask is loaded only by those who use it

        return Chunked(x, y)
    return Arrays(plain(x, "inputs"), plain(y, "targets"))


def targets(source: Source) -> NDArray[Any]:
    """All targets `[rows, ...]` of a source, read chunk by chunk.

    Examples
    --------
    >>> targets(Arrays(np.zeros((3, 2)), np.array([4, 5, 6])))
    array([4, 5, 6])
    """
    known: Callable[[], NDArray[Any]] | None = getattr(source, "targets", None)
    if known is not None:
        return known()
    edges = np.cumsum((0, *source.chunks))
    return np.concatenate([source.take(np.arange(a, b))[1] for a, b in pairwise(edges)])


def plain(values: Any, what: str) -> NDArray[Any]:
    """Values as an array of NumPy; refuse those that would lose something on the way."""
    if np.ma.is_masked(values):
        raise WrongData(
            f"The {what} are a masked array that hides {np.ma.count_masked(values)} values. "
            f"Learning has no masks, so the hidden values would count. Fill them, or leave their rows out."
        )
    try:
        return np.asarray(values)
    except ValueError as reason:
        raise WrongData(
            f"The {what} are no array: {reason}. Every row needs the same shape. "
            f"Pad the rows, or cut them to one shape."
        ) from reason


def describe(array: Any) -> str:
    """Type and shape of one row, as in ``float32[28, 28, 1]``."""
    return f"{array.dtype}{list(array.shape[1:])}"


def check_lengths(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """Refuse shapes that are not one input and one target per row, for at least one row."""
    if not x or not y or x[0] != y[0]:
        raise Refused(
            f"The inputs have shape {x} and the targets {y}. Row i of one belongs to row i of the other, along the "
            "first axis. Pass arrays of equal length."
        )
    if x[0] == 0:
        raise Refused("The data have 0 rows. Nothing can be learned from them. Pass at least one row.")


def check_values(values: NDArray[Any], what: str, first: int = 0) -> None:
    """Refuse values that are not finite numbers; `first` is the position of the first row."""
    if values.dtype.kind in "OSUMm":
        raise WrongData(
            f"The {what} have type {values.dtype}. Only numbers can enter a model. Encode them as floating-point or "
            "whole numbers (labels as 0, 1, ...)."
        )
    if not np.issubdtype(values.dtype, np.inexact):
        return
    finite = np.isfinite(values)
    if finite.all():
        return
    row = np.argwhere(~finite)[0][0]
    raise Refused(
        f"The {what} hold {np.count_nonzero(~finite)} values that are NaN or infinite, the first in row {first + row}. "
        "One of them makes every weight NaN. Remove or impute these rows before learning."
    )

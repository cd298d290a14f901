"""CIFAR-10 and CIFAR-100: 32 x 32 colour images, which users bring in the binary or the Python layout.

The Python layout is a pickle, and a pickle can run anything. Ours cannot: it is read by an unpickler that knows no
name but those of NumPy arrays, and maps even these to stand-ins which only hold bytes.

References
----------
Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.core.errors import Refused
from toolkit.data.sources import Arrays, DamagedData, MissingData

PIXELS = 3 * 32 * 32
TEN = [f"data_batch_{k}" for k in range(1, 6)], ["test_batch"]
HUNDRED = ["train"], ["test"]


class ForbiddenPickle(pickle.UnpicklingError, Refused):
    """A pickle names something other than an array: it was refused before anything ran."""


def cifar10(data_dir: Path | str | None = None) -> tuple[Arrays, Arrays]:
    """Training and test rows of CIFAR-10.

    Images are taken as float32 `[n, 32, 32, 3]` from 0 to 1, labels as int32 from 0 to 9; in memory pixels stay bytes.

    Parameters
    ----------
    data_dir : path, optional
        The folder of the files ``data_batch_1.bin`` ... ``test_batch.bin`` (binary layout, preferred), or
        ``data_batch_1`` ... ``test_batch`` (Python layout), or the folder above, as the archives unpack. Default: the
        folder named by the variable ``TOOLKIT_DATA``, else the current one.

    Raises
    ------
    MissingData
        A file was not found.
    DamagedData
        A file does not hold records of one label and 3,072 bytes.
    ForbiddenPickle
        A file of the Python layout asks for more than arrays.

    Examples
    --------
    >>> cifar10("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    toolkit.data.sources.MissingData: data_batch_1.bin ...
    """
    return _load(data_dir, "cifar-10-batches", TEN, labels=1, key=b"labels")


def cifar100(data_dir: Path | str | None = None) -> tuple[Arrays, Arrays]:
    """Training and test rows of CIFAR-100, with its 100 fine labels.

    As :func:`cifar10`, with the files ``train.bin`` and ``test.bin`` (binary layout) or ``train`` and ``test``
    (Python layout).

    Examples
    --------
    >>> cifar100("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    toolkit.data.sources.MissingData: train.bin ...
    """
    return _load(data_dir, "cifar-100", HUNDRED, labels=2, key=b"fine_labels")


def _load(
    data_dir: Path | str | None, stem: str, files: tuple[list[str], list[str]], labels: int, key: bytes
) -> tuple[Arrays, Arrays]:
    """Both parts of a set whose records carry `labels` bytes of labels, the last of which counts."""
    folder = Path(data_dir if data_dir is not None else os.environ.get("TOOLKIT_DATA", "."))
    folders = [folder, *(folder / f"{stem}-{layout}" for layout in ("bin", "binary", "py", "python"))]

    def part(names: list[str]) -> Arrays:
        read = [_file(folders, name, labels, key) for name in names]
        pixels, found = (np.concatenate(arrays) for arrays in zip(*read, strict=True))
        images = np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        return Arrays(images, found.astype(np.int32), scale=1 / 255)

    train, test = map(part, files)
    return train, test


def _file(folders: Sequence[Path], name: str, labels: int, key: bytes) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    for path in (folder / file for file in (f"{name}.bin", name) for folder in folders):
        if path.is_file():
            return _binary(path, labels) if path.suffix == ".bin" else _python(path, key)
    raise MissingData(
        f"{name}.bin (binary layout) or {name} (Python layout) is not in {folders[0]} or its subfolders "
        f"{', '.join(folder.name for folder in folders[1:])}. CIFAR does not come with this package. Get the binary "
        "version from www.cs.toronto.edu/~kriz/cifar.html, unpack it, and name the folder by data_dir or TOOLKIT_DATA."
    )


def _binary(path: Path, labels: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    raw = np.fromfile(path, np.uint8)
    if not raw.size or raw.size % (labels + PIXELS):
        raise _damaged(path, f"{raw.size} bytes are not records of {labels} + {PIXELS}")
    records = raw.reshape(-1, labels + PIXELS)
    return records[:, labels:], records[:, labels - 1]


def _python(path: Path, key: bytes) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    content = load_arrays(path)
    try:
        pixels, labels = np.asarray(content[b"data"]), np.asarray(content[key])
    except (TypeError, KeyError, IndexError, ValueError) as reason:
        raise _damaged(path, f"no arrays {b'data'!r} and {key!r} in it") from reason
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS) or labels.dtype.kind not in "ui":
        raise _damaged(
            path, f"pixels {pixels.dtype}{list(pixels.shape)} with labels {labels.dtype}{list(labels.shape)}"
        )
    return pixels, labels


def load_arrays(path: Path | str) -> Any:
    """What a pickle holds if that is arrays, dicts, lists, tuples, bytes, strings and numbers; nothing of it can run.

    Arrays come as objects that ``np.asarray`` understands.

    Raises
    ------
    ForbiddenPickle
        The pickle names any other class or function.
    DamagedData
        It is not a whole pickle.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(pickle.dumps(print)), file.flush()
    ...     load_arrays(file.name)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    toolkit.data.cifar.ForbiddenPickle: A pickle asks for builtins.print. ...
    """
    raw = Path(path).read_bytes()
    try:
        return _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
    except ForbiddenPickle:
        raise
    except Exception as reason:  # a broken pickle can raise anything
        raise _damaged(path, f"{type(reason).__name__}: {reason}") from reason


def _damaged(path: Path | str, why: str) -> DamagedData:
    return DamagedData(
        f"{path} could not be read as CIFAR ({why}). Each record has labels and 3,072 bytes of pixels. "
        "Get the file again."
    )


class _Type:
    """Stands in for a dtype: numbers only."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        self.dtype = np.dtype(code.decode("ascii") if isinstance(code, bytes) else code)
        if self.dtype.kind not in "buif":
            raise ValueError(f"an array of {self.dtype}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self.dtype = np.dtype((order.decode("ascii") if isinstance(order, bytes) else order) + self.dtype.str[1:])


class _Array:
    """Stands in for an array: shape, type and bytes, put together when asked for."""

    def __init__(self, *_: Any) -> None:
        self.values: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, raw = state
        self.values = np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if fortran else "C")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype)


def _from_buffer(raw: bytes, kind: _Type, shape: tuple[int, ...], order: str) -> NDArray[Any]:
    return np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if order in ("F", b"F") else "C")


def _encode(text: str | bytes, *_: Any) -> bytes:
    """Bytes that Python 3 wrote for Python 2: always Latin-1."""
    return text if isinstance(text, bytes) else text.encode("latin-1")


KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Array,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
    ("_codecs", "encode"): _encode,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name that arrays are made of; any other name is refused."""
        if (module, name) not in KNOWN:
            raise ForbiddenPickle(
                f"A pickle asks for {module}.{name}. A file of images holds arrays, and what else a pickle names "
                "could run as code. Do not open it elsewhere; get the binary layout from the publisher instead."
            )
        return KNOWN[module, name]

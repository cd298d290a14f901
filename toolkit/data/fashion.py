"""Fashion-MNIST: 28 x 28 grey images of ten kinds of clothing, a subset of them embedded in the package.

References
----------
Xiao, Rasul, Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms", 2017.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.core.errors import Refused
from toolkit.data.idx import read_idx
from toolkit.data.sources import Arrays, DamagedData, MissingData

SUBSET = Path(__file__).with_name("embedded") / "fashion_mnist_subset.npz"
SHA256 = "ec6d4a116e1ad7a9c780814eaf57c5e49aa3d82bb981d057dcd090e7d5bc84b3"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def fashion_mnist(which: str = "subset", data_dir: Path | str | None = None) -> tuple[Arrays, Arrays]:
    """Training and test rows of Fashion-MNIST.

    Images are taken as float32 `[n, 28, 28, 1]` from 0 to 1, labels as int32 from 0 to 9; in memory pixels stay bytes.

    Parameters
    ----------
    which : "subset" or "complete"
        The embedded subset (10,000 + 2,000 images, as many of each kind), or all 60,000 + 10,000.
    data_dir : path, optional
        Where the four IDX files of the complete set lie, gzipped or not. Default: the folder named by the variable
        ``TOOLKIT_DATA`` or its subfolder ``fashion-mnist``, then that of the Debian package ``dataset-fashion-mnist``.

    Raises
    ------
    MissingData
        A file of the complete set was not found.
    DamagedData
        A file does not hold what its format or its checksum says.

    Examples
    --------
    >>> train, test = fashion_mnist()
    >>> train, test.rows
    (Arrays(10000 rows, x uint8[28, 28, 1], y int32[]), 2000)
    >>> train.take(np.arange(32))[0].shape
    (32, 28, 28, 1)
    """
    if which == "subset":
        arrays = _subset(SUBSET)
        return _source(arrays["x_train"], arrays["y_train"]), _source(arrays["x_test"], arrays["y_test"])
    if which != "complete":
        raise Refused(
            f"fashion_mnist got which = {which!r}. There are two sizes of it. Use 'subset' (embedded) or 'complete'."
        )
    folders = _folders(data_dir)
    files = [
        [_find(f"{part}-{name}-ubyte", folders) for name in ("images-idx3", "labels-idx1")]
        for part in ("train", "t10k")
    ]
    train, test = (_source(*map(read_idx, pair)) for pair in files)
    return train, test


def as_cifar(x: NDArray[Any]) -> NDArray[Any]:
    """Grey images in the shape of CIFAR: zeros around them, the one channel three times.

    Parameters
    ----------
    x : array [n, 28, 28, 1] of any type

    Returns
    -------
    array [n, 32, 32, 3] of the same type

    Examples
    --------
    >>> as_cifar(np.ones((5, 28, 28, 1), np.uint8)).shape
    (5, 32, 32, 3)
    """
    if x.shape[1:] != (28, 28, 1):
        raise Refused(
            f"as_cifar got an array of shape {x.shape}. It pads grey images of 28 x 28 pixels. "
            "Pass shape [n, 28, 28, 1]."
        )
    return np.repeat(np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0))), 3, axis=3)


def _subset(path: Path) -> dict[str, NDArray[np.uint8]]:
    raw = path.read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != SHA256:
        raise DamagedData(
            f"{path} has the SHA-256 {found}, not {SHA256}. The embedded images were changed or cut short. "
            "Install the package again."
        )
    with np.load(io.BytesIO(raw)) as arrays:
        return dict(arrays)


def _source(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Arrays:
    return Arrays(images[..., np.newaxis], labels.astype(np.int32), scale=1 / 255)


def _folders(data_dir: Path | str | None) -> list[Path]:
    if data_dir is not None:
        return [Path(data_dir)]
    named = os.environ.get("TOOLKIT_DATA")
    return [*([Path(named), Path(named) / "fashion-mnist"] if named else []), DEBIAN]


def _find(name: str, folders: list[Path]) -> Path:
    for path in (folder / (name + end) for folder in folders for end in (".gz", "")):
        if path.is_file():
            return path
    raise MissingData(
        f"{name}.gz (IDX, gzipped or not) is not in {', '.join(map(str, folders))}. The complete Fashion-MNIST does "
        "not come with this package. Install the Debian package dataset-fashion-mnist, or get the four files from "
        "github.com/zalandoresearch/fashion-mnist and name their folder by data_dir or TOOLKIT_DATA; "
        "'subset' needs no file."
    )

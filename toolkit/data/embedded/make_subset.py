"""Make the embedded subset of Fashion-MNIST from the complete set of the Debian package ``dataset-fashion-mnist``.

    python -m toolkit.data.embedded.make_subset [file]

The same input and zlib give the same bytes: the choice is seeded and the archive carries no time of its own.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolkit.data.fashion import DEBIAN, SUBSET
from toolkit.data.idx import read_idx

EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time an archive can carry
SEED = 20170828


def choose(labels: NDArray[np.uint8], per_class: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Positions of `per_class` rows of each label, in random order."""
    chosen = [rng.permutation(np.flatnonzero(labels == label))[:per_class] for label in range(10)]
    return rng.permutation(np.concatenate(chosen)).astype(np.int32)


def subset(folder: Path = DEBIAN) -> dict[str, NDArray[np.generic]]:
    """The arrays of the subset, and the positions in the complete set that they come from."""
    rng = np.random.Generator(np.random.Philox(SEED))
    arrays: dict[str, NDArray[np.generic]] = {}
    for part, name, per_class in ("train", "train", 1000), ("test", "t10k", 200):
        images, labels = (
            read_idx(folder / f"{name}-images-idx3-ubyte.gz"),
            read_idx(folder / f"{name}-labels-idx1-ubyte.gz"),
        )
        rows = choose(labels, per_class, rng)
        arrays |= {f"x_{part}": images[rows], f"y_{part}": labels[rows], f"rows_{part}": rows}
    return arrays


def write(path: Path, arrays: dict[str, NDArray[np.generic]]) -> str:
    """Write an npz archive without times; return its SHA-256."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", EPOCH)
            archive.writestr(entry, buffer.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else SUBSET
    print(f"{target}: SHA-256 {write(target, subset())}")

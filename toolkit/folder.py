"""A folder of a record and its tables: written whole or not at all, never over another, checked when it is read.

Everything is written into a folder beside the wanted one and renamed at the end. The record (``run.json``) holds
a checksum of each file and of itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.core.errors import Refused
from toolkit.trace import read_parquet, write_parquet

RECORD = "run.json"
FORMAT = 1


class FolderExists(Refused):
    """A folder to save into is there already."""


class FolderDamaged(Refused):
    """A folder that was read is not what was saved."""


def whole(folder: str | Path, write: Callable[[Path], None]) -> Path:
    """Make a folder by `write(path)` and give it its name only when everything is in it."""
    folder = place(folder)
    if folder.resolve().exists():
        raise FolderExists(
            f"{folder} was given to save into, and it exists. A record is never overwritten silently. "
            f"Choose another folder, or remove this one first."
        )
    partial = folder.with_name(f".{uuid.uuid4().hex[:8]}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
    except OSError as error:
        raise Refused(
            f"{folder} was given to save into, and no folder can be made in {folder.parent} ({error.strerror}). "
            f"What is saved needs a folder of its own. Choose a place that is a folder and that you may write to."
        ) from error
    try:
        write(partial)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return folder


def write(
    folder: Path, record: Mapping[str, Any], tables: Mapping[str, pd.DataFrame], arrays: Mapping[str, np.ndarray] | None
) -> None:
    """Write a record, its tables (Parquet) and its arrays (npz) into an existing folder."""
    for name, table in tables.items():
        write_parquet(table, folder / f"{name}.parquet")
    if arrays is not None:
        with zipfile.ZipFile(folder / "params.npz", "w") as archive:
            for name, array in arrays.items():
                # A ZipInfo of its own has the epoch of zip as its date: equal arrays, equal files.
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    files = {path.name: _digest(path.read_bytes()) for path in sorted(folder.iterdir())}
    body = {"format": FORMAT, "run": dict(record), "files": files}
    (folder / RECORD).write_text(json.dumps(body | {"sha256": _digest(_canonical(body))}, indent=2) + "\n")


def read(
    folder: Path, tables: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, pd.DataFrame], dict[str, np.ndarray] | None]:
    """Read what :func:`write` wrote; any file that is missing or altered is named."""
    with reading(folder, RECORD):
        body = json.loads((folder / RECORD).read_text())
        seal = body.pop("sha256")
        record, files = dict(body["run"]), dict(body["files"])
        names = {f"{name}.parquet" for name in tables}
        version = body["format"]
    if version != FORMAT:
        raise damaged(folder, f"has a {RECORD} of format {version!r} and not {FORMAT}")
    if seal != _digest(_canonical(body)) or not names <= set(files):
        raise damaged(folder, f"has a {RECORD} that was altered")
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            raise damaged(folder, f"has no {name}")
        if _digest(path.read_bytes()) != digest:
            raise damaged(folder, f"has a {name} that was altered or only half written")
    arrays = None
    if "params.npz" in files:
        with reading(folder, "params.npz"), np.load(folder / "params.npz", allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    frames = {}
    for name, columns in tables.items():
        with reading(folder, f"{name}.parquet"):
            frames[name] = read_parquet(folder / f"{name}.parquet", columns)
    return record, frames, arrays


def place(folder: object) -> Path:
    """The path that a user gave for a folder, or an error."""
    try:
        path = Path(folder)  # type: ignore[arg-type]
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()
    except (OSError, TypeError, ValueError) as error:
        raise Refused(
            f"{folder!r} cannot be the path of a folder: {error}. A run is saved into and loaded from a folder. "
            f"Give its path as text, such as 'results/bsp'."
        ) from None
    return path


@contextlib.contextmanager
def reading(folder: Path, name: str) -> Iterator[None]:
    """Whatever goes wrong while a file of a folder is read, it is the file that is damaged."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise damaged(folder, f"has no {name}") from None
    except Exception as error:  # a file can hold anything, and its readers raise errors of all kinds
        raise damaged(folder, f"has a {name} that cannot be read ({type(error).__name__}: {error})") from error


def damaged(folder: Path, what: str) -> FolderDamaged:
    """The error for a folder that is not what was saved."""
    return FolderDamaged(
        f"{folder} {what}. A saved run is written whole, with a checksum of every file, so this one was damaged or is "
        f"none. Load a folder that save() made, or copy it again from where it was made."
    )


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

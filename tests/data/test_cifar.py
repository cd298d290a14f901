"""CIFAR in both layouts, and pickles that want more than arrays."""

from __future__ import annotations

import builtins
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolkit.data.cifar import ForbiddenPickle, cifar10, cifar100, load_arrays
from toolkit.data.sources import DamagedData, MissingData

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=(6, 2, 3072), dtype=np.uint8)  # six files of two images
LABELS = np.arange(12).reshape(6, 2) % 10
NAMES = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]


def binary10(folder: Path) -> None:
    for name, pixels, labels in zip(NAMES, PIXELS, LABELS, strict=True):
        np.hstack([labels[:, None].astype(np.uint8), pixels]).tofile(folder / f"{name}.bin")


def python10(folder: Path, protocol: int = 2) -> None:
    for name, pixels, labels in zip(NAMES, PIXELS, LABELS, strict=True):
        content = {b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"batch", b"filenames": [b"a", b"b"]}
        (folder / name).write_bytes(pickle.dumps(content, protocol))


def image(pixels: np.ndarray) -> np.ndarray:
    """The published definition: 1,024 red, 1,024 green, 1,024 blue values, each row by row."""
    return np.stack([pixels[1024 * c : 1024 * (c + 1)].reshape(32, 32) for c in range(3)], axis=-1)


@pytest.mark.parametrize(
    "layout, below",
    [(binary10, ""), (python10, ""), (binary10, "cifar-10-batches-bin"), (python10, "cifar-10-batches-py")],
)
def test_both_layouts_give_the_same_rows(
    layout: Any, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / below).mkdir(exist_ok=True)
    layout(tmp_path / below)
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path))
    for train, test in cifar10(tmp_path), cifar10():
        assert (train.rows, test.rows) == (10, 2)
        assert train.y.tolist() == LABELS[:5].ravel().tolist() and test.y.tolist() == LABELS[5].tolist()
        x, _ = test.take(np.array([1]))
        assert x.shape == (1, 32, 32, 3) and x.dtype == np.float32
        np.testing.assert_allclose(x[0], image(PIXELS[5, 1]) / 255, rtol=1e-6)


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_cifar100_gives_fine_labels(layout: str, tmp_path: Path) -> None:
    coarse, fine = np.array([1, 2]), np.array([77, 99])
    folder = tmp_path / f"cifar-100-{layout}"
    folder.mkdir()
    for name, pixels in ("train", PIXELS[0]), ("test", PIXELS[1]):
        if layout == "binary":
            np.hstack([np.stack([coarse, fine], 1).astype(np.uint8), pixels]).tofile(folder / f"{name}.bin")
        else:
            content = {b"data": pixels, b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist()}
            (folder / name).write_bytes(pickle.dumps(content, 2))
    train, test = cifar100(tmp_path)
    assert train.y.tolist() == [77, 99]
    np.testing.assert_array_equal(test.x[0], image(PIXELS[1, 0]))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "f4", "?"])
def test_arrays_of_every_protocol_order_and_type_survive(protocol: int, order: str, dtype: str, tmp_path: Path) -> None:
    values = np.asarray(RNG.integers(2, size=(3, 4)).astype(dtype), order=order)  # type: ignore[call-overload]
    (tmp_path / "file").write_bytes(pickle.dumps({"a": [values, 1, "text"]}, protocol))
    content = load_arrays(tmp_path / "file")
    got = np.asarray(next(iter(content.values()))[0])
    np.testing.assert_array_equal(got, values)
    assert got.dtype == values.dtype


def test_a_pickle_written_by_python_2(tmp_path: Path) -> None:
    """Protocol 2 with byte strings, as published: written out by hand, because Python 3 cannot write it."""
    raw = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x02\x07\x08tbU\x06labels]K\x05au."
    )
    (tmp_path / "file").write_bytes(raw)
    content = load_arrays(tmp_path / "file")
    assert np.asarray(content[b"data"]).tolist() == [[7, 8]] and content[b"labels"] == [5]


class Evil:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("function", [os.system, builtins.eval, builtins.getattr, np.load, np.fromfile, pickle.loads])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_but_arrays_is_called(function: Any, protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "train").write_bytes(pickle.dumps({b"data": Evil(function, f"touch {marker}")}, protocol))
    with pytest.raises(ForbiddenPickle, match="A pickle asks for") as caught:
        cifar100(tmp_path)
    assert isinstance(caught.value, ValueError) and not marker.exists()


@pytest.mark.parametrize(
    "name", ["cos\nsystem\n.", "cnumpy\nndarray.__reduce__\n.", "ctoolkit.data.cifar\nPath\n.", "cnumpy\nload\n."]
)
def test_no_other_name_is_even_looked_up(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(name.encode())
    with pytest.raises(ForbiddenPickle):
        load_arrays(tmp_path / "file")


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(pickle.dumps(np.array([{}, None]), 2))
    with pytest.raises(DamagedData, match="object"):
        load_arrays(tmp_path / "file")


def test_damaged_files_are_errors(tmp_path: Path) -> None:
    binary10(tmp_path)
    for content in b"", bytes(3072), bytes(3074):
        (tmp_path / "data_batch_3.bin").write_bytes(content)
        with pytest.raises(DamagedData, match=r"data_batch_3\.bin"):
            cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    wrong = [
        b"",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": PIXELS[0]}),
        pickle.dumps({b"data": PIXELS[0], b"labels": [1]}),
        pickle.dumps({b"data": PIXELS[0] / 2, b"labels": [1, 2]}),
        pickle.dumps({b"data": PIXELS[0], b"labels": [1, 2]})[:-9],
    ]
    for content in wrong:
        (tmp_path / "data_batch_3").write_bytes(content)
        with pytest.raises(DamagedData, match="data_batch_3"):
            cifar10(tmp_path)


def test_a_missing_file_says_which_and_from_where(tmp_path: Path) -> None:
    binary10(tmp_path)
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(MissingData, match=r"test_batch.bin \(binary layout\).*kriz.*data_dir"):
        cifar10(tmp_path)

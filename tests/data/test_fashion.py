"""The embedded images, the complete set where it is installed, and damaged files."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from toolkit.data import fashion
from toolkit.data.embedded.make_subset import choose, subset, write
from toolkit.data.fashion import DEBIAN, SHA256, SUBSET, as_cifar, fashion_mnist
from toolkit.data.idx import read_idx
from toolkit.data.sources import DamagedData, MissingData

complete = pytest.mark.skipif(not DEBIAN.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed")


def idx(values: np.ndarray, code: int = 0x08) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, code, values.ndim, *values.shape) + values.tobytes()


def test_the_subset_is_balanced_and_scaled() -> None:
    for part, per_class in zip(fashion_mnist(), (1000, 200), strict=True):
        assert np.bincount(part.y).tolist() == [per_class] * 10
        x, y = part.take(np.arange(64))
        assert x.shape == (64, 28, 28, 1) and x.dtype == np.float32 and y.dtype == np.int32
        assert x.min() == 0 and 0.9 < x.max() <= 1
        assert part.x.dtype == np.uint8, "bytes in memory"


def test_classes_look_different() -> None:
    """A nearest-mean classifier does far better than chance, so images and labels belong together."""
    train, test = fashion_mnist()
    means = np.array([train.x[train.y == label].mean(axis=0).ravel() for label in range(10)])
    x, y = test.take(np.arange(500))
    distance = ((x.reshape(500, 1, -1) - means / 255) ** 2).sum(axis=2)
    assert (distance.argmin(axis=1) == y).mean() > 0.6


def test_the_notice_names_licence_and_checksum() -> None:
    notice = SUBSET.with_name("NOTICE").read_text()
    assert SHA256 in notice and "MIT License" in notice and "Zalando" in notice and "1708.07747" in notice
    assert hashlib.sha256(SUBSET.read_bytes()).hexdigest() == SHA256


def test_a_damaged_subset_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytearray(SUBSET.read_bytes())
    raw[len(raw) // 2] ^= 1
    for content in raw, raw[:-1], b"":
        (tmp_path / "damaged.npz").write_bytes(content)
        monkeypatch.setattr(fashion, "SUBSET", tmp_path / "damaged.npz")
        with pytest.raises(DamagedData, match="SHA-256"):
            fashion_mnist()


def test_archives_carry_no_time(tmp_path: Path) -> None:
    rows = choose(np.repeat(np.arange(10, dtype=np.uint8), 3), 2, np.random.default_rng(0))
    assert np.bincount(rows // 3).tolist() == [2] * 10
    first, second = (write(tmp_path / name, {"rows": rows}) for name in ("a.npz", "b.npz"))
    assert first == second
    with np.load(tmp_path / "a.npz") as arrays:
        np.testing.assert_array_equal(arrays["rows"], rows)


@complete
def test_the_script_makes_the_embedded_arrays() -> None:
    made = subset()
    with np.load(SUBSET) as embedded:
        assert set(embedded) == set(made)
        for name, values in made.items():
            np.testing.assert_array_equal(embedded[name], values)


@complete
def test_the_complete_set_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLKIT_DATA", raising=False)
    train, test = fashion_mnist("complete")
    assert (train.rows, test.rows) == (60_000, 10_000) and np.bincount(train.y).tolist() == [6000] * 10


@pytest.mark.parametrize("zipped", [True, False])
def test_a_data_dir_is_read_gzipped_or_not(tmp_path: Path, zipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = np.arange(2 * 784, dtype=np.uint8).reshape(2, 28, 28), np.array([3, 9], np.uint8)
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for part in "train", "t10k":
        for name, values in ("images-idx3", images), ("labels-idx1", labels):
            raw = idx(values)
            path = folder / f"{part}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(raw) if zipped else raw)
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path))
    for train, test in fashion_mnist("complete"), fashion_mnist("complete", folder):
        np.testing.assert_array_equal(train.x[..., 0], images)
        np.testing.assert_array_equal(test.y, labels)


def test_a_missing_file_says_which_and_from_where(tmp_path: Path) -> None:
    with pytest.raises(
        MissingData, match=r"train-images-idx3-ubyte.gz \(IDX.*dataset-fashion-mnist.*data_dir"
    ) as caught:
        fashion_mnist("complete", tmp_path)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, FileNotFoundError)
    with pytest.raises(ValueError, match="'subset'"):
        fashion_mnist("half")


@pytest.mark.parametrize(
    "code, dtype", [(0x08, "u1"), (0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")]
)
def test_idx_reads_every_type(code: int, dtype: str, tmp_path: Path) -> None:
    values = np.arange(6).reshape(1, 2, 3).astype(dtype)
    (tmp_path / "file").write_bytes(idx(values, code))
    np.testing.assert_array_equal(read_idx(tmp_path / "file"), values)


def test_damaged_idx_is_an_error(tmp_path: Path) -> None:
    whole = idx(np.zeros((2, 3), np.uint8))
    zipped = gzip.compress(whole)
    wrong = [
        b"",
        whole[:-1],
        whole + b"x",
        b"\1" + whole[1:],
        b"\0\0\x07" + whole[3:],
        zipped[:-9],
        zipped[:12] + b"??" + zipped[14:],
    ]
    for content in wrong:
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(DamagedData, match="IDX"):
            read_idx(tmp_path / "file")


def test_as_cifar_pads_with_zeros_and_repeats_the_channel() -> None:
    x = np.random.default_rng(0).integers(1, 256, (3, 28, 28, 1)).astype(np.uint8)
    padded = as_cifar(x)
    assert padded.shape == (3, 32, 32, 3) and padded.dtype == x.dtype
    np.testing.assert_array_equal(padded[:, 2:-2, 2:-2], np.repeat(x, 3, axis=3))
    assert padded.astype(int).sum() == 3 * x.astype(int).sum()
    with pytest.raises(ValueError, match="28 x 28"):
        as_cifar(padded)

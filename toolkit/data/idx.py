"""The IDX format of the MNIST family: a magic number, sizes, then values; big-endian, often gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.data.sources import DamagedData

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path | str) -> NDArray[Any]:
    """The array in an IDX file, gzipped or not.

    Two zero bytes, a type, the number of dimensions d, then d sizes of four bytes each, then the values.

    Raises
    ------
    DamagedData
        The content is not IDX, or ends early or late.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(bytes([0, 0, 0x08, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9])), file.flush()
    ...     read_idx(file.name)
    array([[7, 8, 9]], dtype=uint8)
    """
    raw = Path(path).read_bytes()
    try:
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        zero, code, dimensions = struct.unpack_from(">HBB", raw)
        shape = struct.unpack_from(f">{dimensions}I", raw, 4)
        dtype, start = np.dtype(TYPES[code]), 4 + 4 * dimensions
        if zero or len(raw) != start + dtype.itemsize * math.prod(shape):
            raise ValueError(f"{len(raw)} bytes for shape {shape}")
    except (OSError, EOFError, zlib.error, struct.error, KeyError, ValueError) as reason:
        raise DamagedData(
            f"{path} could not be read as IDX ({type(reason).__name__}: {reason}). The header, the sizes and the "
            "number of values must agree. Get the file again."
        ) from reason
    return np.frombuffer(raw, dtype, offset=start).reshape(shape)

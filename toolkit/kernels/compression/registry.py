"""The two functions by which a place encodes and decodes, given a codec as its text."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from toolkit.kernels.calls import read_call
from toolkit.kernels.compression import half, power_sgd, quantize, random_k, sign, top_k
from toolkit.kernels.compression.contract import Memory, Payload, SeedKey, Vector


class Kernel(NamedTuple):
    """Both directions of a codec; its own arguments come last."""

    encode: Callable[..., tuple[Payload, Memory]]
    decode: Callable[..., Vector]


KERNELS = {
    "top_k": Kernel(top_k.encode, top_k.decode),
    "random_k": Kernel(random_k.encode, random_k.decode),
    "sign": Kernel(sign.encode, sign.decode),
    "qsgd": Kernel(quantize.encode, quantize.decode),
    "power_sgd": Kernel(power_sgd.encode, power_sgd.decode),
    "fp16": Kernel(half.encode, half.decode),
}


def encode(codec: str, vector: ArrayLike, memory: Memory, seed_key: SeedKey) -> tuple[Payload, Memory]:
    """Shorten a flat vector to the buffers that travel.

    Parameters
    ----------
    codec : str
        Its complete text, such as ``"top_k(0.01)"`` or ``"power_sgd(2, 'own')"``.
    vector : array [n], float32 or float64
        The update and what earlier rounds left over; it is not changed.
    memory : array or None
        What this codec returned last time for this span at this place; None at first.
    seed_key : tuple of int, >= 0
        Such as (seed, clock). Payloads that are to be added need the same key.

    Returns
    -------
    payload : tuple of arrays
        One flat array if the codec is linear.
    memory : array or None
        To be kept for the next time.

    Raises
    ------
    ValueError
        If the text is no known codec.
    TypeError
        If the vector is not flat or not of floats.

    Examples
    --------
    >>> import numpy as np
    >>> from toolkit.kernels.compression.registry import decode, encode
    >>> payload, _ = encode("top_k(0.5)", np.array([1.0, -3.0, 2.0, 0.5]), None, (0, 1))
    >>> decode("top_k(0.5)", payload, 4, (0, 1))
    array([ 0., -3.,  2.,  0.])
    """
    kernel, args, named = _resolve(codec)
    flat = np.asarray(vector)
    if flat.ndim != 1 or flat.dtype not in (np.float32, np.float64):
        raise TypeError(
            f"{codec} was given an array of shape {flat.shape} and type {flat.dtype}. "
            "A codec works on one flat vector of float32 or float64. Ravel or convert the array first."
        )
    return kernel.encode(flat, memory, seed_key, *args, **named) if flat.size else ((flat,), memory)


def decode(codec: str, payload: Payload, n: int, seed_key: SeedKey) -> Vector:
    """Restore the vector [n] that a payload, or a sum of linear payloads, stands for.

    The type is that of the vector that was encoded, but float32 under ``fp16()``. Parameters as in :func:`encode`.

    Examples
    --------
    >>> import numpy as np
    >>> from toolkit.kernels.compression.registry import decode, encode
    >>> payload, _ = encode("sign()", np.array([1.0, -3.0]), None, (0, 1))
    >>> decode("sign()", payload, 2, (0, 1))
    array([ 2., -2.])
    """
    kernel, args, named = _resolve(codec)
    return kernel.decode(payload, n, seed_key, *args, **named) if n else np.zeros(0, payload[0].dtype)


@lru_cache
def _resolve(codec: str) -> tuple[Kernel, tuple[Any, ...], dict[str, Any]]:
    return read_call(codec, KERNELS)

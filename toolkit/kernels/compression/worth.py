"""Whether a codec pays: the seconds it costs beside the seconds that its bytes save."""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np

from toolkit.kernels.compression.registry import decode, encode


class Coded(Protocol):
    """A codec as the control side knows it."""

    def nbytes(self, values: int, itemsize: int = 4) -> int:
        """Bytes of an encoded update."""
        ...


class Wire(Protocol):
    """A link with a bandwidth."""

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        ...


def worth(codec: Coded, values: int, link: Wire, repeats: int = 5) -> dict[str, Any]:
    r"""What a codec costs and saves for one update on this machine.

    It pays when encoding and decoding take less time than the saved bytes on the link, :math:`t_e + t_d < (M - m) / B`.

    Parameters
    ----------
    codec : Codec
        Such as ``top_k(0.01)``.
    values : int, >= 1
        Of the update, as float32.
    link : Link
        Its bandwidth [byte/s] counts.
    repeats : int, >= 1
        The median of so many is taken.

    Returns
    -------
    dict
        `full` and `sent` [byte]; `encode` and `decode` [s], measured here and now; `saved` [s] on the link; `pays`; and
        a `note` in words.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.worth(tk.top_k(0.01), 100_000, tk.Link(bandwidth=1e3))["pays"]
    True
    """
    update = np.random.default_rng(0).standard_normal(values).astype(np.float32)
    text, spent = repr(codec), []
    for repeat in range(repeats):
        began = time.perf_counter()
        payload, _ = encode(text, update, None, (0, repeat))
        middle = time.perf_counter()
        decode(text, payload, values, (0, repeat))
        spent.append((middle - began, time.perf_counter() - middle))
    encoding, decoding = (float(median) for median in np.median(spent, axis=0))
    full, sent = 4 * values, codec.nbytes(values)
    saved = (full - sent) / link.bandwidth
    pays = encoding + decoding < saved
    verb = "pays" if pays else "does not pay"
    note = f"{text} {verb}: {1e3 * (encoding + decoding):.3g} ms of work for {1e3 * saved:.3g} ms less on the link"
    return {
        "full": full,
        "sent": sent,
        "encode": encoding,
        "decode": decoding,
        "saved": saved,
        "pays": pays,
        "note": note,
    }

"""Codecs as the control side knows them: a name, its numbers, and the bytes that an update becomes.

A codec shortens an update on its way. Here it is only described: the text ``top_k(0.01)`` travels in messages and is
resolved where the arrays are; :meth:`Codec.nbytes` tells a simulator what would travel without encoding anything.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from math import ceil, isqrt

from toolkit.core.checks import fraction as share
from toolkit.core.checks import seeding, whole
from toolkit.core.errors import Refused
from toolkit.core.parse import parse
from toolkit.core.records import Record
from toolkit.core.strategy import named


class Codec(Record):
    """How an update travels: equal to, and restored from, its text.

    `name` is the function that made it; `args` are all its arguments, defaults included, so that the text says
    everything. Made by :func:`top_k`, :func:`random_k`, :func:`sign`, :func:`qsgd`, :func:`power_sgd`, :func:`fp16`.

    Examples
    --------
    >>> from toolkit.rewrites.codecs import Codec
    >>> Codec.of("top_k(0.01)").nbytes(1000)
    80
    """

    name: str
    args: tuple[float | str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.args))})"

    @property
    def linear(self) -> bool:
        """Whether payloads of one seed key, each one flat array, may be added before they are decoded."""
        return self.name in ("random_k", "fp16") or self.args[1:] == ("shared",)

    def nbytes(self, values: int, itemsize: int = 4) -> int:
        """Exact length [byte] of the buffers that travel for a span of `values` values of `itemsize` bytes each."""
        if not values:
            return 0
        match self.name, self.args:
            case "top_k", (float(fraction),):
                return _kept(fraction, values) * (4 + itemsize)  # a position takes four bytes
            case "random_k", (float(fraction), int()):
                return _kept(fraction, values) * itemsize
            case "sign", ():
                return -(-values // 8) + itemsize
            case "qsgd", (int(),):
                return values + itemsize
            case "power_sgd", (int(rank), basis):
                rows = isqrt(values - 1) + 1
                columns = -(-values // rows)
                return min(rank, columns) * (rows if basis == "shared" else rows + columns) * itemsize
            case "fp16", ():
                return 2 * values
        raise Refused(
            f"{self!r} has no formula for its bytes. It was not made by one of the toolkit's codecs. "
            f"Make it by calling one, such as top_k(0.01)."
        )

    @classmethod
    @lru_cache
    def of(cls, text: str) -> Codec:
        """Restore a codec from its text, which is read and never run; any other text is refused."""
        codec = parse(text)
        if not isinstance(codec, Codec):
            raise Refused(
                f"{text!r} is not the text of a codec. It is a call that makes a {type(codec).__name__}. "
                f"Write it like 'top_k(0.01)'."
            )
        return codec


@named
def top_k(fraction: float) -> Codec:
    r"""Keep the :math:`k = \lceil fraction \cdot n \rceil` values of largest magnitude.

    Their positions travel with them. Ties go to the lowest position. The product is that of the decimal number as
    written: 7 % of 100 values are 7.

    Parameters
    ----------
    fraction : float, in (0, 1]
        1 keeps every bit of every value. Outside, it is refused.

    References
    ----------
    Aji and Heafield, "Sparse communication for distributed gradient descent", 2017.
    Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", 2018.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.top_k(0.01), tk.top_k(0.01).nbytes(1_000_000)
    (top_k(0.01), 80000)
    """
    return Codec("top_k", (float(share("fraction", fraction)),))


@named
def random_k(fraction: float, seed: int = 0) -> Codec:
    r"""Keep :math:`k = \lceil fraction \cdot n \rceil` values at random positions.

    Everyone draws the same positions, so that none travel. Values are not scaled by :math:`n / k`: what is not sent is
    kept for later by the error feedback. It is linear.

    Parameters
    ----------
    fraction : float, in (0, 1]
        1 keeps every bit of every value. Outside, it is refused.
    seed : int, 0 to 2**64 - 1
        Joins the seed key of the run in the draw.

    References
    ----------
    Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", 2018.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.random_k(0.01), tk.random_k(0.01).linear, tk.random_k(0.01).nbytes(1000)
    (random_k(0.01, 0), True, 40)
    """
    return Codec("random_k", (float(share("fraction", fraction)), seeding(seed)))


@named
def sign() -> Codec:
    r"""Send one bit for each value and one scale for all.

    :math:`x_i \to \mathrm{sign}(x_i)\, \frac1n \sum_j |x_j|`.

    References
    ----------
    Seide et al., "1-bit stochastic gradient descent", 2014.
    Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes", 2019.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.sign(), tk.sign().nbytes(1000)
    (sign(), 129)
    """
    return Codec("sign")


@named
def qsgd(levels: int) -> Codec:
    r"""Round each magnitude at random, without bias, to `levels` steps of the largest.

    With :math:`m = \max_j |x_j|`: :math:`x_i \to \mathrm{sign}(x_i) \lfloor levels |x_i| / m + u_i \rfloor m / levels`,
    :math:`u_i` uniform in [0, 1). One byte for each value, and m (which the paper trains with; it analyses the
    Euclidean norm in its place).

    Parameters
    ----------
    levels : int, in 1..127
        1 leaves -m, 0 and m. Outside, it is refused.

    References
    ----------
    Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", 2017.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.qsgd(15), tk.qsgd(15).nbytes(1000)
    (qsgd(15), 1004)
    """
    return Codec("qsgd", (whole("levels", levels, 1, "levels", most=127, why="A level travels in one byte"),))


@named
def power_sgd(rank: int, basis: str = "own") -> Codec:
    r"""Send the factors of a low-rank approximation (PowerSGD).

    Each part of an update is laid out as a near-square matrix M. With its ``"own"`` basis a worker does one power
    iteration from its last Q: :math:`P = \mathrm{orth}(M Q)`, :math:`Q = M^T P`, sends both, and M is restored as
    :math:`P Q^T`. With a ``"shared"`` basis Q is orthonormal and drawn alike by all, and only M Q travels: this is
    linear, but finds no dominant directions.

    Parameters
    ----------
    rank : int, >= 1
        At most the smaller side of M is used; from about half of that on nothing is saved. Below 1, it is refused.
    basis : {"own", "shared"}

    References
    ----------
    Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression", 2019.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.power_sgd(2), tk.power_sgd(2).nbytes(1_000_000), tk.power_sgd(2, basis="shared").linear
    (power_sgd(2, 'own'), 16000, True)
    """
    rank = whole("rank", rank, 1, "columns")
    if basis not in ("own", "shared"):
        raise Refused(
            f"basis={basis!r} is unknown. A basis is kept by each worker or drawn alike by all. Use 'own' or 'shared'."
        )
    return Codec("power_sgd", (rank, str(basis)))


@named
def fp16() -> Codec:
    """Send each value as a 16-bit float.

    Values beyond ±65504 are cut to it. It is linear; sums of payloads are 16-bit too.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.fp16(), tk.fp16().linear, tk.fp16().nbytes(1000)
    (fp16(), True, 2000)
    """
    return Codec("fp16")


def _kept(fraction: float, values: int) -> int:
    # decimal: in binary, 0.07 * 100 is a little more than 7
    return ceil(Decimal(repr(fraction)) * values)

"""What messages cost between hosts: latency and bandwidth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.core.checks import amount, native, positive
from toolkit.core.errors import Refused
from toolkit.core.messages import PlaceName


@dataclass(frozen=True)
class Link:
    r"""A link that takes :math:`\alpha + m / B` seconds for m bytes.

    The bytes of several messages follow each other.

    Parameters
    ----------
    latency : float [s], >= 0
        :math:`\alpha`.
    bandwidth : float [byte/s], > 0
        B in each direction (full duplex); ``inf`` is allowed.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.Link(latency=1e-4, bandwidth=1e9)
    Link(latency=0.0001, bandwidth=1000000000.0)
    """

    latency: float = 0.0
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        bandwidth = positive("bandwidth", self.bandwidth, "bytes per second", infinite=True)
        object.__setattr__(self, "latency", amount("latency", self.latency, "seconds"))
        object.__setattr__(self, "bandwidth", bandwidth)


@dataclass(frozen=True)
class Links:
    """Links that differ by pair of hosts.

    Parameters
    ----------
    default : Link
    pairs : {(source host, target host): Link}

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.Links(tk.Link(1e-4, 1e9), {(0, 1): tk.Link(1e-2, 1e6)}).between(0, 1).latency
    0.01
    """

    default: Link
    pairs: Mapping[tuple[PlaceName, PlaceName], Link]

    def __post_init__(self) -> None:
        pairs = native([*self.pairs.items()]) if isinstance(self.pairs, Mapping) else [(self.pairs, None)]
        fits = all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(link, Link) for pair, link in pairs)
        if not fits or not isinstance(self.default, Link):
            raise Refused(
                f"Links({self.default!r}, {self.pairs!r}) are no links. Each pair of hosts has its own or the default. "
                f"Write for example Links(Link(1e-4, 1e9), {{(0, 1): Link(1e-2, 1e6)}})."
            )
        object.__setattr__(self, "pairs", dict(pairs))

    def between(self, source: PlaceName, target: PlaceName) -> Link:
        """The link from one host to another."""
        return self.pairs.get((source, target), self.default)

"""How long things take in virtual time: step times of workers, latency and bandwidth of links.

A step time is a function of (worker, number of the step, virtual time, seed), the same whoever asks first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from toolkit.core.checks import positive
from toolkit.core.draws import uniform
from toolkit.core.errors import Refused
from toolkit.core.messages import PlaceName, Worker

_NORMAL = NormalDist()


class StepTime(Protocol):
    """Seconds of one step of a worker."""

    def __call__(self, worker: Worker, index: int, now: float, seed: int) -> float:
        """Seconds of step number `index` of `worker`, begun at `now` [s]."""
        ...


def each(values: Sequence[float] | None, worker: Worker) -> float:
    """The value of a worker; workers past the end of the list start over; 1 without a list."""
    return 1.0 if values is None else values[worker % len(values)]


def _checked(name: str, values: Sequence[float], unit: str) -> tuple[float, ...]:
    if not len(values):
        raise Refused(f"{name} was given no value. Each worker needs one. Give one number, or one for each worker.")
    for value in values:
        positive(name, value, unit)
    return tuple(float(value) for value in values)


@dataclass(frozen=True)
class constant:
    """Every step of a worker takes the same time.

    Parameters
    ----------
    seconds : float or list of float [s], > 0
        For all workers, or one for each (a longer cluster starts over).

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.constant([1.0, 2.0])(1, 0, 0.0, seed=0)
    2.0
    """

    seconds: float | Sequence[float]

    def __post_init__(self) -> None:
        values = self.seconds if isinstance(self.seconds, Sequence) else (self.seconds,)
        object.__setattr__(self, "seconds", _checked("constant", values, "seconds"))

    def __call__(self, worker: Worker, index: int, now: float, seed: int) -> float:
        return each(self.seconds, worker)  # type: ignore[arg-type]


@dataclass(frozen=True)
class lognormal:
    r"""Log-normal step times: :math:`median \cdot e^{\sigma Z} \cdot speed_w`.

    Z is standard normal, drawn anew for each step of each worker.

    Parameters
    ----------
    median : float [s], > 0
    sigma : float, >= 0
        0 is constant.
    speeds : list of float, optional
        Factor on the time of each worker; 2 is half as fast.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.lognormal(0.1, 0.0, speeds=[1, 2])(1, 0, 0.0, seed=0)
    0.2
    """

    median: float
    sigma: float
    speeds: Sequence[float] | None = None

    def __post_init__(self) -> None:
        positive("median", self.median, "seconds")
        if not 0 <= self.sigma < math.inf:
            raise Refused(
                f"sigma={self.sigma!r} is not a spread. The logarithm has a standard deviation from 0 on. "
                f"Give sigma >= 0."
            )
        if self.speeds is not None:
            object.__setattr__(self, "speeds", _checked("speeds", self.speeds, "times the common step time"))

    def __call__(self, worker: Worker, index: int, now: float, seed: int) -> float:
        spread = math.exp(self.sigma * _NORMAL.inv_cdf(uniform(seed, worker, index))) if self.sigma else 1.0
        return self.median * spread * each(self.speeds, worker)


@dataclass(frozen=True)
class exponential:
    r"""Exponential step times: :math:`-mean \cdot \ln U \cdot speed_w`, U uniform in (0, 1).

    The mean round of BSP over n equal workers is :math:`mean \cdot H_n`, with :math:`H_n = \sum_{i \le n} 1/i`.

    Parameters
    ----------
    mean : float [s], > 0
    speeds : list of float, optional
        Factor on the time of each worker; 2 is half as fast.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.exponential(1.0)(0, 0, 0.0, seed=0) > 0
    True
    """

    mean: float
    speeds: Sequence[float] | None = None

    def __post_init__(self) -> None:
        positive("mean", self.mean, "seconds")
        if self.speeds is not None:
            object.__setattr__(self, "speeds", _checked("speeds", self.speeds, "times the common step time"))

    def __call__(self, worker: Worker, index: int, now: float, seed: int) -> float:
        return -self.mean * math.log(uniform(seed, worker, index)) * each(self.speeds, worker)


@dataclass(frozen=True)
class recorded:
    """Step times read off a run, over and over.

    Step i of a worker with k recorded times takes that of number i modulo k.

    Parameters
    ----------
    seconds : {worker: list of float [s], > 0}
        A worker that is not in it is refused when it begins a step.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.recorded({0: [0.1, 0.3]})(0, 3, 0.0, seed=0)
    0.3
    """

    seconds: Mapping[Worker, Sequence[float]]

    def __post_init__(self) -> None:
        values = {int(w): _checked(f"recorded[{w}]", times, "seconds") for w, times in self.seconds.items()}
        object.__setattr__(self, "seconds", values)

    def __call__(self, worker: Worker, index: int, now: float, seed: int) -> float:
        if worker not in self.seconds:
            raise Refused(
                f"Worker {worker} has no recorded step time; recorded are the workers {sorted(self.seconds)}. "
                f"A simulated worker needs one. Record all workers, or simulate only these."
            )
        times = self.seconds[worker]
        return times[index % len(times)]


@dataclass(frozen=True)
class slowed:
    """A worker that is slower in a window of time.

    Parameters
    ----------
    step : step time
        Of the undisturbed cluster.
    worker : int
    factor : float, > 0
        On the time of a step that begins in ``[start, stop)``.
    start, stop : float [s]

    Examples
    --------
    >>> import toolkit as tk
    >>> step = tk.slowed(tk.constant(1.0), worker=2, factor=3.0, start=10.0)
    >>> step(2, 0, 5.0, seed=0), step(2, 0, 15.0, seed=0), step(1, 0, 15.0, seed=0)
    (1.0, 3.0, 1.0)
    """

    step: StepTime
    worker: Worker
    factor: float
    start: float = 0.0
    stop: float = math.inf

    def __post_init__(self) -> None:
        positive("factor", self.factor, "times the undisturbed step time")

    def __call__(self, worker: Worker, index: int, now: float, seed: int) -> float:
        slow = worker == self.worker and self.start <= now < self.stop
        return self.step(worker, index, now, seed) * (self.factor if slow else 1.0)


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
        if not 0 <= self.latency < math.inf:
            raise Refused(
                f"latency={self.latency!r} is not a time from 0 s on. A message cannot arrive before it is sent. "
                f"Give latency >= 0."
            )
        if not self.bandwidth > 0:
            raise Refused(
                f"bandwidth={self.bandwidth!r} is not positive. Nothing would ever arrive. "
                f"Give bytes per second above zero."
            )


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

    def between(self, source: PlaceName, target: PlaceName) -> Link:
        """The link from one host to another."""
        return self.pairs.get((source, target), self.default)

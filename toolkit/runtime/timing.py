"""How long steps take in virtual time.

A step time is a function of (worker, number of the step, virtual time, seed), the same whoever asks first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from statistics import NormalDist
from typing import Any, Final, Protocol

from toolkit.core.checks import amount, function, native, positive, whole
from toolkit.core.draws import choose, uniform
from toolkit.core.errors import Refused
from toolkit.core.messages import Worker

_NORMAL = NormalDist()
#: Log-normal times with a larger spread leave the range of floats.
_SIGMA: Final = 50


class StepTime(Protocol):
    """Seconds of one step of a worker."""

    def __call__(self, worker: Worker, index: int, now: float, seed: int) -> float:
        """Seconds of step number `index` of `worker`, begun at `now` [s]."""
        ...


def step_time(given: StepTime | float) -> StepTime:
    """A number is the constant step time; refuse what is neither that nor a function of worker, step, time, seed."""
    if isinstance(native(given), Real):
        return constant(given)  # type: ignore[arg-type]
    function("step", given, "worker", "index", "now", "seed")
    return given  # type: ignore[return-value]


def each(values: Sequence[float] | None, worker: Worker) -> float:
    """The value of a worker; workers past the end of the list start over; 1 without a list."""
    return 1.0 if values is None else values[worker % len(values)]


def _checked(name: str, given: Any, unit: str) -> tuple[float, ...]:
    values = native(given)
    if not isinstance(values, (list, tuple)):
        values = [values]
    if not values:
        raise Refused(f"{name} was given no value. Each worker needs one. Give one number, or one for each worker.")
    return tuple(float(positive(name, value, unit)) for value in values)


def _by_worker(name: str, given: Any) -> dict[Worker, tuple[float, ...]]:
    if not isinstance(given, Mapping) or not given:
        raise Refused(
            f"{name} was given {given!r}, no times of workers. Each worker has its own. "
            f"Give a mapping such as {{0: [0.1, 0.3], 1: [0.2]}}."
        )
    return {whole("worker", w, 0, "workers"): _checked(f"{name}[{w}]", times, "seconds") for w, times in given.items()}


def _own(name: str, seconds: Mapping[Worker, Sequence[float]], worker: Worker) -> Sequence[float]:
    if worker not in seconds:
        raise Refused(
            f"Worker {worker} has no {name} step time; those of the workers {sorted(seconds)} are known. "
            f"A simulated worker needs one. Measure all workers, or simulate only these."
        )
    return seconds[worker]


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
        object.__setattr__(self, "seconds", _checked("constant", self.seconds, "seconds"))

    def __call__(self, worker: Worker, index: int, now: float, seed: int) -> float:
        return each(self.seconds, worker)  # type: ignore[arg-type]


@dataclass(frozen=True)
class lognormal:
    r"""Log-normal step times: :math:`median \cdot e^{\sigma Z} \cdot speed_w`.

    Z is standard normal, drawn anew for each step of each worker.

    Parameters
    ----------
    median : float [s], > 0
    sigma : float, in 0..50
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
        object.__setattr__(self, "median", positive("median", self.median, "seconds"))
        object.__setattr__(self, "sigma", amount("sigma", self.sigma, "standard deviations", most=_SIGMA))
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
        object.__setattr__(self, "mean", positive("mean", self.mean, "seconds"))
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
        object.__setattr__(self, "seconds", _by_worker("recorded", self.seconds))

    def __call__(self, worker: Worker, index: int, now: float, seed: int) -> float:
        times = _own("recorded", self.seconds, worker)
        return times[index % len(times)]


@dataclass(frozen=True)
class empirical:
    """Step times drawn from measured ones, each with the same chance.

    A step of a worker with k times takes any of them with probability 1/k, drawn by seed, worker and step.

    Parameters
    ----------
    seconds : {worker: list of float [s], > 0}
        A worker that is not in it is refused when it begins a step.

    Examples
    --------
    >>> import toolkit as tk
    >>> step = tk.empirical({0: [0.1, 0.3]})
    >>> sorted({step(0, index, 0.0, seed=0) for index in range(9)})
    [0.1, 0.3]
    """

    seconds: Mapping[Worker, Sequence[float]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", _by_worker("empirical", self.seconds))

    def __call__(self, worker: Worker, index: int, now: float, seed: int) -> float:
        times = _own("empirical", self.seconds, worker)
        return times[choose(len(times), seed, worker, index)]


@dataclass(frozen=True)
class slowed:
    """A worker that is slower in a window of time.

    Parameters
    ----------
    step : step time, or float [s]
        Of the undisturbed cluster.
    worker : int
    factor : float, > 0
        On the time of a step that begins in ``[start, stop)``.
    start, stop : float [s], 0 <= start < stop

    Examples
    --------
    >>> import toolkit as tk
    >>> step = tk.slowed(tk.constant(1.0), worker=2, factor=3.0, start=10.0)
    >>> step(2, 0, 5.0, seed=0), step(2, 0, 15.0, seed=0), step(1, 0, 15.0, seed=0)
    (1.0, 3.0, 1.0)
    """

    step: StepTime | float
    worker: Worker
    factor: float
    start: float = 0.0
    stop: float = math.inf

    def __post_init__(self) -> None:
        plain = {
            "step": step_time(self.step),
            "worker": whole("worker", self.worker, 0, "workers"),
            "factor": positive("factor", self.factor, "times the undisturbed step time"),
            "start": amount("start", self.start, "seconds"),
            "stop": positive("stop", self.stop, "seconds", infinite=True),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        if self.start >= self.stop:
            raise Refused(
                f"The window from start={self.start!r} to stop={self.stop!r} is empty. No step could begin in it. "
                f"Give start < stop."
            )

    def __call__(self, worker: Worker, index: int, now: float, seed: int) -> float:
        slow = worker == self.worker and self.start <= now < self.stop
        return self.step(worker, index, now, seed) * (self.factor if slow else 1.0)  # type: ignore[operator]

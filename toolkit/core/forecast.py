"""Forecasts of push times, and what is decided from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from toolkit.core.checks import native
from toolkit.core.errors import Refused

W = TypeVar("W", int, str)


def forecast(times: Sequence[float], count: int) -> list[float]:
    """The next `count` push times if the last gap repeats.

    Parameters
    ----------
    times : two or more push times [s], the newest last
    count : int [pushes], >= 0

    Examples
    --------
    >>> forecast([1.0, 3.0], 2)
    [5.0, 7.0]
    """
    gap = times[-1] - times[-2]
    return [times[-1] + gap * k for k in range(1, count + 1)]


def best_extra(fast: Sequence[float], slow: Sequence[float], limit: int) -> int:
    r"""How many more iterations bring the fast worker closest to a push of the slow one.

    The :math:`r \in 0..limit` of the pair :math:`(r, k)` that minimises :math:`|slow_k - fast_r|`, where
    :math:`fast_0` is the latest push; the smallest such r.

    Parameters
    ----------
    fast, slow : push times [s], the newest last
    limit : int [iterations]

    References
    ----------
    Zhao et al., "Dynamic stale synchronous parallel distributed training for deep learning", ICDCS 2019, Algorithm 2.
    """
    if limit <= 0 or len(fast) < 2 or len(slow) < 2:
        return 0
    ahead, behind = [fast[-1], *forecast(fast, limit)], forecast(slow, limit + 1)
    best, extra, k = math.inf, 0, 0
    for r, time in enumerate(ahead):
        while k + 1 < len(behind) and abs(behind[k + 1] - time) <= abs(behind[k] - time):
            k += 1
        if abs(behind[k] - time) < best:
            best, extra = abs(behind[k] - time), r
    return extra


def zipline(forecasts: Mapping[W, Sequence[float]]) -> dict[W, int]:
    r"""For each worker, how many iterations to run so that all finish closest together.

    Of all choices of one predicted end time per worker, the one with the smallest
    :math:`\max_p e_p - \min_p e_p`; the earliest of several. All predictions are merged in time order and the
    shortest window that still holds one of each worker is kept: :math:`O(N \log N)` for N predictions.

    Parameters
    ----------
    forecasts : {worker: predicted end times [s], ascending}

    Returns
    -------
    {worker: int}
        Iterations to run, from 1.

    Raises
    ------
    Refused
        When a worker has no prediction or one that is not a finite number.

    References
    ----------
    Zhao et al., "Elastic bulk synchronous parallel model for distributed deep learning", ICDM 2019.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.zipline({"a": [1, 2, 3, 4], "b": [4, 8], "c": [3.5, 7]})
    {'a': 4, 'b': 1, 'c': 1}
    """
    forecasts = _ascending(forecasts)
    rank = {worker: i for i, worker in enumerate(forecasts)}
    points = sorted(
        (time, rank[worker], k, worker) for worker, times in forecasts.items() for k, time in enumerate(times, 1)
    )
    inside, missing, start = dict.fromkeys(forecasts, 0), len(forecasts), 0
    best, chosen = math.inf, (0, 0)
    for end, (latest, _, _, worker) in enumerate(points):
        missing -= not inside[worker]
        inside[worker] += 1
        while not missing:
            first, _, _, oldest = points[start]
            if latest - first < best:
                best, chosen = latest - first, (start, end)
            inside[oldest] -= 1
            missing += not inside[oldest]
            start += 1
    window = points[chosen[0] : chosen[1] + 1]
    last = {worker: k for _, _, k, worker in reversed(window)}
    return {worker: last[worker] for worker in forecasts if worker in last}


def _ascending(forecasts: Any) -> Mapping[Any, Sequence[float]]:
    if not isinstance(forecasts, Mapping):
        raise Refused(
            f"zipline was given {forecasts!r}, which is a {type(forecasts).__name__}. It chooses among the predicted "
            f"end times of each worker. Give a mapping such as {{0: [1.0, 2.0], 1: [1.5]}}."
        )
    plain = {worker: native(times) for worker, times in forecasts.items()}
    for worker, times in plain.items():
        numbers = isinstance(times, (list, tuple)) and all(type(time) in (int, float) for time in times)
        if not numbers or not times or not all(map(math.isfinite, times)) or any(b < a for a, b in pairwise(times)):
            raise Refused(
                f"Worker {worker} has the predicted end times {times!r}. Times are finite and ascend, and each "
                f"worker has one. Predict at least one iteration per worker."
            )
    return plain

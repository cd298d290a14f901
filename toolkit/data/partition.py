"""Ways of distributing rows over workers, for runs in which each worker learns from rows of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from toolkit.core.checks import amount, positive
from toolkit.core.errors import Refused
from toolkit.core.messages import Worker
from toolkit.data.sampling import DEAL, generator

Positions: TypeAlias = NDArray[np.int64]
Labels: TypeAlias = NDArray[Any]
Split: TypeAlias = Callable[[int, list[Worker], Labels, np.random.Generator], Sequence[Positions]]


@dataclass(frozen=True)
class Way:
    """How rows are distributed over workers: the call that made it, as which it is written, compared and pickled.

    Parameters
    ----------
    maker : callable
        The function that makes it, such as :func:`dirichlet`.
    args : tuple
        All arguments of that call.
    split : callable
        ``(rows, workers, labels, generator)`` to the positions of each worker, in order.
    labelled : bool
        Whether it looks at labels.
    """

    maker: Callable[..., Way]
    args: tuple[Any, ...]
    split: Split = field(compare=False)
    labelled: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        return f"{self.maker.__name__}({', '.join(map(repr, self.args))})"

    def __reduce__(self) -> tuple[Callable[..., Way], tuple[Any, ...]]:
        return self.maker, self.args

    def __call__(
        self, rows: int, workers: Sequence[Worker], seed: int, labels: Labels | None = None
    ) -> dict[Worker, Positions]:
        """The ascending positions that each worker owns: a function of these arguments alone.

        Parameters
        ----------
        rows : int, >= 1
        workers : sequence of int
            In any order; the result does not depend on it.
        seed : int, 0 to 2**64 - 1
        labels : array [rows] of whole numbers, optional
            Needed if `labelled`.

        Returns
        -------
        dict of worker to array
            A worker may own no row.
        """
        members = sorted(set(workers))
        if rows < 1 or not members or len(members) < len(workers):
            raise Refused(
                f"{self} was asked to deal {rows} rows to workers {list(workers)}. Each row needs an owner. "
                "Deal at least one row, and name at least one worker, each once."
            )
        known = _checked(self, rows, labels) if self.labelled else np.empty(0)
        owned = self.split(rows, members, known, generator(seed, DEAL))
        return {worker: np.sort(mine) for worker, mine in zip(members, owned, strict=True)}


def shuffled() -> Way:
    """Equal random shares: every worker sees the same distribution.

    Sizes differ by at most one row. For the option `deal` of :func:`train`.

    Examples
    --------
    >>> import toolkit as tk
    >>> dealt = tk.shuffled()(10, [0, 1, 2], seed=0)  # 10 rows to the workers 0, 1 and 2
    >>> {worker: rows.size for worker, rows in dealt.items()}
    {0: 3, 1: 4, 2: 3}
    """
    return Way(shuffled, (), lambda rows, workers, _, rng: _shares(rng.permutation(rows), np.ones(len(workers))))


def contiguous() -> Way:
    """Equal consecutive shares, as the rows lie: what reading a file in pieces gives.

    For the option `deal` of :func:`train`.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.contiguous()(5, [0, 1], seed=0)  # 5 rows to the workers 0 and 1
    {0: array([0, 1, 2]), 1: array([3, 4])}
    """
    return Way(contiguous, (), lambda rows, workers, *_: _shares(np.arange(rows), np.ones(len(workers))))


def by_label() -> Way:
    """Equal shares of the rows sorted by label: each worker sees as few labels as possible.

    For the option `deal` of :func:`train`; the problem must have one whole-number label per row.

    References
    ----------
    McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017.

    Examples
    --------
    >>> import numpy as np
    >>> import toolkit as tk
    >>> tk.by_label()(4, [0, 1], seed=0, labels=np.array([1, 0, 1, 0]))  # 4 rows to the workers 0 and 1
    {0: array([1, 3]), 1: array([0, 2])}
    """

    def split(_: int, workers: list[Worker], labels: Labels, __: np.random.Generator) -> list[Positions]:
        return _shares(np.argsort(labels, kind="stable"), np.ones(len(workers)))

    return Way(by_label, (), split, labelled=True)


def dirichlet(alpha: float) -> Way:
    r"""Each label's rows in random shares, from equal to disjoint distributions.

    For each label, the shares of the workers are drawn from :math:`\mathrm{Dir}(\alpha, \ldots, \alpha)`. For
    the option `deal` of :func:`train`; the problem must have one whole-number label per row.

    Parameters
    ----------
    alpha : float, > 0
        To infinity every worker sees the same distribution, as in :func:`shuffled`; to 0 each label lies with one
        worker.

    References
    ----------
    Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual classification",
    2019.

    Examples
    --------
    >>> import numpy as np
    >>> import toolkit as tk
    >>> tk.dirichlet(0.3)
    dirichlet(0.3)
    >>> dealt = tk.dirichlet(0.3)(6, [0, 1], seed=0, labels=np.array([0, 0, 0, 1, 1, 1]))
    >>> sorted(np.concatenate([*dealt.values()]).tolist())
    [0, 1, 2, 3, 4, 5]
    """
    alpha = positive("alpha", alpha, "concentrations")

    def split(_: int, workers: list[Worker], labels: Labels, rng: np.random.Generator) -> list[Positions]:
        dealt = [
            _shares(rng.permutation(np.flatnonzero(labels == label)), rng.dirichlet(np.full(len(workers), alpha)))
            for label in np.unique(labels)
        ]
        return [np.concatenate(mine) for mine in zip(*dealt, strict=True)]

    return Way(dirichlet, (float(alpha),), split, labelled=True)


def full_copy() -> Way:
    """All rows at each worker, which reads them in an order of its own.

    For the option `deal` of :func:`train`.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.full_copy()(3, [0, 1], seed=0)  # 3 rows to the workers 0 and 1
    {0: array([0, 1, 2]), 1: array([0, 1, 2])}
    """
    return Way(full_copy, (), lambda rows, workers, *_: [np.arange(rows) for _ in workers])


def by_speed(speeds: Sequence[float]) -> Way:
    r"""Random shares in proportion to speed: all workers end their epochs together.

    Worker w owns :math:`n \, s_w / \sum_v s_v` rows, up to one. For the option `deal` of :func:`train`.

    Parameters
    ----------
    speeds : sequence of float [rows/s, or relative], >= 0
        ``speeds[w]`` is that of worker w; a worker of speed 0 owns nothing.

    Examples
    --------
    >>> import toolkit as tk
    >>> dealt = tk.by_speed([1, 1, 2])(8, [0, 1, 2], seed=0)  # 8 rows to the workers 0, 1 and 2
    >>> {worker: rows.size for worker, rows in dealt.items()}
    {0: 2, 1: 2, 2: 4}
    """
    if isinstance(speeds, str) or not np.iterable(speeds) or not any(map(bool, speeds)):
        raise Refused(
            f"by_speed got speeds {speeds!r}. Each worker has one, and some worker moves. "
            f"Pass one speed per worker, such as (1.0, 1.0, 0.5)."
        )
    known = tuple(float(amount("speed", speed, "rows per time")) for speed in speeds)

    def split(rows: int, workers: list[Worker], _: Labels, rng: np.random.Generator) -> list[Positions]:
        missing = [worker for worker in workers if not 0 <= worker < len(known)]
        own = np.array([known[worker] for worker in workers if worker not in missing])
        if missing or not own.any():
            raise Refused(
                f"by_speed knows speeds {known} but rows are dealt to workers {workers}. speeds[w] is that of worker "
                "w, and some worker moves. Pass a speed for every worker, one of them positive."
            )
        return _shares(rng.permutation(rows), own)

    return Way(by_speed, (known,), split)


WAYS: tuple[Callable[..., Way], ...] = (shuffled, contiguous, by_label, dirichlet, full_copy, by_speed)


def _shares(rows: Positions, weights: NDArray[np.float64]) -> list[Positions]:
    """Consecutive cuts of `rows` in proportion to `weights`, each edge rounded half up."""
    edges = np.floor(len(rows) * np.cumsum(weights / weights.sum()) + 0.5).astype(np.int64)
    return np.split(rows, edges[:-1])


def _checked(way: Way, rows: int, labels: Labels | None) -> Labels:
    if labels is None or labels.shape != (rows,) or labels.dtype.kind not in "bui":
        got = "no labels" if labels is None else f"labels of shape {labels.shape} and type {labels.dtype}"
        raise Refused(
            f"{way} got {got} for {rows} rows. It needs one whole-number label per row. "
            "Give such labels, or use shuffled(), contiguous(), full_copy() or by_speed(), which look at none."
        )
    return labels

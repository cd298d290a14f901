"""What is learned: a model, a loss and rows, as one record."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from toolkit.data.sources import Rows, Source, source, targets
from toolkit.problems.checks import check, form

Measure: TypeAlias = Callable[[Any, Any], jax.Array]
Load: TypeAlias = Callable[..., tuple[Source, Source]]


@dataclass(frozen=True, eq=False)
class Problem:
    r"""A model, a loss and rows.

    The objective on rows :math:`(x_i, y_i)` is the mean (or sum) of ``loss(model(x_i), y_i)``.

    Parameters
    ----------
    name : str
        The call that makes the problem.
    model : callable, nnx.Rngs -> nnx.Module
        Builds the model.
    loss : callable, (outputs, targets) -> one value per row, or one number
        What is minimized.
    train, test : Source
        Rows to learn from and to evaluate on.
    batch : int [rows], >= 1
        Rows per step and worker.
    metrics : mapping of name to callable, (outputs, targets) -> one value per row
        Measured beside the loss.
    blocks : tuple of str
        Attributes of the model in forward order, if it is the composition of these; none: one block.
    reduction : {"mean", "sum"}
        Whether the loss of a batch is the mean over its rows or the sum; of a loss that is one number, what it is.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.problems.digits(batch=16)
    digits(seed=0, batch=16, model='mlp')
    """

    name: str
    model: Callable[[nnx.Rngs], nnx.Module]
    loss: Measure
    train: Source
    test: Source
    batch: int
    metrics: Mapping[str, Measure] = field(default_factory=dict)
    blocks: tuple[str, ...] = ()
    reduction: str = "mean"

    def __post_init__(self) -> None:
        form(self.batch, self.metrics, self.blocks, self.reduction)
        object.__setattr__(self, "metrics", dict(self.metrics))
        object.__setattr__(self, "blocks", tuple(self.blocks))

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Deferred:
    """Rows that travel as the call that loads them: each process loads them once, when it first asks.

    Parameters
    ----------
    load : callable -> (train, test)
        A function of a module, so that it travels by name.
    args : tuple of hashables
        Its arguments.
    part : {0, 1}
        Which of the two sources this is.

    Examples
    --------
    >>> from toolkit.data.fashion import fashion_mnist
    >>> Deferred(fashion_mnist, (), 1).rows
    2000
    """

    load: Load
    args: tuple[Hashable, ...]
    part: int

    @property
    def source(self) -> Source:
        """The rows themselves."""
        return _loaded(self.load, self.args)[self.part]

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.source.rows

    @property
    def chunks(self) -> tuple[int, ...]:
        """Sizes of their chunks along the rows."""
        return self.source.chunks

    def take(self, positions: NDArray[np.integer[Any]]) -> Rows:
        """Inputs and targets of these rows, in this order."""
        return self.source.take(positions)

    def targets(self) -> NDArray[Any]:
        """All targets."""
        return targets(self.source)


@lru_cache(maxsize=8)
def _loaded(load: Load, args: tuple[Hashable, ...]) -> tuple[Source, Source]:
    return load(*args)


def deferred(load: Load, *args: Hashable) -> tuple[Deferred, Deferred]:
    """Train and test rows that travel as a call."""
    return Deferred(load, args, 0), Deferred(load, args, 1)


def problem(
    model: Callable[[nnx.Rngs], nnx.Module],
    loss: Measure,
    train: Any,
    test: Any,
    batch: int = 32,
    metrics: Mapping[str, Measure] | None = None,
    blocks: Sequence[str] = (),
    reduction: str = "mean",
    name: str = "problem",
) -> Problem:
    """A problem from a flax module, a loss and arrays, checked before anything is trained.

    Parameters
    ----------
    model, loss, metrics, blocks, reduction, name
        As in :class:`Problem`.
    train, test : (x, y)
        Inputs and targets, rows along the first axis: NumPy arrays, Dask arrays, xarray variables or Zarr arrays.
    batch : int [rows], from 1 to the rows of `train`
        Rows per step and worker.

    Raises
    ------
    ProblemError
        If labels, outputs, loss and rows do not fit together.

    Examples
    --------
    >>> import numpy as np
    >>> import optax
    >>> from flax import nnx
    >>> import toolkit as tk
    >>> class Net(nnx.Module):
    ...     def __init__(self, rngs):
    ...         self.hidden = nnx.Linear(2, 8, rngs=rngs)
    ...         self.scores = nnx.Linear(8, 3, rngs=rngs)
    ...     def __call__(self, x):
    ...         return self.scores(nnx.relu(self.hidden(x)))
    >>> x = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    >>> y = (x > 0).sum(axis=1)  # classes 0, 1 and 2
    >>> loss = optax.softmax_cross_entropy_with_integer_labels
    >>> mine = tk.problem(Net, loss, train=(x[:80], y[:80]), test=(x[80:], y[80:]), batch=8, name="mine")
    >>> mine
    mine(batch=8)
    >>> run = tk.train(mine, tk.chain(tk.ssp(3), tk.parameter_server()), optimizer="sgd(0.1)",
    ...                on=tk.Simulator(4), until=tk.updates(5), progress=False, name="SSP")
    >>> run
    Run('SSP', chain(ssp(3), parameter_server()), 2 s virtual time, 5 updates, finished)
    """
    call = f"{name}(batch={batch})"
    measures = {} if metrics is None else metrics
    made = Problem(call, model, loss, source(train), source(test), batch, measures, blocks, reduction)  # type: ignore[arg-type]
    check(made)
    return made

"""The work of a worker on one model: gradients, local steps, evaluation, as functions of flat vectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
import optax

from toolkit.core.errors import Refused
from toolkit.core.layout import Layout
from toolkit.kernels.applying import Applier
from toolkit.kernels.vector import Build, StatePolicy, Vector

Rows: TypeAlias = tuple[np.ndarray, np.ndarray]
Measure: TypeAlias = Callable[[Any, Any], jax.Array]


class LossError(Refused):
    """A loss or metric whose result cannot be counted per row."""


class Table(Protocol):
    """Rows that can be taken by position."""

    @property
    def rows(self) -> int:
        """How many there are."""
        ...

    def take(self, positions: np.ndarray) -> Rows:
        """Inputs and targets of these rows, in this order."""
        ...


class Task(Protocol):
    """What a learner must know of a problem."""

    @property
    def model(self) -> Build: ...
    @property
    def loss(self) -> Measure: ...
    @property
    def metrics(self) -> Mapping[str, Measure]: ...
    @property
    def blocks(self) -> tuple[str, ...]: ...
    @property
    def reduction(self) -> str: ...
    @property
    def train(self) -> Table: ...


class Update(NamedTuple):
    """What a worker contributes: to be *subtracted* from the vector it started from.

    `update` [P] is a gradient, or the drift of local steps; in state entries it is old minus new. `norm` is the L2
    norm of its learned part, not finite when training has diverged. `local` [S] is the new local state.
    """

    loss: float
    norm: float
    update: np.ndarray
    local: np.ndarray


class Learner:
    r"""The jitted functions of one problem; each is traced once per shape of its rows.

    For rows :math:`(x_i, y_i)` the objective is the mean (or sum, by ``problem.reduction``) of
    ``loss(model(x_i), y_i)``. Random numbers in the model are a function of the integers in `keys`, for example
    (seed, worker, clock), and of nothing else.

    Parameters
    ----------
    problem : Task
        A model, a loss and rows; see :class:`toolkit.problems.problem.Problem`.
    seed : int
        Of the initial parameters.
    state : {"averaged", "local"}
        Whether batch-norm statistics are part of the vector, or a local state that never travels.

    Examples
    --------
    >>> from toolkit.problems.quadratic import quadratic
    >>> problem = quadratic(dim=3, rows=8, seed=0)
    >>> learner = Learner(problem, seed=0)
    >>> vector, local = learner.initial()
    >>> step = learner.gradient(vector, local, problem.train.take(np.arange(8)), keys=(0, 0, 1))
    >>> step.update.shape
    (3,)
    """

    def __init__(self, problem: Task, seed: int = 0, state: StatePolicy = "averaged") -> None:
        self.problem = problem
        self.seed = seed
        self._first: tuple[np.ndarray, np.ndarray] | None = None
        self.vector = Vector.of(problem.model, problem.blocks, state)
        self._gradient = jax.jit(self.differentiate)
        self._loss = jax.jit(self._forward)
        self._measure = jax.jit(self.sums)
        self._drift = jax.jit(self.difference)

    @property
    def layout(self) -> Layout:
        """The pieces of the vector."""
        return self.vector.layout

    def initial(self) -> tuple[np.ndarray, np.ndarray]:
        """The vector [P] and the local state [S] before the first step."""
        if self._first is None:
            self._first = self.vector.initial(self.problem.model, self.problem.blocks, self.seed)
        return self._first

    def gradient(self, vector: np.ndarray, local: np.ndarray, rows: Rows, keys: Sequence[int]) -> Update:
        """The gradient on some rows; on no rows an update of zeros whose loss is NaN."""
        if len(rows[0]) == 0:
            return Update(float("nan"), 0.0, np.zeros_like(vector), local)
        loss, norm, update, local = self._gradient(vector, local, *map(self.cast, rows), words(keys))
        return Update(float(loss), float(norm), np.asarray(update), np.asarray(local))

    def local_steps(
        self,
        vector: np.ndarray,
        local: np.ndarray,
        batches: Sequence[Rows],
        keys: Sequence[Sequence[int]],
        applier: Applier,
        opt_state: optax.OptState,
        samples: int = 0,
    ) -> tuple[Update, optax.OptState]:
        """The drift (start minus end) of one optimizer step per batch, and the new optimizer state.

        The loss is the mean over all rows; `samples` rows were seen before.
        """
        here, total, seen = vector, 0.0, 0
        for rows, key in zip(batches, keys, strict=True):
            if len(rows[0]) == 0:
                continue
            step = self.gradient(here, local, rows, key)
            here, opt_state = applier.apply(here, opt_state, step.update, samples=samples + seen)
            local, seen, total = step.local, seen + len(rows[0]), total + step.loss * len(rows[0])
        drift, norm = self._drift(vector, here)
        loss = total / seen if seen else float("nan")
        return Update(loss, float(norm), np.asarray(drift), local), opt_state

    def forward(self, vector: np.ndarray, local: np.ndarray, rows: Rows) -> float:
        """The objective on some rows, in evaluation mode."""
        return float(self._loss(vector, local, *map(self.cast, rows)))

    def evaluate(self, vector: np.ndarray, local: np.ndarray, table: Table, batch: int = 256) -> dict[str, float]:
        """The mean loss and metrics over a table, each row counted once, in evaluation mode."""
        sums = dict.fromkeys(("loss", *self.problem.metrics), 0.0)
        for first in range(0, table.rows, batch):
            rows = table.take(np.arange(first, min(first + batch, table.rows)))
            for name, value in self._measure(vector, local, *map(self.cast, rows)).items():
                sums[name] += float(value)
        return {name: total / table.rows for name, total in sums.items()}

    def compile(self, counts: Iterable[int], evaluations: Iterable[int] = ()) -> float:
        """Compile gradients for these row counts, evaluations for those; return the seconds it took."""
        began = time.perf_counter()
        vector, local = (np.zeros(size, self.vector.dtype) for size in (self.layout.size, self.vector.local_size))
        x, y = self.problem.train.take(np.zeros(1, np.int64))
        for count in sorted(set(counts) - {0}):
            self.gradient(vector, local, (np.repeat(x, count, axis=0), np.repeat(y, count, axis=0)), (0, 0, 0))
        for count in sorted(set(evaluations) - {0}):
            rows = (self.cast(np.repeat(values, count, axis=0)) for values in (x, y))
            jax.block_until_ready(self._measure(vector, local, *rows))
        return time.perf_counter() - began

    def cast(self, values: np.ndarray) -> np.ndarray:
        """Floats in the type of the vector; integers as they are."""
        return values.astype(self.vector.dtype, copy=False) if np.issubdtype(values.dtype, np.floating) else values

    def objective(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        """The loss of a batch as one number: the mean or the sum over its rows."""
        values = per_row(self.problem.loss(outputs, targets), len(targets), "loss")
        if values.ndim == 0:
            return values
        return values.sum() if self.problem.reduction == "sum" else values.mean()

    def differentiate(
        self, flat: jax.Array, local: jax.Array, x: jax.Array, y: jax.Array, word: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Loss, norm, update [P] and new local state [S] of some rows, to be traced."""
        params, states = self.vector.unpack(flat, local)

        def objective(params: Any) -> tuple[jax.Array, Any]:
            outputs, after = self.vector.call(params, states, x, fold(word))
            return self.objective(outputs, y), after

        (loss, after), gradient = jax.value_and_grad(objective, has_aux=True)(params)
        return loss, optax.tree.norm(gradient), *self.vector.changes(gradient, states, after)

    def _forward(self, flat: jax.Array, local: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        outputs, _ = self.vector.call(*self.vector.unpack(flat, local), x, None)
        return self.objective(outputs, y)

    def sums(self, flat: jax.Array, local: jax.Array, x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
        """The loss and metrics of some rows, added up; to be traced."""
        outputs, _ = self.vector.call(*self.vector.unpack(flat, local), x, None)
        loss = self.objective(outputs, y) * (1 if self.problem.reduction == "sum" else len(y))
        sums = {name: per_row(f(outputs, y), len(y), name).sum() for name, f in self.problem.metrics.items()}
        return {"loss": loss} | sums

    def difference(self, start: jax.Array, end: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The drift [P] between two vectors and the norm of its learned part, to be traced."""
        drift = start - end
        learned = self.vector.trainable
        return drift, jnp.linalg.norm(drift if learned is None else jnp.where(learned, drift, 0))


def per_row(values: object, rows: int, name: str) -> jax.Array:
    """One real value per row, or an error; a loss is made of floats, and may also be one number."""
    loss = name == "loss"
    kinds = (jnp.floating,) if loss else (jnp.floating, jnp.integer, jnp.bool_)
    if not isinstance(values, jax.Array) or not any(jnp.issubdtype(values.dtype, kind) for kind in kinds):
        found = f"values of type {values.dtype}" if isinstance(values, jax.Array) else f"a {type(values).__name__}"
        why = "Only floats that JAX computed have a gradient to learn from" if loss else "Only real values have a mean"
        raise LossError(
            f"The {name} gives {found} for {rows} rows. {why}. "
            f"Return one {'float' if loss else 'number'} per row, computed from outputs and targets with jax.numpy."
        )
    if values.shape != (rows,) and not (loss and values.ndim == 0):
        raise LossError(
            f"The {name} has the shape {values.shape} for {rows} rows. A mean weighted by rows needs one value per row "
            f"(a loss may also be one number). Reduce the other axes, or give outputs and targets equal shapes."
        )
    return values


@overload
def words(keys: None) -> None: ...
@overload
def words(keys: Sequence[int]) -> np.ndarray: ...
def words(keys: Sequence[int] | None) -> np.ndarray | None:
    """Two words that stand for any number of integers, so that a kernel has one shape; None stays None."""
    if keys is None:
        return None
    # The length comes first: alone, (1,) and (1, 0) would be the same entropy.
    entropy = (len(keys), *(key & 0xFFFFFFFFFFFFFFFF for key in keys))
    return np.random.SeedSequence(entropy).generate_state(2, np.uint32)


def fold(word: jax.Array | None) -> jax.Array | None:
    """The random key made of two words; None, for evaluation, stays None."""
    return None if word is None else jax.random.wrap_key_data(word, impl="threefry2x32")

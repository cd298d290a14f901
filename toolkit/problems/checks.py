"""Whether model, loss and rows fit together, found out without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from toolkit.core.errors import Refused
from toolkit.data.sources import Source, targets
from toolkit.kernels.training import LossError, Measure, Task, per_row
from toolkit.kernels.vector import Vector

# Rows whose shapes are traced: a number that no other axis is likely to have by chance.
PROBE = 97


class ProblemError(Refused):
    """A model, a loss and data that do not fit together."""


class Checked(Task, Protocol):
    """What a check must know of a problem."""

    @property
    def train(self) -> Source: ...
    @property
    def test(self) -> Source: ...
    @property
    def batch(self) -> int: ...


def form(batch: object, metrics: object, blocks: object, reduction: object) -> None:
    """Refuse the parts of a problem that are not what they are called."""
    if not isinstance(batch, int | np.integer) or isinstance(batch, bool) or batch < 1:
        raise ProblemError(
            f"The batch is {batch!r}. A step reads whole rows, at least one. Use a whole number from 1 on."
        )
    if reduction not in ("mean", "sum"):
        raise ProblemError(
            f"The reduction is {reduction!r}. The loss of a batch is the mean or the sum over its rows. "
            f'Use "mean" or "sum".'
        )
    if not isinstance(metrics, Mapping) or not all(isinstance(n, str) and callable(f) for n, f in metrics.items()):
        raise ProblemError(
            f"The metrics are {metrics!r}. Each is a function of outputs and targets and goes by a name. "
            f'Give a mapping such as {{"accuracy": accuracy}}.'
        )
    if "loss" in metrics:
        raise ProblemError(
            'A metric is called "loss". The loss is always measured under this name. Give the metric another name.'
        )
    if isinstance(blocks, str) or not isinstance(blocks, Sequence) or not all(isinstance(name, str) for name in blocks):
        raise ProblemError(
            f"The blocks are {blocks!r}. A block is an attribute of the model and goes by its name. "
            f'Give the names in forward order, such as ("body", "head").'
        )


def check(problem: Checked) -> None:
    """Refuse a problem whose parts do not fit together; shapes only, no step is computed.

    Examples
    --------
    >>> from toolkit.problems.digits import digits
    >>> check(digits(batch=1437))
    """
    rows = problem.train.rows
    if problem.batch > rows:
        raise ProblemError(
            f"The batch is {problem.batch} and there are {rows} rows to learn from. No worker could fill a batch. "
            f"Use a batch of at most {rows}."
        )
    vector = Vector.of(problem.model, problem.blocks)
    for name, table in (("training", problem.train), ("test", problem.test)):
        x, y = table.take(np.zeros(1, np.int64))
        outputs = _outputs(vector, np.broadcast_to(x, (PROBE, *x.shape[1:])), name)
        _fit(problem, outputs, np.broadcast_to(y, (PROBE, *y.shape[1:])), name)
        if np.issubdtype(y.dtype, np.integer) and y.ndim == 1 and len(outputs.shape) == 2:
            _labels(table, outputs.shape[1], name)
    if problem.blocks:
        _composed(problem, vector)


def _outputs(vector: Vector, x: np.ndarray, name: str) -> jax.ShapeDtypeStruct:
    x = x.astype(vector.dtype) if np.issubdtype(x.dtype, np.floating) else x
    params, states = tuple(b.params for b in vector.blocks), tuple(b.state for b in vector.blocks)
    try:
        outputs = jax.eval_shape(lambda p, s, x: vector.call(p, s, x, jax.random.key(0))[0], params, states, x)
    except (TypeError, ValueError, AttributeError) as reason:
        raise ProblemError(
            f"The model does not accept {name} inputs of shape {x.shape} ({x.dtype}): {reason}. A row must have the "
            f"shape that the first layer was built for. Reshape the inputs, or build the model for them."
        ) from reason
    if not isinstance(outputs, jax.ShapeDtypeStruct) or outputs.shape[:1] != (len(x),):
        raise ProblemError(
            f"The model gives {outputs} for {len(x)} rows. Row i of the outputs must belong to row i of the inputs. "
            f"Return one array with the rows along its first axis."
        )
    return outputs


def _fit(problem: Checked, outputs: jax.ShapeDtypeStruct, y: np.ndarray, name: str) -> None:
    if outputs.shape != y.shape and int(np.prod(outputs.shape)) == y.size:
        raise ProblemError(
            f"The model gives the shape {outputs.shape} for {name} targets of shape {y.shape}. Equal counts in "
            f"different shapes broadcast each row against all others. Reshape the targets or the output."
        )
    y = y.astype(outputs.dtype) if np.issubdtype(y.dtype, np.floating) else y
    for measure, what in ((problem.loss, "loss"), *((f, name) for name, f in problem.metrics.items())):
        try:
            jax.eval_shape(partial(_measured, measure, what), outputs, y)
        except LossError:
            raise
        except Exception as reason:  # whatever a user's function raises, it is the loss that does not fit
            raise ProblemError(
                f"The {what} fails on outputs of shape {outputs.shape} and {name} targets of shape {y.shape} "
                f"({y.dtype}): {reason}. The model's output does not fit the labels. Change one of them."
            ) from reason


def _measured(measure: Measure, what: str, outputs: jax.Array, targets: jax.Array) -> jax.Array:
    return per_row(measure(outputs, targets), len(targets), what)


def _labels(table: Source, classes: int, name: str) -> None:
    labels = targets(table)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ProblemError(
            f"The {name} labels go from {low} to {high} and the model has {classes} outputs. A label is the number of "
            f"an output, from 0 to {classes - 1}. Renumber the labels, or give the model {max(high, 0) + 1} outputs."
        )


def _composed(problem: Checked, vector: Vector) -> None:
    """Compare the model's own call with that of its blocks, on one row."""
    rows, _ = problem.train.take(np.zeros(1, np.int64))
    x = jnp.asarray(rows, vector.dtype if np.issubdtype(rows.dtype, np.floating) else None)
    whole: Any = problem.model(nnx.Rngs(0))
    whole.eval()
    apart = x
    for block in problem.blocks:
        apart = getattr(whole, block)(apart)
    found = whole(x)
    if found.shape != apart.shape or not np.allclose(found, apart, rtol=1e-4, atol=1e-5):
        raise ProblemError(
            f"The model differs from the composition of its blocks {problem.blocks}. Split over stages it would be "
            f"another model. Move what lies between the blocks into one of them, or pass no blocks."
        )

"""A model split into the stages of a linear pipeline, each at a place of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from toolkit.core.messages import Span
from toolkit.kernels.training import Learner, fold, words
from toolkit.kernels.vector import ModelError, Vector

Keys: TypeAlias = Sequence[int] | None


class Backward(NamedTuple):
    """What the backward pass of one microbatch gives at a stage.

    `update` [span] and `loss` are *contributions*: those of all microbatches add up to the update and the loss of the
    batch. `cotangent` is for the stage before (None at the first stage); `loss` is None but at the last.
    """

    update: np.ndarray
    local: np.ndarray
    cotangent: np.ndarray | None
    loss: float | None = None


class Stage:
    r"""The consecutive blocks of a model that lie in one span of its vector.

    A microbatch of :math:`m` of the batch's :math:`n` rows has the `share` :math:`m/n`: a mean loss is weighted by it
    at the last stage, a sum loss is not, and changes of state are weighted by it everywhere. Then the contributions
    of all microbatches add up to the update of the unsplit model; with batch norm only nearly so, because each
    microbatch is normalised by statistics of its own.

    Parameters
    ----------
    learner : Learner
        Of the whole model.
    span : (start, stop)
        Begins and ends where blocks do. A block without tensors belongs to the stage of the block before it.

    Examples
    --------
    >>> from toolkit.problems.digits import digits
    >>> learner = Learner(digits(), seed=0)
    >>> first, last = (Stage(learner, span) for span in learner.layout.blocks().values())
    >>> vector, local = learner.initial()
    >>> x, y = learner.problem.train.take(np.arange(4))
    >>> hidden = first.forward(vector[slice(*first.span)], local, x)
    >>> split = last.loss(vector[slice(*last.span)], local, hidden, y)
    >>> bool(abs(split - learner.forward(vector, local, (x, y))) < 1e-5)
    True
    """

    def __init__(self, learner: Learner, span: Span) -> None:
        self.learner = learner
        self.span = span
        first, last = cut(learner.vector, span)
        self.first, self.last = first == 0, last == len(learner.vector.blocks)
        self.vector = Vector(learner.vector.blocks[first:last], learner.vector.policy)
        start = Vector(learner.vector.blocks[:first], learner.vector.policy).local_size
        self.local: Span = (start, start + self.vector.local_size)
        self._output = jax.jit(self._forward)
        self._score = jax.jit(self._outcome)
        self._pull = jax.jit(self._pulled)

    def forward(self, vector: np.ndarray, local: np.ndarray, x: np.ndarray, keys: Keys = None) -> np.ndarray:
        """The activations for the next stage: in training mode with `keys`, in evaluation mode without."""
        return np.asarray(self._output(vector, local, self.learner.cast(x), words(keys)))

    def loss(
        self, vector: np.ndarray, local: np.ndarray, x: np.ndarray, y: np.ndarray, keys: Keys = None, share: float = 1.0
    ) -> float:
        """The contribution of a microbatch to the loss, at the last stage."""
        x, target = self.learner.cast(x), self.learner.cast(y)
        return float(self._score(vector, local, x, words(keys), target, self._share(share)))

    def backward(
        self, vector: np.ndarray, local: np.ndarray, x: np.ndarray, target: np.ndarray, keys: Keys, share: float = 1.0
    ) -> Backward:
        """Recompute the forward pass and go back through it.

        `x` are the activations that came in and `target` the cotangent of those that went out; at the last stage
        `target` are the true targets of the rows.
        """
        x, target = self.learner.cast(x), self.learner.cast(target)
        score, update, local, cotangent = self._pull(vector, local, x, words(keys), target, self._share(share))
        return Backward(
            np.asarray(update),
            np.asarray(local),
            None if cotangent is None else np.asarray(cotangent),
            float(score) if self.last else None,
        )

    def _share(self, share: float) -> np.ndarray:
        return np.asarray(share, self.vector.dtype)

    def _forward(self, flat: jax.Array, local: jax.Array, x: jax.Array, word: jax.Array | None) -> jax.Array:
        return self.vector.call(*self.vector.unpack(flat, local), x, fold(word))[0]

    def _judge(self, outputs: jax.Array, target: jax.Array, share: jax.Array) -> jax.Array:
        if not self.last:
            # The gradient of this product is the vector-Jacobian product with the cotangent.
            return (outputs * target).sum()
        loss = self.learner.objective(outputs, target)
        return loss if self.learner.problem.reduction == "sum" else share * loss

    def _outcome(
        self,
        flat: jax.Array,
        local: jax.Array,
        x: jax.Array,
        word: jax.Array | None,
        target: jax.Array,
        share: jax.Array,
    ) -> jax.Array:
        return self._judge(self._forward(flat, local, x, word), target, share)

    def _pulled(
        self,
        flat: jax.Array,
        local: jax.Array,
        x: jax.Array,
        word: jax.Array | None,
        target: jax.Array,
        share: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
        params, states = self.vector.unpack(flat, local)

        def score(params: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            outputs, after = self.vector.call(params, states, x, fold(word))
            return self._judge(outputs, target, share), after

        # The rows of the first stage are data, perhaps integers: nobody asks for their gradient.
        wanted = (0,) if self.first else (0, 1)
        (value, after), (gradient, *rest) = jax.value_and_grad(score, wanted, has_aux=True)(params, x)
        update, local = self.vector.changes(gradient, states, after)
        if (learned := self.vector.trainable) is not None:
            update = jnp.where(learned, update, share * update)
        return value, update, local, rest[0] if rest else None


def cut(vector: Vector, span: Span) -> tuple[int, int]:
    """The range of blocks in a span."""
    stops = np.cumsum([0, *(Vector((block,), vector.policy).layout.size for block in vector.blocks)]).tolist()
    if span[0] not in stops or span[1] not in stops or span[0] >= span[1]:
        raise ModelError(
            f"The span {span} is not made of whole blocks; blocks end at {stops[1:]}. A stage holds complete blocks. "
            f"Cut the model where a block ends, or name more blocks."
        )
    # Blocks without tensors share their edge with the block before them, and belong to it.
    first = 0 if span[0] == 0 else len(stops) - 1 - stops[::-1].index(span[0])
    return first, len(stops) - 1 - stops[::-1].index(span[1])

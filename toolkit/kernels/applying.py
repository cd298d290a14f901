"""One optimizer step on a span of the model vector."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from toolkit.core.errors import Refused

Clock: TypeAlias = Literal["updates", "samples"]


class Applier:
    r"""Apply mean updates to a span with an optax optimizer; traced once per size of the span.

    With the update :math:`u`, the factor :math:`\phi` and the optimizer's step :math:`\Delta`, a learned entry becomes
    :math:`w + \Delta(\phi u)` and a state entry :math:`w - \sigma u`; the share :math:`\sigma` is the part of all
    workers behind the update, so that n small updates move a running average as far as one of everybody. The optimizer
    sees zeros in the place of state. It also sees one flat tensor, so that rules per tensor (LARS, LAMB) act per span.
    A factor does not change the step of optimizers that ignore the scale of a gradient, such as Adam.

    Parameters
    ----------
    optimizer : optax.GradientTransformation
        Acts on learned entries.
    trainable : array of bool, shape [n], optional
        Which entries of the span are learned; None: all.
    clock : {"updates", "samples"}
        What learning-rate schedules count: the merges applied, or the rows merged before. Other counters, such as
        Adam's, always count merges.

    Examples
    --------
    >>> applier = Applier(optax.sgd(0.5))
    >>> params = np.ones(2, np.float32)
    >>> after, _ = applier.apply(params, applier.init(params), np.array([1.0, 2.0], np.float32))
    >>> after.tolist()
    [0.5, 0.0]
    """

    def __init__(
        self, optimizer: optax.GradientTransformation, trainable: np.ndarray | None = None, clock: Clock = "updates"
    ) -> None:
        if clock not in ("updates", "samples"):
            raise Refused(
                f"The clock is {clock!r}. Schedules count the updates of the model or the samples behind them. "
                f'Use "updates" or "samples".'
            )
        self.optimizer = optimizer
        self.trainable = trainable
        self.clock = clock
        self.begin = partial(_init, optimizer)  # to be traced, as `step` is
        self.step = partial(_step, optimizer, clock)
        self._init = jax.jit(self.begin)
        self._step = jax.jit(self.step)

    def init(self, params: np.ndarray) -> optax.OptState:
        """The optimizer state for parameters of shape [n]."""
        return self._init(params, self.trainable)

    def apply(
        self,
        params: np.ndarray,
        opt_state: optax.OptState,
        update: np.ndarray,
        samples: int = 0,
        factor: float = 1.0,
        share: float = 1.0,
    ) -> tuple[np.ndarray, optax.OptState]:
        """The parameters [n] and optimizer state after an `update` [n].

        Learned entries take `factor` times the update, model state `share` times; `samples` rows came before.
        """
        seen = np.int32(min(samples, np.iinfo(np.int32).max))
        scales = (np.asarray(factor, params.dtype), np.asarray(share, params.dtype))
        after, opt_state = self._step(params, opt_state, update, self.trainable, seen, *scales)
        return np.asarray(after), opt_state


def _init(optimizer: optax.GradientTransformation, params: jax.Array, learned: jax.Array | None) -> optax.OptState:
    return optimizer.init(_only(learned, params))


def _step(
    optimizer: optax.GradientTransformation,
    clock: Clock,
    params: jax.Array,
    opt_state: optax.OptState,
    update: jax.Array,
    learned: jax.Array | None,
    samples: jax.Array,
    factor: jax.Array,
    share: jax.Array,
) -> tuple[jax.Array, optax.OptState]:
    scaled = factor * update
    opt_state = counting(opt_state, samples) if clock == "samples" else opt_state
    step, opt_state = optimizer.update(_only(learned, scaled), opt_state, _only(learned, params))
    after = optax.apply_updates(params, step)
    return after if learned is None else jnp.where(learned, after, params - share * update), opt_state


def _only(learned: jax.Array | None, values: jax.Array) -> jax.Array:
    """Learned entries, zeros elsewhere, so that norms over the span are those of what is learned."""
    return values if learned is None else jnp.where(learned, values, 0)


def counting(opt_state: optax.OptState, samples: jax.Array) -> optax.OptState:
    """The optimizer state with every schedule's counter set to `samples`."""
    injected = (optax.InjectHyperparamsState, optax.schedules.InjectStatefulHyperparamsState)
    stops = (optax.ScaleByScheduleState, *injected)

    def schedule(node: Any) -> Any:
        return node._replace(count=samples) if getattr(node, "_fields", ()) == ("count",) else node

    def change(node: Any) -> Any:
        if isinstance(node, injected):
            # Each schedule of an injected hyperparameter has a counter of its own beside the common one.
            own = {name: schedule(state) for name, state in getattr(node, "hyperparams_states", {}).items()}
            more = {"hyperparams_states": own} if own else {}
            return node._replace(count=samples, inner_state=counting(node.inner_state, samples), **more)
        return schedule(node) if isinstance(node, optax.ScaleByScheduleState) else node

    return jax.tree.map(change, opt_state, is_leaf=lambda node: isinstance(node, stops))

"""A recorded order of pulls, steps and merges as one compiled loop, for any number of seeds at once.

The arrays of all places are the carry of the loop; an event says by numbers what is read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from toolkit.kernels.applying import Applier
from toolkit.kernels.training import Learner

Array: TypeAlias = Any  # of NumPy or of JAX


class Events(NamedTuple):
    """What happens, one column per field, each of shape [E]; a field that a kind does not need is 0.

    `kind` is 0 for a pull, 1 for a copy, then one number per row count of a step and one per size of a shard.
    """

    kind: Array
    worker: Array  # whose row; of a merge its only member, -1 if there are several
    start: Array  # of the span that is pulled or merged into
    stop: Array
    slot: Array  # of a step its rows, of a merge of several its weights, of a copy the worker copied from
    shard: Array  # of a merge, among the shards of one size
    samples: Array  # rows before it
    factor: Array
    share: Array
    first: Array  # of the local steps of an iteration
    last: Array
    fresh: Array  # no step of this worker came before


class Batches(NamedTuple):
    """What the steps and merges of a piece of the order read: rows and random words by slot, weights [slots, n]."""

    x: Array
    y: Array
    words: Array
    weights: Array


class State(NamedTuple):
    """The arrays of all places: the model [P], then by worker, the last ones with one optimizer state per shard."""

    model: Array
    pulled: Array  # [n, P]: what a worker computes with
    updates: Array  # [n, P]
    local: Array  # [n, S]
    inner: Any  # optimizer states of local steps
    outer: tuple[Any, ...]  # by size of a shard, optimizer states with a leading axis of shards


class Scan:
    """The compiled loop over the events of a run.

    Parameters
    ----------
    learner : Learner
    outer, inner : Applier
        The optimizer step of merges; that of local steps, None where workers send gradients.
    counts : sequence of int [rows]
        All row counts of steps.
    sizes : sequence of int [values]
        All sizes of shards.
    """

    def __init__(
        self, learner: Learner, outer: Applier, inner: Applier | None, counts: Sequence[int], sizes: Sequence[int]
    ) -> None:
        self.learner, self.outer, self.inner = learner, outer, inner
        self.counts, self.sizes = tuple(counts), tuple(sizes)
        steps = [partial(self._step, count) for count in self.counts]
        merges = [partial(self._merge, number, size) for number, size in enumerate(self.sizes)]
        self._kinds: list[Callable[..., Any]] = [self._pull, self._copy, *steps, *merges]
        over = jax.vmap(self._advance, in_axes=(0, 0, None, None, None, Batches(0, 0, 0, None)))
        self.advance = jax.jit(over, donate_argnums=(0, 1))
        self.measure = jax.jit(jax.vmap(learner.sums, in_axes=(0, 0, None, None)))

    @property
    def _learned(self) -> jax.Array | None:
        learned = self.learner.vector.trainable
        return None if learned is None else jnp.asarray(learned)

    def step(self, count: int) -> int:
        """The kind of a step on `count` rows."""
        return 2 + self.counts.index(count)

    def merge(self, size: int) -> int:
        """The kind of a merge into a shard of `size` values."""
        return 2 + len(self.counts) + self.sizes.index(size)

    def _advance(
        self, state: State, found: jax.Array, events: Events, start: jax.Array, stop: jax.Array, batches: Batches
    ) -> tuple[State, jax.Array]:
        """Perform the events ``[start, stop)``; loss and norm of each step go into its slot of `found` [slots, 2]."""

        def body(i: jax.Array, carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
            event = Events(*(column[i] for column in events))
            done: tuple[State, jax.Array] = lax.switch(event.kind, self._kinds, *carry, event, batches)
            return done

        return lax.fori_loop(start, stop, body, (state, found))

    def _pull(self, state: State, found: jax.Array, event: Events, _: Batches) -> tuple[State, jax.Array]:
        place = jnp.arange(state.model.size)
        inside = (place >= event.start) & (place < event.stop)
        row = jnp.where(inside, state.model, state.pulled[event.worker])
        return state._replace(pulled=state.pulled.at[event.worker].set(row)), found

    def _copy(self, state: State, found: jax.Array, event: Events, _: Batches) -> tuple[State, jax.Array]:
        local, inner = jax.tree.map(lambda own: own.at[event.worker].set(own[event.slot]), (state.local, state.inner))
        return state._replace(local=local, inner=inner), found

    def _step(
        self, count: int, state: State, found: jax.Array, event: Events, batches: Batches
    ) -> tuple[State, jax.Array]:
        worker, slot = event.worker, event.slot
        x, y = batches.x[slot][:count], batches.y[slot][:count]
        # Without the barriers XLA computes the gradient anew for every value of the carry that it updates.
        here, own = lax.optimization_barrier((state.pulled[worker], state.local[worker]))
        step = self.learner.differentiate(here, own, x, y, batches.words[slot])
        loss, norm, update, own = lax.optimization_barrier(step)
        if self.inner is not None:
            state, update, norm = self._local(state, event, here, update)
        state = state._replace(updates=state.updates.at[worker].set(update), local=state.local.at[worker].set(own))
        return state, found.at[slot].set(jnp.stack([loss, norm]).astype(found.dtype))

    def _local(
        self, state: State, event: Events, here: jax.Array, gradient: jax.Array
    ) -> tuple[State, jax.Array, jax.Array]:
        """A local step; until the last one the place of the update holds where the worker began."""
        assert self.inner is not None
        worker, learned, begin = event.worker, self._learned, self.inner.begin
        known = jax.tree.map(lambda states: states[worker], state.inner)
        known = lax.cond(event.fresh, lambda: begin(here, learned), lambda: known)
        one = jnp.ones((), here.dtype)
        step = self.inner.step(here, known, gradient, learned, event.samples, one, one)
        after, known = lax.optimization_barrier(step)
        before = jnp.where(event.first, here, state.updates[worker])
        drift, norm = self.learner.difference(before, after)
        inner = jax.tree.map(lambda states, new: states.at[worker].set(new), state.inner, known)
        state = state._replace(pulled=state.pulled.at[worker].set(after), inner=inner)
        return state, jnp.where(event.last, drift, before), norm

    def _merge(
        self, number: int, size: int, state: State, found: jax.Array, event: Events, batches: Batches
    ) -> tuple[State, jax.Array]:
        start, learned = event.start, self._learned

        def one() -> jax.Array:
            return lax.dynamic_slice(state.updates[event.worker], (start,), (size,))

        def several() -> jax.Array:
            return batches.weights[event.slot] @ lax.dynamic_slice_in_dim(state.updates, start, size, 1)

        update = lax.cond(event.worker >= 0, one, several)
        mask = None if learned is None else lax.dynamic_slice(learned, (start,), (size,))
        params = lax.dynamic_slice(state.model, (start,), (size,))
        known = jax.tree.map(lambda states: states[event.shard], state.outer[number])
        step = self.outer.step(params, known, update, mask, event.samples, event.factor, event.share)
        after, known = lax.optimization_barrier(step)
        changed = jax.tree.map(lambda states, new: states.at[event.shard].set(new), state.outer[number], known)
        outer = (*state.outer[:number], changed, *state.outer[number + 1 :])
        return state._replace(model=lax.dynamic_update_slice(state.model, after, (start,)), outer=outer), found


def stacked(trees: Sequence[Any]) -> Any:
    """Trees of equal structure as one, with a new leading axis."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *trees)

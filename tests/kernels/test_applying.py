"""One optimizer step on a span."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from toolkit.kernels.applying import Applier

PARAMS = np.array([1.0, -2.0, 3.0, 4.0, 0.5], np.float32)
UPDATE = np.array([0.5, 0.25, -1.0, 2.0, 0.125], np.float32)
LEARNED = np.array([True, True, False, True, False])
OPTIMIZERS: dict[str, optax.GradientTransformation] = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(0.01),
    "decay": optax.adamw(0.01, weight_decay=0.1),
}


def steps(applier: Applier, params: np.ndarray, updates: list[np.ndarray], **facts: Any) -> np.ndarray:
    """The parameters after some steps."""
    state = applier.init(params)
    for update in updates:
        params, state = applier.apply(params, state, update, **facts)
    return params


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_optax(name: str) -> None:
    optimizer, params = OPTIMIZERS[name], jnp.asarray(PARAMS)
    state = optimizer.init(params)
    for _ in range(3):
        change, state = optimizer.update(jnp.asarray(UPDATE), state, params)
        params = optax.apply_updates(params, change)
    np.testing.assert_allclose(steps(Applier(optimizer), PARAMS, [UPDATE] * 3), params, rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_only_subtracted_from(name: str) -> None:
    after = steps(Applier(OPTIMIZERS[name], LEARNED), PARAMS, [UPDATE] * 2)
    np.testing.assert_array_equal(after[~LEARNED], PARAMS[~LEARNED] - UPDATE[~LEARNED] - UPDATE[~LEARNED])
    alone = steps(Applier(OPTIMIZERS[name]), PARAMS[LEARNED], [UPDATE[LEARNED]] * 2)
    np.testing.assert_allclose(after[LEARNED], alone, rtol=1e-6)


def test_state_does_not_enter_a_norm() -> None:
    clipped = Applier(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)), np.array([True, False]))
    after = steps(clipped, np.zeros(2, np.float32), [np.array([0.5, 100.0], np.float32)])
    np.testing.assert_array_equal(after, [-0.5, -100.0])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shards_step_like_the_whole(name: str) -> None:
    whole = steps(Applier(OPTIMIZERS[name], LEARNED), PARAMS, [UPDATE, -UPDATE, UPDATE])
    shards = [
        steps(Applier(OPTIMIZERS[name], LEARNED[part]), PARAMS[part], [UPDATE[part], -UPDATE[part], UPDATE[part]])
        for part in (slice(0, 2), slice(2, 5))
    ]
    np.testing.assert_allclose(np.concatenate(shards), whole, rtol=1e-6)


def test_a_factor_scales_what_is_learned_and_a_share_the_state() -> None:
    after = steps(Applier(optax.sgd(1.0), LEARNED), PARAMS, [UPDATE], factor=0.25, share=0.5)
    np.testing.assert_array_equal(after, PARAMS - np.where(LEARNED, 0.25, 0.5) * UPDATE)


def falling(count: Any) -> Any:
    """A rate of 1 for the first 100 counts."""
    return jnp.where(count < 100, 1.0, 0.0)


SCHEDULED: dict[str, optax.GradientTransformation] = {
    "schedule": optax.sgd(falling),
    "injected": optax.inject_hyperparams(optax.sgd)(learning_rate=falling),
    "nested": optax.chain(optax.clip(1e6), optax.masked(optax.sgd(falling), True)),
}


@pytest.mark.parametrize("name", SCHEDULED)
@pytest.mark.parametrize(("clock", "moved"), [("updates", True), ("samples", False)])
def test_a_schedule_follows_its_clock(name: str, clock: Any, moved: bool) -> None:
    after = steps(Applier(SCHEDULED[name], clock=clock), PARAMS, [UPDATE], samples=100)
    assert np.array_equal(after, PARAMS - UPDATE) == moved
    assert np.array_equal(after, PARAMS) != moved


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_clock_of_samples_knows_only_samples(name: str) -> None:
    early = steps(Applier(SCHEDULED[name], clock="samples"), PARAMS, [UPDATE] * 3, samples=99)
    np.testing.assert_allclose(early, PARAMS - 3 * UPDATE, rtol=1e-6)


def test_adam_counts_updates_under_every_clock() -> None:
    by_updates, by_samples = (
        steps(Applier(optax.adam(lambda count: 0.1), clock=clock), PARAMS, [UPDATE] * 3, samples=1000)
        for clock in ("updates", "samples")
    )
    np.testing.assert_array_equal(by_samples, by_updates)


def test_counts_beyond_32_bits_saturate() -> None:
    after = steps(Applier(optax.sgd(falling), clock="samples"), PARAMS, [UPDATE], samples=2**40)
    np.testing.assert_array_equal(after, PARAMS)


def test_one_trace_per_size() -> None:
    traces = []

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        traces.append(updates.shape)
        return updates, state

    applier = Applier(optax.GradientTransformation(lambda params: optax.EmptyState(), update), clock="samples")
    for size in (5, 5, 3, 5):
        applier.apply(PARAMS[:size], applier.init(PARAMS[:size]), UPDATE[:size], samples=size, factor=1 / size)
    assert traces == [(5,), (3,)]


def test_an_unknown_clock_is_refused() -> None:
    with pytest.raises(ValueError, match="The clock is 'seconds'"):
        Applier(optax.sgd(0.1), clock="seconds")  # type: ignore[arg-type]

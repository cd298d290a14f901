"""Corrections: their rules, limits, text and compilation."""

from __future__ import annotations

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolkit.kernels.corrections import Correction, delay_compensation, elastic, scale_by_staleness

CORRECTIONS = [scale_by_staleness(), scale_by_staleness(0.5), delay_compensation(), elastic(0.9)]
corrections = pytest.mark.parametrize("correction", CORRECTIONS, ids=repr)

g, pulled, params = (np.random.default_rng(seed).standard_normal(9).astype(np.float32) for seed in range(3))


@corrections
def test_text_and_pickle_give_an_equal_correction_that_does_the_same(correction: Correction) -> None:
    for other in (Correction.of(repr(correction)), pickle.loads(pickle.dumps(correction))):
        assert other == correction
        assert (other.where, other.keeps_replica) == (correction.where, correction.keeps_replica)
        np.testing.assert_array_equal(other.fn(g, 3, pulled, params), correction.fn(g, 3, pulled, params))


def test_the_text_names_the_defaults() -> None:
    assert repr(scale_by_staleness()) == "scale_by_staleness(1.0)"
    assert repr(delay_compensation()) == "delay_compensation(0.04)"
    assert len(set(CORRECTIONS)) == len(CORRECTIONS)


@pytest.mark.parametrize("staleness", [0, 1, 2, 7])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_stale_updates_shrink_by_a_power_of_their_staleness(power: float, staleness: int) -> None:
    expected = g / max(1, staleness) ** power
    np.testing.assert_allclose(scale_by_staleness(power).fn(g, staleness, pulled, params), expected, rtol=1e-6)


def test_fresh_updates_pass_unchanged() -> None:
    for staleness in (0, 1):
        np.testing.assert_array_equal(scale_by_staleness().fn(g, staleness, pulled, params), g)
    np.testing.assert_array_equal(delay_compensation(0.5).fn(g, 4, params, params), g)
    np.testing.assert_array_equal(delay_compensation(0.0).fn(g, 4, pulled, params), g)


def test_delay_compensation_is_a_taylor_step_with_the_squared_gradient_as_curvature() -> None:
    expected = g.astype(float) + 0.3 * g.astype(float) ** 2 * (params.astype(float) - pulled)
    np.testing.assert_allclose(delay_compensation(0.3).fn(g, 1, pulled, params), expected, rtol=1e-5, atol=1e-6)


def test_elastic_moves_worker_and_centre_as_in_the_paper() -> None:
    replica, centre, alpha = params, pulled, 0.25
    update = elastic(alpha).fn(g, 0, centre, replica)
    np.testing.assert_allclose(replica + update, replica - alpha * (replica - centre), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(centre - update, centre + alpha * (replica - centre), rtol=1e-5, atol=1e-6)


def test_elastic_averaging_brings_replicas_to_their_mean_with_the_centre() -> None:
    """Pairwise moves keep the sum of all, so without gradients everyone ends where the mean was."""
    places = [np.full(1, value, np.float32) for value in (0.0, 3.0, 9.0)]
    for turn in range(120):
        w = 1 + turn % 2
        update = elastic(0.4).fn(np.zeros(1, np.float32), 0, places[0], places[w])
        places[w], places[0] = places[w] + update, places[0] - update
    np.testing.assert_allclose(places, np.full((3, 1), 4.0), atol=1e-4)


def test_only_elastic_keeps_a_replica_and_runs_at_the_worker() -> None:
    assert (
        [c for c in CORRECTIONS if c.keeps_replica] == [c for c in CORRECTIONS if c.where == "worker"] == [elastic(0.9)]
    )


@corrections
def test_one_trace_serves_every_staleness_under_strict_promotion(correction: Correction) -> None:
    traces = 0

    @jax.jit
    def corrected(*args: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return correction.fn(*args)

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for staleness in (0, 3, 8):
            result = corrected(g, jnp.int32(staleness), pulled, params)
            np.testing.assert_array_equal(result, correction.fn(g, np.int64(staleness), pulled, params))
    assert traces == 1
    assert (result.shape, result.dtype) == (g.shape, g.dtype)


@corrections
def test_double_precision_stays_double(correction: Correction) -> None:
    with jax.enable_x64(True):
        assert correction.fn(*(np.float64(a) for a in (g, 1, pulled, params))).dtype == np.float64


@pytest.mark.parametrize(
    ("make", "value"),
    [(elastic, 0.0), (elastic, 1.5), (elastic, math.nan), (elastic, True), (elastic, "0.5")]
    + [
        (make, value)
        for make in (scale_by_staleness, delay_compensation)
        for value in (-0.1, math.inf, math.nan, True, "1")
    ],
)
def test_what_is_out_of_range_is_refused_in_three_sentences(make: type, value: object) -> None:
    with pytest.raises(
        ValueError, match=r"(power|strength|alpha)=.+ (is not|lies outside) .+\. .+\. Give a number .+\.$"
    ):
        make(value)


@pytest.mark.parametrize(
    "text", ["elastic", "elastic()", "elastic(a)", "momentum(0.9)", "elastic(0.5).fn", "elastic(**{})"]
)
def test_what_is_no_correction_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be resolved"):
        Correction.of(text)

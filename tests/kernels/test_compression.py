"""Codecs on arrays: what travels, what is restored, what is left over."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from toolkit.kernels.compression.registry import KERNELS, decode, encode
from toolkit.rewrites.codecs import Codec, fp16, power_sgd, qsgd, random_k, sign, top_k

MASKS = [top_k(0.01), top_k(1.0), random_k(0.07), random_k(0.5, seed=3)]
CODECS = [*MASKS, sign(), qsgd(1), qsgd(127), power_sgd(1), power_sgd(100), power_sgd(2, "shared"), fp16()]
LINEAR = [codec for codec in CODECS if codec.linear]
KEY = (5, 1)

Array: TypeAlias = NDArray[Any]

codecs = pytest.mark.parametrize("codec", CODECS, ids=repr)
sizes = pytest.mark.parametrize("n", [0, 1, 7, 64, 1000])
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def vector(n: int, dtype: type = np.float64, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(n).astype(dtype)


def roundtrip(codec: Codec, x: Array, key: tuple[int, ...] = KEY) -> Array:
    return decode(repr(codec), encode(repr(codec), x, None, key)[0], x.size, key)


# -- every codec ----------------------------------------------------------------------------------------------


def test_both_sides_know_the_same_codecs() -> None:
    assert {codec.name for codec in CODECS} == KERNELS.keys()


@dtypes
@sizes
@codecs
def test_the_formula_is_the_length_of_the_buffers(codec: Codec, n: int, dtype: type) -> None:
    payload, _ = encode(repr(codec), vector(n, dtype), None, KEY)
    assert sum(part.nbytes for part in payload) == codec.nbytes(n, np.dtype(dtype).itemsize)


@dtypes
@sizes
@codecs
def test_decoded_and_residual_give_the_vector(codec: Codec, n: int, dtype: type) -> None:
    x = vector(n, dtype)
    decoded = roundtrip(codec, x)
    assert decoded.shape == x.shape
    assert decoded.dtype == (np.float32 if codec == fp16() and n else dtype)
    np.testing.assert_allclose(decoded + (x - decoded), x, rtol=0, atol=float(8 * np.finfo(dtype).eps))
    if codec in MASKS:
        assert np.all((decoded == x) | (decoded == 0))


@codecs
def test_encoding_is_a_function_of_its_arguments_and_leaves_them_alone(codec: Codec) -> None:
    x = vector(1000)
    x.flags.writeable = False
    memory = encode(repr(codec), x, None, (5, 0))[1]
    kept = None if memory is None else memory.copy()
    first, second = (encode(repr(codec), x, memory, KEY) for _ in range(2))
    for a, b in zip(first[0], second[0], strict=True):
        assert a.tobytes() == b.tobytes()
    if kept is not None:
        np.testing.assert_array_equal(memory, kept)


@codecs
def test_zeros_stay_zeros(codec: Codec) -> None:
    assert not np.any(roundtrip(codec, np.zeros(50)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", [c for c in CODECS if c.name != "random_k"], ids=repr)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_not_finite_shows_after_decoding(codec: Codec, bad: float) -> None:
    x = vector(64)
    x[10] = bad
    assert not np.all(np.isfinite(roundtrip(codec, x)))


@pytest.mark.parametrize("codec", LINEAR, ids=repr)
@sizes
def test_linear_payloads_may_be_added_before_decoding(codec: Codec, n: int) -> None:
    xs = [vector(n, seed=w) for w in range(4)]
    payloads = [encode(repr(codec), x, None, KEY)[0] for x in xs]
    assert all(len(payload) == 1 and payload[0].ndim == 1 for payload in payloads)
    together = decode(repr(codec), (np.sum(payloads, axis=0)[0],), n, KEY)
    apart = np.sum([roundtrip(codec, x) for x in xs], axis=0)
    np.testing.assert_allclose(together, apart, atol=1e-2 if codec == fp16() else 1e-12)


# -- one codec ------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.77, 1.0])
def test_top_k_is_the_head_of_the_order_by_magnitude_then_position(fraction: float, dtype: type) -> None:
    x: Array = np.random.default_rng(1).integers(-4, 5, 100).astype(dtype)  # full of ties
    chosen = sorted(range(100), key=lambda i: (-abs(x[i]), i))[: round(fraction * 100)]
    (positions, values), _ = encode(repr(top_k(fraction)), x, None, KEY)
    assert positions.tolist() == sorted(chosen)
    assert values.tolist() == [x[i] for i in sorted(chosen)]


@dtypes
def test_top_k_of_all_is_the_identity_bit_for_bit(dtype: type) -> None:
    x: Array = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-42, -3.0, 3.0], dtype)
    assert roundtrip(top_k(1.0), x).tobytes() == x.tobytes()


def test_random_k_takes_every_position_equally_often() -> None:
    n, draws = 20, 2000
    hits = np.sum([roundtrip(random_k(0.25), np.ones(n), (0, clock)) for clock in range(draws)], axis=0)
    assert hits.sum() == draws * 5
    np.testing.assert_allclose(hits / draws, 0.25, atol=5 * np.sqrt(0.25 * 0.75 / draws))


def test_random_k_draws_anew_for_each_key_and_seed() -> None:
    draws = [roundtrip(random_k(0.1, seed), np.ones(100), key) for seed in (0, 1) for key in ((0,), (0, 0), (0, 1))]
    assert len({draw.tobytes() for draw in draws}) == len(draws)


def test_sign_keeps_signs_and_the_mean_magnitude() -> None:
    x = vector(77)
    np.testing.assert_array_equal(roundtrip(sign(), x), np.sign(x) * np.mean(np.abs(x)))


@dtypes
@pytest.mark.parametrize("levels", [1, 4, 127])
def test_qsgd_is_unbiased_and_errs_by_less_than_a_step(levels: int, dtype: type) -> None:
    x, draws = vector(30, dtype), 2000
    step = np.max(np.abs(x)) / levels
    decoded = np.stack([roundtrip(qsgd(levels), x, (0, clock)) for clock in range(draws)]).astype(float)
    assert np.max(np.abs(decoded - x)) <= step * (1 + 1e-5)
    np.testing.assert_allclose(decoded.mean(0), x, rtol=1e-5, atol=5 * step / 2 / np.sqrt(draws))


def test_qsgd_keeps_what_lies_on_its_steps() -> None:
    x = np.arange(-8.0, 9.0)
    np.testing.assert_array_equal(roundtrip(qsgd(8), x), x)
    subnormal = np.array([1e-42, -1e-42, 0.0], np.float32)
    assert np.max(np.abs(roundtrip(qsgd(127), subnormal) - subnormal)) <= np.finfo(np.float32).tiny / 127


def test_half_precision_rounds_to_nearest_and_stays_finite() -> None:
    x = np.array([0.1, -1 / 3, 65504.0, 1e30, -1e300])
    np.testing.assert_array_equal(roundtrip(fp16(), x)[:2], x[:2].astype(np.float16))
    assert roundtrip(fp16(), x)[2:].tolist() == [65504.0, 65504.0, -65504.0]


def test_power_sgd_restores_a_matrix_of_its_rank() -> None:
    x = np.outer(vector(20), vector(20, seed=1)).reshape(-1)
    np.testing.assert_allclose(roundtrip(power_sgd(1), x), x, atol=1e-12)


def test_power_sgd_of_full_rank_is_the_identity() -> None:
    for codec in (power_sgd(10), power_sgd(10**6), power_sgd(10, "shared")):
        x = vector(90)  # a matrix of 10 rows and 9 columns
        np.testing.assert_allclose(roundtrip(codec, x), x, atol=1e-12)


def test_a_warm_start_turns_rounds_into_power_iterations() -> None:
    """The error falls to that of the best matrix of this rank, which the singular values give."""
    x, text = vector(400), repr(power_sgd(2))
    best = np.sqrt(np.sum(np.linalg.svd(x.reshape(20, 20), compute_uv=False)[2:] ** 2))
    memory, errors = None, []
    for clock in range(200):
        payload, memory = encode(text, x, memory, (0, clock))
        errors.append(np.linalg.norm(x - decode(text, payload, 400, (0, clock))))
    assert errors[0] > 1.02 * best
    assert errors[-1] == pytest.approx(best, rel=1e-6)
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(errors))


def test_a_shared_basis_projects() -> None:
    x = vector(400)
    once = roundtrip(power_sgd(3, "shared"), x)
    np.testing.assert_allclose(roundtrip(power_sgd(3, "shared"), once), once, atol=1e-12)
    assert once @ (x - once) == pytest.approx(0, abs=1e-10)


# -- error feedback -------------------------------------------------------------------------------------------


def descend(codec: Codec | None, feedback: bool, rounds: int = 300) -> float:
    """Distance to the optimum, relative to the start, of two workers that disagree about the first coordinate.

    Worker w minimises sum_i h_i (x_i - t_wi)^2 / 2; the mean of the two has its optimum at the mean target.
    """
    h, target = np.linspace(0.5, 1, 100), np.arange(1.0, 101.0) ** -2
    x, residuals = np.zeros(100), np.zeros((2, 100))
    for clock in range(rounds):
        updates = []
        for w, apart in enumerate((0.3, -0.3)):
            wanted = h * (x - target - apart * np.eye(1, 100)[0]) + residuals[w]
            sent = wanted if codec is None else roundtrip(codec, wanted, (0, clock))
            residuals[w] = feedback * (wanted - sent)
            updates.append(sent)
        x = x - 0.04 * np.mean(updates, axis=0)
    return float(np.linalg.norm(x - target) / np.linalg.norm(target))


def test_feedback_brings_the_top_percent_to_the_uncompressed_optimum() -> None:
    """Without it each worker sends only what it disagrees about, which cancels, and descent stands still."""
    assert descend(None, feedback=False) < 0.01
    assert descend(top_k(0.01), feedback=True) < 0.02
    assert descend(top_k(0.01), feedback=False) > 0.15
    stalled = [descend(top_k(0.01), feedback=False, rounds=rounds) for rounds in (200, 300)]
    assert stalled[0] - stalled[1] < 0.001


@codecs
def test_the_ledger_of_sent_and_owed_balances_at_all_times(codec: Codec) -> None:
    gradients = [vector(100, seed=clock) for clock in range(50)]
    sent, residual, memory = np.zeros(100), np.zeros(100), None
    for clock, total in enumerate(accumulate(gradients)):
        owed = gradients[clock] + residual
        payload, memory = encode(repr(codec), owed, memory, (0, clock))
        decoded = decode(repr(codec), payload, 100, (0, clock))
        sent, residual = sent + decoded, owed - decoded
        np.testing.assert_allclose(sent + residual, total, rtol=0, atol=1e-6)


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "zip()", "top_k", "top_k(x)", "top_k(**{})", "top_k.encode(0.1)", "top_k(0.1); sign()"]
)
def test_what_is_no_codec_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be resolved"):
        encode(text, np.ones(3), None, KEY)


@pytest.mark.parametrize("array", [np.ones((2, 2)), np.arange(3), np.ones(3, np.float16), np.float64(1)], ids=repr)
def test_what_is_no_flat_vector_of_floats_is_refused(array: Array) -> None:
    with pytest.raises(TypeError, match="one flat vector"):
        encode("sign()", array, None, KEY)

"""Convolutions, batch norm and pooling have the values and derivatives of their plain definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from toolkit.kernels.convolution import convolve, neighbours
from toolkit.kernels.normalization import normalize, rectify
from toolkit.kernels.pooling import max_pool


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    """Everything in float64, where equal to 1e-10 means equal."""
    with jax.enable_x64(True):
        yield


def draw(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def agree(ours: Callable[..., jax.Array], plain: Callable[..., jax.Array], *inputs: jax.Array) -> None:
    """Values and all derivatives are equal."""
    (y, pull), (expected, plainly) = (jax.vjp(f, *inputs) for f in (ours, plain))
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-10)
    cotangent = draw(*expected.shape, seed=9)
    for found, wanted in zip(pull(cotangent), plainly(cotangent), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


def plain_convolution(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [(3, 3), (1, 1), (2, 5)])
@pytest.mark.parametrize(("image", "channels"), [((1, 12), (2, 5)), ((8, 6), (16, 16)), ((7, 5), (17, 4))])
def test_convolutions(image: tuple[int, int], kernel: tuple[int, int], channels: tuple[int, int], stride: int) -> None:
    x, weights = draw(3, *image, channels[0]), draw(*kernel, *channels, seed=1)
    agree(lambda x, w: convolve(x, w, stride), lambda x, w: plain_convolution(x, w, stride), x, weights)


def test_a_convolution_of_several_kernels_at_once() -> None:
    x, weights = draw(2, 4, 4, 3), draw(5, 3, 3, 3, 2, seed=1)
    together = jax.vmap(lambda w: convolve(x, w))(weights)
    np.testing.assert_allclose(together, jnp.stack([plain_convolution(x, w, 1) for w in weights]), rtol=1e-10)


@pytest.mark.parametrize(
    ("width", "channels", "outputs", "pixels"),
    [(32, 16, 16, 2), (445, 16, 16, 5), (12, 3, 5, 4), (32, 17, 4, 1), (31, 3, 3, 1), (8, 1, 2, 1)],
)
def test_narrow_convolutions_compute_neighbours_at_once(width: int, channels: int, outputs: int, pixels: int) -> None:
    assert neighbours(width, channels, outputs) == pixels


@pytest.mark.parametrize("shape", [(7, 3), (5, 3, 2), (3, 4, 5, 6)])
def test_normalization(shape: tuple[int, ...]) -> None:
    def plain(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        axes = tuple(range(x.ndim - 1))
        along = (1,) * (x.ndim - 1) + (-1,)
        mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + 1e-3) * scale.reshape(along) + bias.reshape(along)

    x, scale, bias = 3 + draw(*shape), draw(shape[-1], seed=1), draw(shape[-1], seed=2)
    agree(lambda *inputs: normalize(*inputs, 1e-3)[0], plain, x, scale, bias)
    _, mean, variance = normalize(x, scale, bias, 1e-3)
    flat = np.asarray(x).reshape(-1, shape[-1])
    np.testing.assert_allclose(mean, flat.mean(0), rtol=1e-10)
    np.testing.assert_allclose(variance, flat.var(0), rtol=1e-10)


def test_a_constant_channel_is_normalized_to_its_bias() -> None:
    y, _, variance = normalize(jnp.full((4, 1), 1e3), jnp.ones(1), jnp.full(1, 7.0), 1e-5)
    assert variance.tolist() == [0.0]
    np.testing.assert_allclose(y, 7.0)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("length", [3, 8, 9])
def test_pooling(length: int, size: int, stride: int) -> None:
    def plain(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, 1), (1, stride, 1), "SAME")

    agree(lambda x: max_pool(x, 1, size, stride), plain, draw(2, length, 3))


def test_of_equal_values_the_first_gets_the_derivative() -> None:
    slope = jax.grad(lambda x: max_pool(x, 0, 3, 2).sum())(jnp.array([1.0, 1.0, 0.0, 0.0, 2.0]))
    assert slope.tolist() == [1.0, 1.0, 0.0, 0.0, 1.0]


def test_the_rectifier_keeps_what_is_not_a_number() -> None:
    agree(rectify, jax.nn.relu, draw(50))
    assert jax.grad(lambda x: rectify(x))(0.0) == 0.0
    for kernel in (rectify, lambda x: max_pool(x, 0, 2, 2), lambda x: normalize(x[:, None], x[:1], x[:1], 1e-3)[0]):
        assert np.isnan(_first(kernel(jnp.array([jnp.nan, 1.0]))))


def _first(values: Any) -> float:
    return float(jnp.ravel(values)[0])

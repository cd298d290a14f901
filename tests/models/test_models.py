"""The networks: shapes, sizes, and that blocks make up the whole."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from toolkit.models.cnn import CNN
from toolkit.models.layers import BatchNorm, Convolution
from toolkit.models.linear import Linear
from toolkit.models.mlp import MLP
from toolkit.models.redshift_cnn import RedshiftCNN
from toolkit.models.resnet import ResNet

SPLIT: dict[str, tuple[Any, tuple[str, ...], tuple[int, ...]]] = {
    "mlp": (partial(MLP, sizes=(6, 5, 4, 3), dropout=0.5), MLP.blocks((6, 5, 4, 3)), (2, 3)),
    "cnn": (partial(CNN, shape=(8, 8, 1), widths=(2, 3)), CNN.blocks, (8, 8, 1)),
    "redshift": (partial(RedshiftCNN, bins=30, classes=5), RedshiftCNN.blocks, (30, 1)),
    "resnet": (partial(ResNet, depth=8), ResNet.blocks(8), (8, 8, 3)),
}


def learned(build: Any) -> int:
    """How many parameters a model has."""
    state = nnx.state(nnx.eval_shape(lambda: build(nnx.Rngs(0))), nnx.Param)
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("name", SPLIT)
def test_a_model_is_the_composition_of_its_blocks(name: str) -> None:
    build, blocks, shape = SPLIT[name]
    model = build(nnx.Rngs(0))
    model.eval()
    x = apart = jax.random.normal(jax.random.key(0), (3, *shape))
    for block in blocks:
        apart = getattr(model, block)(apart)
    np.testing.assert_array_equal(model(x), apart)
    assert np.isfinite(apart).all()


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (partial(ResNet, depth=20), 272_474),
        (partial(ResNet, depth=20, classes=100), 272_474 + 90 * 65),
        (partial(CNN, widths=(16, 32)), 9 * 16 + 32 + 9 * 16 * 32 + 64 + 49 * 32 * 10 + 10),
        (partial(MLP, sizes=(64, 32, 10)), 65 * 32 + 33 * 10),
        (RedshiftCNN, 144 + 2 * 2064 + 3 * 32 + 1_827_328 + 410_400),
        (partial(Linear, features=20, classes=3), 63),
    ],
)
def test_the_number_of_parameters(build: Any, count: int) -> None:
    assert learned(build) == count


@pytest.mark.parametrize(("depth", "millions"), [(32, 0.47), (44, 0.66), (56, 0.86), (110, 1.73)])
def test_deeper_networks_have_the_published_sizes(depth: int, millions: float) -> None:
    assert learned(partial(ResNet, depth=depth)) / 1e6 == pytest.approx(millions, abs=0.01)


@pytest.mark.parametrize("depth", [2, 9, 18, 21])
def test_other_depths_are_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=rf"depth {depth} was asked for\. The depth is 6 n \+ 2"):
        ResNet.blocks(depth)


def test_a_residual_network_takes_images_of_any_size() -> None:
    build = partial(ResNet, depth=8, channels=1)
    for size in (4, 28, 32):
        outputs = jax.eval_shape(lambda size=size: build(nnx.Rngs(0))(jnp.ones((2, size, size, 1))))
        assert outputs.shape == (2, 10)


def test_the_last_layer_neither_cuts_nor_drops() -> None:
    model = MLP(nnx.Rngs(0), sizes=(4, 3), dropout=0.9)
    x = jax.random.normal(jax.random.key(1), (50, 4))
    np.testing.assert_array_equal(model(x), model.layer0.dense(x))
    assert (model(x) < 0).any()


@pytest.mark.parametrize("name", SPLIT)
def test_parameters_have_the_type_of_the_session(name: str) -> None:
    build, _, _ = SPLIT[name]
    for wide, kind in ((False, np.float32), (True, np.float64)):
        with jax.enable_x64(wide):
            params = nnx.state(nnx.eval_shape(lambda: build(nnx.Rngs(0))), nnx.Param)
            assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(kind)}


@pytest.mark.parametrize("shape", [(1780, 1), (9, 1)])
def test_spectra_are_halved_three_times(shape: tuple[int, ...]) -> None:
    build = partial(RedshiftCNN, bins=shape[0], classes=7)
    assert jax.eval_shape(lambda: build(nnx.Rngs(0))(jnp.ones((2, *shape)))).shape == (2, 7)


def test_the_penalty_is_in_the_gradient_of_one_layer_alone() -> None:
    x = jax.random.normal(jax.random.key(0), (4, 24, 1))

    def gradient(l2: float) -> nnx.State:
        model = RedshiftCNN(nnx.Rngs(0), bins=24, classes=3, dropout=0.0, l2=l2)
        return nnx.grad(lambda model: jnp.square(model(x)).mean())(model)

    with_it, without = gradient(0.2), gradient(0.0)
    pulled = jax.tree.map(jnp.subtract, with_it, without)
    weights = RedshiftCNN(nnx.Rngs(0), bins=24, classes=3, dropout=0.0).hidden.kernel[...]
    np.testing.assert_allclose(pulled["hidden"]["kernel"][...], 0.4 * weights, rtol=1e-3, atol=1e-6)
    assert sum(int(jnp.count_nonzero(leaf)) for leaf in jax.tree.leaves(pulled)) <= weights.size


@pytest.mark.parametrize("name", ["cnn", "redshift", "resnet"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_layers_compute_what_those_of_flax_do(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, _, shape = SPLIT[name]
    build = partial(build, dropout=0.0, l2=0.0) if name == "redshift" else build

    def outcome() -> Any:
        model = build(nnx.Rngs(0))
        getattr(model, mode)()
        x = jax.random.normal(jax.random.key(1), (6, *shape))

        def loss(model: Any) -> jax.Array:
            return jnp.square(model(x)).mean()

        value, gradient = nnx.value_and_grad(loss)(model)
        return value, gradient, nnx.state(model, nnx.BatchStat)

    with jax.enable_x64(True):
        ours = outcome()
        for layer in (Convolution, BatchNorm):
            monkeypatch.setattr(layer, "__call__", layer.__mro__[1].__call__)
        theirs = outcome()
    # Running statistics of flax are float32 also beside float64.
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-9), ours, theirs)

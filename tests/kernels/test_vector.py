"""A model and its vector are the same thing."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from toolkit.kernels.vector import ModelError, StatePolicy, Vector
from toolkit.models.cnn import CNN
from toolkit.models.mlp import MLP

SMALL_CNN = partial(CNN, shape=(4, 4, 1), classes=3, widths=(2, 2))
DEEP = (2,) * 13
MODELS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "one block": (SMALL_CNN, ()),
    "three blocks": (SMALL_CNN, CNN.blocks),
    "twelve blocks": (partial(MLP, sizes=DEEP, dropout=0.5), MLP.blocks(DEEP)),
}


@pytest.mark.parametrize("policy", ["averaged", "local"])
@pytest.mark.parametrize("case", MODELS)
def test_packing_undoes_unpacking(case: str, policy: StatePolicy) -> None:
    build, blocks = MODELS[case]
    vector = Vector.of(build, blocks, policy)
    flat = np.random.default_rng(0).normal(size=vector.layout.size).astype(np.float32)
    local = np.random.default_rng(1).normal(size=vector.local_size).astype(np.float32)
    again = jax.jit(lambda flat, local: vector.pack(*vector.unpack(flat, local)))(flat, local)
    np.testing.assert_array_equal(again[0], flat)
    np.testing.assert_array_equal(again[1], local)


def test_a_piece_names_the_values_of_its_tensor() -> None:
    vector = Vector.of(SMALL_CNN, CNN.blocks)
    flat, _ = vector.initial(SMALL_CNN, CNN.blocks, seed=3)
    module = SMALL_CNN(nnx.Rngs(3))
    for piece, (start, stop) in vector.layout.spans():
        tensor = module
        for name in piece.name.split("."):
            tensor = getattr(tensor, name)
        np.testing.assert_array_equal(flat[start:stop], np.ravel(tensor[...]))


def test_a_block_lies_together_and_ends_in_its_state() -> None:
    pieces = Vector.of(SMALL_CNN, CNN.blocks).layout.pieces
    assert [(piece.block, piece.trainable) for piece in pieces] == [
        *[("first", True)] * 3,
        *[("first", False)] * 2,
        *[("second", True)] * 3,
        *[("second", False)] * 2,
        *[("head", True)] * 2,
    ]


def test_deep_models_keep_their_order() -> None:
    vector = Vector.of(partial(MLP, sizes=DEEP), ())
    flat, _ = vector.initial(partial(MLP, sizes=DEEP), (), seed=0)
    x = jnp.ones((1, 2))
    params, states = vector.unpack(jnp.asarray(flat), jnp.zeros(0))
    np.testing.assert_allclose(vector.call(params, states, x, None)[0], MLP(nnx.Rngs(0), sizes=DEEP)(x), rtol=1e-6)


def test_the_mask_marks_what_is_learned() -> None:
    vector = Vector.of(SMALL_CNN)
    assert vector.trainable is not None
    assert vector.trainable.sum() == vector.layout.size - vector.layout.state(vector.layout.whole)
    assert Vector.of(SMALL_CNN, policy="local").trainable is None


def test_local_state_leaves_the_vector() -> None:
    averaged, local = Vector.of(SMALL_CNN), Vector.of(SMALL_CNN, policy="local")
    assert averaged.local_size == 0
    assert averaged.layout.size == local.layout.size + local.local_size


def test_the_seed_makes_the_model() -> None:
    vector = Vector.of(SMALL_CNN)
    one, same, other = (vector.initial(SMALL_CNN, (), seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_itemsize_follows_the_type() -> None:
    with jax.enable_x64(True):
        vector = Vector.of(SMALL_CNN)
        assert (vector.dtype, vector.layout.itemsize) == (np.float64, 8)
        assert vector.initial(SMALL_CNN, (), 0)[0].dtype == np.float64
    assert Vector.of(SMALL_CNN).layout.itemsize == 4


def test_a_constructor_may_look_at_its_values() -> None:
    class Curious(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.weight = nnx.Param(jax.random.normal(rngs(), (3,)))
            self.norm = float(jnp.linalg.norm(self.weight[...]))

        def __call__(self, x: jax.Array) -> jax.Array:
            return x * self.weight[...]

    assert Vector.of(Curious).layout.size == 3


class Mixed(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(2, 2, param_dtype=jnp.float16, rngs=rngs)
        self.second = nnx.Linear(2, 2, rngs=rngs)


class Half(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(2, param_dtype=jnp.bfloat16, rngs=rngs)


class Shared(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(2, 2, rngs=rngs)
        self.second = nnx.Sequential(self.first)


class Whole(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.table = nnx.Param(jnp.arange(3))


class Empty(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        pass


@pytest.mark.parametrize(
    ("build", "blocks", "policy", "says"),
    [
        (Mixed, (), "averaged", r"types \['float16', 'float32'\]"),
        (Half, (), "averaged", r"types \['bfloat16'\] and its state \['float32'\]"),
        (Shared, ("first", "second"), "averaged", "hold 12 values and the model 6"),
        (SMALL_CNN, ("first", "second"), "averaged", "exactly one block"),
        (SMALL_CNN, ("first", "middle"), "averaged", r"\['middle'\] are not modules of CNN"),
        (Whole, (), "averaged", "parameters of the model are int32"),
        (Empty, (), "averaged", "Build the model with parameters"),
        (SMALL_CNN, (), "shared", "state policy is 'shared'"),
    ],
)
def test_refusals(build: Any, blocks: tuple[str, ...], policy: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        Vector.of(build, blocks, policy)

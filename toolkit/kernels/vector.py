"""A model as one flat vector: the blocks of a flax module, taken apart once and put together again inside `jit`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from toolkit.core.errors import Refused
from toolkit.core.layout import Layout, Piece

Tree: TypeAlias = Any
Build: TypeAlias = Callable[[nnx.Rngs], nnx.Module]
StatePolicy: TypeAlias = Literal["averaged", "local"]

# What is neither learned, nor random, nor a by-product of a call: batch-norm statistics and the like.
STATE = nnx.Not(nnx.Any(nnx.Param, nnx.RngState, nnx.Intermediate))


class ModelError(Refused):
    """A flax module that cannot be written as one vector."""


@dataclass(frozen=True)
class Block:
    """A part of a model: its structure when training and when evaluating, and the shapes of its tensors."""

    name: str
    training: nnx.GraphDef[Any]
    evaluating: nnx.GraphDef[Any]
    params: nnx.State
    state: nnx.State
    rngs: nnx.State

    @classmethod
    def of(cls, name: str, module: nnx.Module) -> Block:
        """Take a module apart. As built it is in training mode; it is left in evaluation mode."""
        training, params, rngs, state = take_apart(module)
        module.eval()
        return cls(name, training, nnx.graphdef(module), *map(shapes, (params, state, rngs)))

    def call(self, params: Tree, state: Tree, x: jax.Array, key: jax.Array | None) -> tuple[jax.Array, Tree]:
        """The output on rows `x` and the state after it: training with a random `key`, evaluation with None."""
        graph, key = (self.evaluating, jax.random.key(0)) if key is None else (self.training, key)
        # Without the copy, tensors of the caller's trace would be written to from inside it.
        module: Any = nnx.merge(graph, params, state, self.seeded(key), copy=True)
        return module(x), nnx.state(module, STATE)

    def seeded(self, key: jax.Array) -> nnx.State:
        """Fresh random streams, each a function of `key` and of its own name only."""

        def stream(path: tuple[Any, ...], leaf: Any) -> jax.Array:
            if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jnp.zeros(leaf.shape, leaf.dtype)
            own = jax.random.fold_in(key, zlib.crc32(f"{self.name}{jax.tree_util.keystr(path)}".encode()))
            return jax.random.split(own, leaf.shape) if leaf.shape else own

        return jax.tree_util.tree_map_with_path(stream, self.rngs)

    def pieces(self) -> Iterator[tuple[Piece, Any]]:
        """Each tensor as a piece, with its shape and type: first what is learned, then the state."""
        for tree, trainable in ((self.params, True), (self.state, False)):
            for (path, _), leaf in zip(nnx.to_flat_state(tree), jax.tree.leaves(tree), strict=True):
                yield Piece(".".join(map(str, (self.name, *path))), leaf.size, self.name, trainable), leaf


@dataclass(frozen=True)
class Vector:
    r"""A model's tensors as one flat vector of shape [P], and back.

    The order is block by block, in a block first what is learned and then its state. With state policy
    ``"averaged"`` the state is part of the vector; with ``"local"`` it is a second vector of shape [S] that stays
    where it is.

    Parameters
    ----------
    blocks : tuple of Block
        In forward order.
    policy : {"averaged", "local"}
        Where the model state lives.

    Examples
    --------
    >>> vector = Vector.of(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
    >>> [(piece.name, piece.size) for piece in vector.layout.pieces]
    [('model.bias', 2), ('model.kernel', 6)]
    """

    blocks: tuple[Block, ...]
    policy: StatePolicy = "averaged"

    @classmethod
    def of(cls, build: Build, blocks: Sequence[str] = (), policy: StatePolicy = "averaged") -> Vector:
        """Describe the model that `build` makes, split at the attributes named in `blocks` (none: one block)."""
        if policy not in ("averaged", "local"):
            raise ModelError(
                f"The state policy is {policy!r}. Batch-norm statistics are averaged with the parameters or stay where "
                f'they are. Use "averaged" or "local".'
            )
        module = blueprint(build)
        total = sum(leaf.size for leaf in jax.tree.leaves(shapes(nnx.state(module, nnx.Not(nnx.RngState)))))
        vector = cls(tuple(Block.of(name, part) for name, part in split(module, blocks)), policy)
        found = sum(piece.size for block in vector.blocks for piece, _ in block.pieces())
        if found != total:
            raise ModelError(
                f"The blocks {tuple(blocks)} hold {found} values and the model {total}. Each tensor belongs to exactly "
                f"one block. Name every part of the model once, and do not share tensors between blocks."
            )
        types = {trainable: vector.types(trainable) for trainable in (True, False)}
        # Flax keeps batch statistics in float32 beside float64 parameters: a wider vector holds them without loss.
        if len(types[True]) != 1 or any(jnp.promote_types(one, vector.dtype) != vector.dtype for one in types[False]):
            raise ModelError(
                f"The parameters of the model have the types {types[True]} and its state {types[False]}. One vector "
                f"holds floats of one type. Build the model with parameters, of one type no narrower than its state."
            )
        if not jnp.issubdtype(vector.dtype, jnp.floating):
            raise ModelError(
                f"The parameters of the model are {vector.dtype}. Only floats can be learned and averaged. Build the "
                f"model with float32 or float64 tensors."
            )
        return vector

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type of every value: that of the parameters."""
        return np.dtype(next((leaf.dtype for leaf in jax.tree.leaves([b.params for b in self.blocks])), np.float32))

    def types(self, trainable: bool) -> list[str]:
        """The types of all parameters, or of all state."""
        pieces = (pair for block in self.blocks for pair in block.pieces())
        return sorted({str(leaf.dtype) for piece, leaf in pieces if piece.trainable == trainable})

    @cached_property
    def layout(self) -> Layout:
        """The pieces of the vector that travels."""
        pieces = (piece for block in self.blocks for piece, _ in block.pieces())
        kept = tuple(piece for piece in pieces if piece.trainable or self.policy == "averaged")
        return Layout(kept, self.dtype.itemsize)

    @cached_property
    def trainable(self) -> np.ndarray | None:
        """Which values are learned, shape [P]; None when all are."""
        pieces = self.layout.pieces
        if all(piece.trainable for piece in pieces):
            return None
        return np.repeat([piece.trainable for piece in pieces], [piece.size for piece in pieces])

    @cached_property
    def local_size(self) -> int:
        """How many values the local state holds."""
        return sum(leaf.size for leaf in jax.tree.leaves(self._local))

    @cached_property
    def _own(self) -> Tree:
        return tuple((b.params, b.state if self.policy == "averaged" else ()) for b in self.blocks)

    @cached_property
    def _local(self) -> Tree:
        return tuple(() if self.policy == "averaged" else b.state for b in self.blocks)

    def unpack(self, flat: jax.Array, local: jax.Array) -> tuple[Tree, Tree]:
        """Parameters and states, one tree per block, from the vector [P] and the local state [S]."""
        pairs, rest = unravel(self._own, flat), unravel(self._local, local)
        inside = self.policy == "averaged"
        states = tuple(state if inside else kept for (_, state), kept in zip(pairs, rest, strict=True))
        return tuple(params for params, _ in pairs), states

    def pack(self, params: Tree, states: Tree) -> tuple[jax.Array, jax.Array]:
        """The vector [P] and the local state [S] of parameters and states, one tree per block."""
        if self.policy == "averaged":
            return self.ravel(tuple(zip(params, states, strict=True))), self.ravel(())
        return self.ravel(params), self.ravel(states)

    def changes(self, gradient: Tree, before: Tree, after: Tree) -> tuple[jax.Array, jax.Array]:
        """The update [P], in state entries old minus new, and the new local state [S]."""
        if self.policy == "averaged":
            return self.pack(gradient, jax.tree.map(jnp.subtract, before, after))
        return self.pack(gradient, after)

    def ravel(self, tree: Tree) -> jax.Array:
        """All tensors of a tree behind each other."""
        leaves = [leaf.reshape(-1).astype(self.dtype) for leaf in jax.tree.leaves(tree)]
        return jnp.concatenate(leaves) if leaves else jnp.zeros(0, self.dtype)

    def call(self, params: Tree, states: Tree, x: jax.Array, key: jax.Array | None) -> tuple[jax.Array, Tree]:
        """The output of the blocks one after the other, and their states after it."""
        new = []
        for block, own, state in zip(self.blocks, params, states, strict=True):
            x, after = block.call(own, state, x, key)
            new.append(after)
        return x, tuple(new)

    def initial(self, build: Build, blocks: Sequence[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The vector [P] and the local state [S] of the model built from `seed`."""
        trees = [take_apart(part) for _, part in split(build(nnx.Rngs(seed)), blocks)]
        flat, local = self.pack(tuple(params for _, params, _, _ in trees), tuple(state for *_, state in trees))
        return np.asarray(flat), np.asarray(local)


def blueprint(build: Build) -> nnx.Module:
    """The module without values; with values if its constructor looks at them."""
    example = "Give a function such as `def model(rngs): return nnx.Linear(4, 3, rngs=rngs)`"

    def module() -> nnx.Module:
        made: object = build(nnx.Rngs(0))
        if not isinstance(made, nnx.Module):
            raise TypeError(f"what it returns is a {type(made).__name__}")
        return made

    if not callable(build) or isinstance(build, nnx.Module):
        raise ModelError(
            f"The model is a {type(build).__name__} and no function that builds one. "
            f"Each process builds its own, from random streams that it is given. {example}."
        )
    try:
        try:
            return nnx.eval_shape(module)
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
            return module()
    except RecursionError as reason:
        raise ModelError(
            "The model nests its parts too deep for Python, which follows them one call inside the other. "
            "A process that trains could not take it apart. Keep the layers side by side, as in nnx.Sequential."
        ) from reason
    except Exception as reason:  # whatever a user's function raises, it is the model that cannot be built
        raise ModelError(
            f"The model cannot be built: {type(reason).__name__}: {reason}. "
            f"It is called with nnx.Rngs alone and returns a flax module. {example}."
        ) from reason


def split(module: nnx.Module, names: Sequence[str]) -> list[tuple[str, nnx.Module]]:
    """The named blocks of a module; without names the module itself, as block "model"."""
    parts = [(name, getattr(module, name, None)) for name in names] or [("model", module)]
    if missing := [name for name, part in parts if not isinstance(part, nnx.Module)]:
        raise ModelError(
            f"The blocks {missing} are not modules of {type(module).__name__}. A block is an attribute that holds a "
            f"flax module. Name attributes of the model, in forward order."
        )
    return [(name, part) for name, part in parts if part is not None]


def take_apart(module: nnx.Module) -> tuple[nnx.GraphDef[Any], nnx.State, nnx.State, nnx.State]:
    """Structure, parameters, random streams and state of a module."""
    graph, params, rngs, state = cast(tuple[Any, ...], nnx.split(module, nnx.Param, nnx.RngState, ...))
    return graph, params, rngs, state


def shapes(tree: Tree) -> Tree:
    """A tree of shapes and types instead of arrays."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def unravel(template: Tree, flat: jax.Array) -> Tree:
    """Cut a flat vector into a tree of tensors like `template`."""
    leaves, structure = jax.tree.flatten(template)
    edges = np.cumsum([leaf.size for leaf in leaves])[:-1].tolist()
    parts = jnp.split(flat, edges) if leaves else []
    return jax.tree.unflatten(structure, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])

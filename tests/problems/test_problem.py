"""A problem travels as a recipe, and one that cannot be learned is refused before it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import dask.array
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
import zarr
from flax import nnx

import toolkit.problems.problem as module
from toolkit.core.errors import Refused
from toolkit.kernels.training import Learner, LossError
from toolkit.problems.checks import ProblemError, check
from toolkit.problems.digits import digits
from toolkit.problems.images import images
from toolkit.problems.logistic import logistic
from toolkit.problems.measures import accuracy, cross_entropy, half_square
from toolkit.problems.problem import Problem, problem
from toolkit.problems.quadratic import optimum, quadratic

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.arange(12, dtype=np.int32) % 3
BUILT: dict[str, Callable[[], Problem]] = {
    "quadratic": lambda: quadratic(dim=1000, rows=1000),
    "logistic": lambda: logistic(dim=100, rows=4000),
    "digits": digits,
    "images": images,
    "residual": lambda: images(model="resnet20"),
}


def linear(rngs: nnx.Rngs) -> nnx.Module:
    """Four values in, three scores out."""
    return nnx.Linear(4, 3, rngs=rngs)


def own(**changes: Any) -> Problem:
    """A user's own problem, with changes."""
    given = {"model": linear, "loss": cross_entropy, "train": (X, Y), "test": (X, Y), "batch": 4}
    return problem(**(given | changes))


@pytest.mark.parametrize("name", BUILT)
def test_a_problem_travels_as_its_recipe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("rows were loaded to be sent")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_loaded", refuse)
        raw = cloudpickle.dumps(BUILT[name]())
    assert len(raw) < 50_000
    assert cloudpickle.loads(raw).train.rows == BUILT[name]().train.rows


@pytest.mark.parametrize("name", BUILT)
def test_the_problems_of_the_package_fit_together(name: str) -> None:
    check(BUILT[name]())


@pytest.mark.parametrize("name", ["quadratic", "logistic", "digits", "images"])
def test_the_name_is_the_call(name: str) -> None:
    made = BUILT[name]()
    again = eval(repr(made), {"quadratic": quadratic, "logistic": logistic, "digits": digits, "images": images})
    assert repr(again) == repr(made) == made.name
    for part in ("train", "test"):
        for mine, other in zip(*(getattr(one, part).take(np.arange(3)) for one in (made, again)), strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("make", [quadratic, logistic, digits])
def test_the_seed_makes_the_rows(make: Callable[..., Problem]) -> None:
    rows = [make(seed=seed).train.take(np.arange(20))[0 if make is digits else 1] for seed in (0, 1)]
    assert not np.array_equal(*rows)


def test_the_split_of_digits_covers_all_rows_once() -> None:
    parts = [digits(seed=3).train, digits(seed=3).test]
    found = np.concatenate([part.take(np.arange(part.rows))[0] for part in parts])
    everything = digits(seed=4)
    other = np.concatenate([part.take(np.arange(part.rows))[0] for part in (everything.train, everything.test)])
    np.testing.assert_array_equal(np.unique(found, axis=0), np.unique(other, axis=0))


def test_the_optimum_has_no_gradient() -> None:
    with jax.enable_x64(True):
        made = quadratic(dim=7, rows=30, noise=0.7, condition=50.0, seed=5)
        learner = Learner(made)
        rows = made.train.take(np.arange(30))
        best = learner.gradient(optimum(made), np.zeros(0), rows, (0,))
        assert best.norm < 1e-14
        curvature = np.square(rows[0][0])
        assert curvature.max() / curvature.min() == pytest.approx(50.0)
        away = learner.gradient(optimum(made) + 1.0, np.zeros(0), rows, (0,))
        assert away.loss == pytest.approx(best.loss + curvature.sum() / 2, rel=1e-12)


def test_without_noise_one_row_tells_all() -> None:
    made = quadratic(noise=0.0, rows=5)
    _, y = made.train.take(np.arange(5))
    np.testing.assert_array_equal(y, np.tile(y[0], (5, 1)))


def stored(kind: str, folder: Path) -> tuple[Any, Any]:
    """The same rows behind another library."""
    if kind == "numpy":
        return X, Y
    if kind == "dask":
        return dask.array.from_array(X, chunks=(5, 4)), dask.array.from_array(Y, chunks=5)
    if kind == "xarray":
        return xarray.DataArray(X, dims=("row", "value")), xarray.DataArray(Y, dims="row")
    x = zarr.create_array(str(folder / "x"), shape=X.shape, chunks=(5, 4), dtype="float32")
    y = zarr.create_array(str(folder / "y"), shape=Y.shape, chunks=(5,), dtype="int32")
    x[:], y[:] = X, Y
    return x, y


@pytest.mark.parametrize("kind", ["numpy", "dask", "xarray", "zarr"])
def test_arrays_of_any_library_make_the_same_problem(kind: str, tmp_path: Path) -> None:
    made = own(train=stored(kind, tmp_path), metrics={"accuracy": accuracy})
    order = np.array([11, 0, 5, 6, 5])
    x, y = made.train.take(order)
    np.testing.assert_array_equal(x, X[order])
    np.testing.assert_array_equal(y, Y[order])
    learner = Learner(made)
    assert learner.evaluate(*learner.initial(), made.train, batch=5).keys() == {"loss", "accuracy"}


class Scaled(nnx.Module):
    """Does something between its blocks."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.second = nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(nnx.relu(self.first(x)))


def one(rngs: nnx.Rngs) -> nnx.Module:
    """Four values in, one out."""
    return nnx.Linear(4, 1, rngs=rngs)


def swapped(rngs: nnx.Rngs) -> nnx.Module:
    """Loses the rows."""
    return nnx.Sequential(nnx.Linear(4, 3, rngs=rngs), jnp.transpose)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"batch": 0}, ProblemError, "The batch is 0"),
        ({"batch": -3}, ProblemError, "The batch is -3"),
        ({"batch": 2.5}, ProblemError, "The batch is 2.5"),
        ({"batch": 13}, ProblemError, "The batch is 13 and there are 12 rows"),
        ({"reduction": "max"}, ProblemError, "The reduction is 'max'"),
        ({"metrics": {"loss": accuracy}}, ProblemError, 'A metric is called "loss"'),
        ({"train": (X, Y + 1)}, ProblemError, "training labels go from 1 to 3 and the model has 3 outputs"),
        ({"test": (X, Y - 1)}, ProblemError, "test labels go from -1 to 1"),
        ({"train": (np.where(X > 1, np.nan, X), Y)}, ValueError, "NaN"),
        ({"train": (X, Y[:5])}, ValueError, "equal length"),
        ({"train": (X[:, :3], Y)}, ProblemError, r"does not accept training inputs of shape \(97, 3\)"),
        ({"test": (X[:, :3], Y)}, ProblemError, "does not accept test inputs"),
        ({"loss": half_square, "train": (X, X)}, ProblemError, r"loss fails on outputs of shape \(97, 3\)"),
        ({"model": one, "loss": half_square, "train": (X, X[:, 0])}, ProblemError, "broadcast each row against all"),
        ({"loss": lambda o, t: o}, LossError, r"loss has the shape \(97, 3\)"),
        ({"metrics": {"top": lambda o, t: o.max()}}, LossError, r"top has the shape \(\)"),
        ({"model": swapped}, ProblemError, "Row i of the outputs must belong to row i of the inputs"),
        ({"model": Scaled, "blocks": ("first", "second")}, ProblemError, "differs from the composition of its blocks"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as found:
        own(**changes)
    assert isinstance(found.value, ValueError | TypeError)


class Nested(nnx.Module):
    """Each level holds the next."""

    def __init__(self, rngs: nnx.Rngs, levels: int = 200) -> None:
        self.inner = Nested(rngs, levels - 1) if levels else nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.inner(x)


def learning(change: Callable[[jax.Array], Any]) -> Callable[[Any, Any], Any]:
    """A loss, changed."""
    return lambda outputs, targets: change(cross_entropy(outputs, targets))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": None}, "is a NoneType and no function that builds one"),
        ({"model": "mlp"}, "is a str and no function"),
        ({"model": linear(nnx.Rngs(0))}, "is a Linear and no function"),
        ({"model": lambda rngs: None}, "what it returns is a NoneType"),
        ({"model": lambda rngs: 3}, "what it returns is a int"),
        ({"model": lambda: linear(nnx.Rngs(0))}, "cannot be built: TypeError"),
        ({"model": lambda rngs: {}["a"]}, "cannot be built: KeyError: 'a'"),
        ({"model": Nested}, "Keep the layers side by side"),
        ({"loss": learning(lambda each: None)}, "loss gives a NoneType"),
        ({"loss": learning(lambda each: (each, 1))}, "loss gives a tuple"),
        ({"loss": learning(lambda each: 0.0)}, "loss gives a float"),
        ({"loss": learning(lambda each: np.zeros(len(each), np.float32))}, "loss gives a ndarray"),
        ({"loss": lambda o, t: o.argmax(axis=-1)}, "loss gives values of type int32"),
        ({"loss": lambda o, t: o.argmax(axis=-1) == t}, "loss gives values of type bool"),
        ({"loss": learning(lambda each: each + 1j)}, "loss gives values of type complex64"),
        ({"metrics": {"a": learning(lambda each: each * 1j)}}, "a gives values of type complex64"),
        ({"metrics": {"a": learning(lambda each: 0.5)}}, "a gives a float"),
        ({"metrics": ["accuracy"]}, r"metrics are \['accuracy'\]"),
        ({"metrics": "accuracy"}, "metrics are 'accuracy'"),
        ({"metrics": {"a": 3}}, "metrics are {'a': 3}"),
        ({"metrics": {3: accuracy}}, "metrics are {3:"),
        ({"metrics": []}, r"metrics are \[\]"),
        ({"metrics": 0}, "metrics are 0"),
        ({"blocks": 5}, "blocks are 5"),
        ({"blocks": (1,)}, r"blocks are \(1,\)"),
        ({"blocks": "body"}, "blocks are 'body'"),
        ({"batch": True}, "batch is True"),
        ({"batch": None}, "batch is None"),
        ({"train": (np.ma.masked_array(X, X > 1), Y)}, "masked array that hides"),
        ({"train": (X, np.ma.masked_array(Y, Y > 1))}, "targets are a masked array"),
        ({"train": ([[1.0, 2.0], [3.0]], [0, 1])}, "inputs are no array"),
        ({"train": (xarray.Dataset({"x": (("a", "b"), X)}).chunk(), Y)}, "x is a Dataset"),
    ],
)
def test_parts_of_the_wrong_kind_are_refused_in_three_sentences(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused, match=says) as found:
        own(**changes)
    assert len(re.findall(r"[.`](?= [A-Z]|$)", str(found.value))) >= 3


def test_measures_of_whole_numbers_and_a_mask_that_hides_nothing_are_fine() -> None:
    own(metrics={"right": lambda o, t: o.argmax(axis=-1) == t, "label": lambda o, t: t})
    own(train=(np.ma.masked_array(X), Y), loss=learning(jnp.mean), batch=np.int64(4))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: quadratic(dim=0), "dim=0"),
        (lambda: quadratic(noise=-1.0), "noise=-1.0"),
        (lambda: quadratic(condition=0.5), "condition=0.5"),
        (lambda: logistic(classes=1), "classes=1"),
        (lambda: digits(model="tree"), "no model 'tree'"),
        (lambda: images("flowers"), "no image set 'flowers'"),
        (lambda: images(model="vgg"), "no image model 'vgg'"),
    ],
)
def test_impossible_problems_are_refused(make: Callable[[], Problem], says: str) -> None:
    with pytest.raises(ProblemError, match=says):
        make()


def test_a_model_that_can_be_split_passes_whole_and_in_blocks() -> None:
    class Split(Scaled):
        def __call__(self, x: jax.Array) -> jax.Array:
            return self.second(self.first(x))

    assert own(model=Split, blocks=("first", "second")).blocks == ("first", "second")


@pytest.mark.parametrize(("model", "rate"), [("logistic", 1.0), ("mlp", 0.5)])
def test_digits_are_learned(model: str, rate: float) -> None:
    made = digits(model=model)
    learner = Learner(made)
    vector, local = learner.initial()
    rows = made.train.take(np.arange(made.train.rows))
    start = learner.evaluate(vector, local, made.test)
    for clock in range(100):
        vector = vector - np.float32(rate) * learner.gradient(vector, local, rows, (0, 0, clock)).update
    end = learner.evaluate(vector, local, made.test)
    assert start["accuracy"] < 0.3
    assert end["accuracy"] > 0.9
    assert end["loss"] < start["loss"] / 3

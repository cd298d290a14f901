"""Handwritten digits of 8x8 pixels, as they come with scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from flax import nnx

from toolkit.data.sources import Arrays
from toolkit.models.linear import Linear
from toolkit.models.mlp import MLP
from toolkit.problems.checks import ProblemError
from toolkit.problems.measures import accuracy, cross_entropy
from toolkit.problems.problem import Problem, deferred

SIZES = (64, 32, 10)


def digits(seed: int = 0, batch: int = 32, model: str = "mlp") -> Problem:
    """Recognise 1,797 handwritten digits, a fifth of them held out for testing.

    Inputs [rows, 64] are pixels of 8x8 images, from 0 to 1; labels are 0 to 9.

    Parameters
    ----------
    seed : int
        Of the split.
    batch : int [rows], >= 1
        Rows per step and worker.
    model : {"mlp", "logistic"}
        One hidden layer of 32 units, split into two blocks; or softmax regression.

    References
    ----------
    Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI machine learning repository, 1998.

    Examples
    --------
    >>> import toolkit as tk
    >>> problem = tk.problems.digits()
    >>> problem.train.rows, problem.test.rows
    (1437, 360)
    """
    build: Callable[..., nnx.Module]
    match model:
        case "mlp":
            build, blocks = partial(MLP, sizes=SIZES), MLP.blocks(SIZES)
        case "logistic":
            build, blocks = partial(Linear, features=64, classes=10), ()
        case _:
            raise ProblemError(
                f'There is no model {model!r} for digits. They are small vectors. Use "mlp" or "logistic".'
            )
    name = f"digits(seed={seed}, batch={batch}, model={model!r})"
    train, test = deferred(split, seed)
    return Problem(name, build, cross_entropy, train, test, batch, {"accuracy": accuracy}, blocks)


def split(seed: int) -> tuple[Arrays, Arrays]:
    """Training and test rows: pixels from 0 to 1, labels from 0 to 9."""
    from sklearn.datasets import load_digits  # takes seconds to import, in every process

    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int32)
    order = np.random.default_rng(seed).permutation(len(x))
    test, train = np.split(order, [len(x) // 5 + 1])
    return Arrays(x[train], y[train]), Arrays(x[test], y[test])

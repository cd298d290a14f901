"""Softmax regression on synthetic rows: convex, so that every strategy has the same optimum."""

from __future__ import annotations

from functools import partial

import numpy as np

from toolkit.data.sources import Arrays
from toolkit.models.linear import Linear
from toolkit.problems.checks import ProblemError
from toolkit.problems.measures import accuracy, cross_entropy
from toolkit.problems.problem import Problem, deferred


def logistic(dim: int = 20, rows: int = 1024, classes: int = 2, seed: int = 0, batch: int = 16) -> Problem:
    r"""Softmax regression: normal inputs x, labels drawn from :math:`\mathrm{softmax}(Wx)`.

    W is hidden, its elements normal with the standard deviation :math:`2 / \sqrt{dim}`. A quarter as many rows are for
    testing.

    Parameters
    ----------
    dim : int, >= 1
        Values per row.
    rows : int, >= 4
        Training rows.
    classes : int, >= 2
        Labels.
    seed : int
        Of the hidden weights, the rows and the labels.
    batch : int [rows], >= 1
        Rows per step and worker.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.problems.logistic(dim=5, rows=40).test.rows
    10
    """
    if dim < 1 or rows < 4 or classes < 2:
        raise ProblemError(
            f"Softmax regression was asked for with dim={dim}, rows={rows}, classes={classes}. There must be something "
            f"to tell apart. Use dim of at least 1, rows of at least 4 and classes of at least 2."
        )
    name = f"logistic(dim={dim}, rows={rows}, classes={classes}, seed={seed}, batch={batch})"
    train, test = deferred(draws, dim, rows, classes, seed)
    model = partial(Linear, features=dim, classes=classes)
    return Problem(name, model, cross_entropy, train, test, batch, {"accuracy": accuracy})


def draws(dim: int, rows: int, classes: int, seed: int) -> tuple[Arrays, Arrays]:
    """Training and test rows."""
    draw = np.random.default_rng(seed)
    weights = 2.0 * draw.normal(size=(dim, classes)) / np.sqrt(dim)
    x = draw.normal(size=(rows + rows // 4, dim))
    # The highest of scores with Gumbel noise is a draw from their softmax.
    labels = (x @ weights + draw.gumbel(size=(len(x), classes))).argmax(axis=1).astype(np.int32)
    return Arrays(x[:rows], labels[:rows]), Arrays(x[rows:], labels[rows:])

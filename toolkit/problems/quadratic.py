"""A quadratic whose optimum is known in closed form."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from toolkit.data.sources import Arrays
from toolkit.problems.checks import ProblemError
from toolkit.problems.measures import half_square
from toolkit.problems.problem import Problem, deferred


class Point(nnx.Module):
    """One point in space, seen through the scales of a row: outputs :math:`x_j w_j`. It starts at zero."""

    def __init__(self, rngs: nnx.Rngs, *, dim: int) -> None:
        self.point = nnx.Param(jnp.zeros(dim, jnp.result_type(float)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Outputs [rows, dim]."""
        return x * self.point[...][None, :]


def quadratic(
    dim: int = 10, rows: int = 256, noise: float = 0.1, condition: float = 1.0, seed: int = 0, batch: int = 8
) -> Problem:
    r"""Find the centre of noisy points: a quadratic with a known optimum.

    The loss is the mean of :math:`\frac12 \sum_j a_j (w_j - t_{ij})^2` over the rows `i`. The optimum
    :math:`w^* = \frac1n \sum_i t_i` is computed by ``toolkit.problems.quadratic.optimum``. Learning starts at
    :math:`w = 0`, and the centre is drawn from a standard normal. Training and test rows are the same, so that the
    measured loss is the objective.

    Parameters
    ----------
    dim : int, >= 1
        Parameters.
    rows : int, >= 1
        Noisy points.
    noise : float, >= 0
        Their standard deviation; 0 makes every gradient exact.
    condition : float, >= 1
        Greatest curvature :math:`a_j` over the least; the greatest is 1, the others follow in equal ratios.
    seed : int
        Of the points.
    batch : int [rows], >= 1
        Rows per step and worker.

    Examples
    --------
    >>> import toolkit as tk
    >>> from toolkit.problems.quadratic import optimum
    >>> problem = tk.problems.quadratic(dim=3, rows=16, noise=0.5)
    >>> optimum(problem).shape
    (3,)
    """
    if dim < 1 or rows < 1 or noise < 0 or condition < 1:
        raise ProblemError(
            f"A quadratic was asked for with dim={dim}, rows={rows}, noise={noise}, condition={condition}. It needs a "
            f"parameter, a row, and a curvature. Use dim, rows and condition of at least 1 and noise of at least 0."
        )
    name = f"quadratic(dim={dim}, rows={rows}, noise={noise}, condition={condition}, seed={seed}, batch={batch})"
    train, test = deferred(points, dim, rows, noise, condition, seed)
    return Problem(name, partial(Point, dim=dim), half_square, train, test, batch)


def points(dim: int, rows: int, noise: float, condition: float, seed: int) -> tuple[Arrays, Arrays]:
    """The rows: inputs are the square roots of the curvatures, targets the scaled points."""
    draw = np.random.default_rng(seed)
    centre = draw.normal(size=dim)
    scales = np.sqrt(np.geomspace(1.0, 1.0 / condition, dim))
    found = centre + noise * draw.normal(size=(rows, dim))
    table = Arrays(np.tile(scales, (rows, 1)), found * scales)
    return table, table


def optimum(problem: Problem) -> np.ndarray:
    """The parameters that minimize a quadratic over its training rows, shape [dim].

    Examples
    --------
    >>> bool(np.allclose(optimum(quadratic(noise=0.0)), optimum(quadratic(noise=0.0, rows=1)), atol=2))
    True
    """
    x, y = problem.train.take(np.arange(problem.train.rows))
    return (x * y).sum(axis=0) / np.square(x).sum(axis=0)

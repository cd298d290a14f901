"""Corrections: what ``(update, staleness, pulled, params) -> update`` makes of each update before the mean.

All arrays are flat [n]. An update is subtracted from the parameters; `pulled` are the parameters that its worker had
read, `params` those at hand where the correction runs; `staleness` counts the merges in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from toolkit.core.checks import amount, fraction
from toolkit.core.errors import Refused
from toolkit.kernels.calls import read_call


@dataclass(frozen=True)
class Correction:
    """A change of each update before the mean: equal to, and restored from, its text.

    Parameters
    ----------
    spec : str
        The call that makes it, all its arguments included.
    where : {"server", "worker"}
        Where it runs: at a server `params` are the model, at a worker they are the worker's own replica.
    fn : callable
        ``(update, staleness, pulled, params) -> update`` on arrays [n]; pure, to be compiled with what surrounds it.
    keeps_replica : bool
        Whether a worker goes on from its own parameters, adding `update` to them, and not from the pulled ones.

    Examples
    --------
    >>> from toolkit.kernels.corrections import Correction
    >>> Correction.of("elastic(0.5)").where
    'worker'
    """

    spec: str
    where: Literal["server", "worker"]
    fn: Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike], jax.Array] = field(compare=False)
    keeps_replica: bool = False

    def __repr__(self) -> str:
        return self.spec

    @classmethod
    def of(cls, text: str) -> Correction:
        """Restore a correction from its text, read and never run; any other text is a ValueError."""
        make, args, named = read_call(text, _CORRECTIONS)
        try:
            return make(*args, **named)
        except TypeError as error:
            raise Refused(
                f"{text!r} cannot be resolved here. Its arguments do not fit: {error}. See help({make.__name__})."
            ) from None


def scale_by_staleness(power: float = 1.0) -> Correction:
    r"""Take smaller steps for staler updates: :math:`g / \max(1, \tau)^{power}`.

    Parameters
    ----------
    power : float, >= 0
        0 changes nothing; 1 is the rule of the paper, where the step is :math:`\eta / \tau`. A staleness of 0 is
        a full step, as 1 is. Below 0 or infinite, a ValueError.

    References
    ----------
    Zhang, Gupta, Lian and Liu, "Staleness-aware async-SGD for distributed deep learning", 2016.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import toolkit as tk
    >>> g = jnp.ones(2)
    >>> tk.scale_by_staleness().fn(g, 4, g, g)
    Array([0.25, 0.25], dtype=float32)
    """
    power = float(amount("power", power, "powers of the staleness"))
    return Correction(f"scale_by_staleness({power})", "server", partial(_scaled, power))


def delay_compensation(strength: float = 0.04) -> Correction:
    r"""Estimate the gradient at the present model from a late one.

    :math:`g \to g + \lambda\, g \odot g \odot (w - w_{pulled})`, where :math:`\lambda\, g \odot g` stands for the
    diagonal of the Hessian. With :math:`w = w_{pulled}` nothing changes.

    Parameters
    ----------
    strength : float, >= 0
        :math:`\lambda`; 0 changes nothing. Below 0 or infinite, a ValueError.

    References
    ----------
    Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", 2017.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import toolkit as tk
    >>> g, pulled, params = jnp.array([[2.0], [1.0], [1.5]])
    >>> tk.delay_compensation(0.5).fn(g, 1, pulled, params)
    Array([3.], dtype=float32)
    """
    strength = float(amount("strength", strength, "times the compensation"))
    return Correction(f"delay_compensation({strength})", "server", partial(_compensated, strength))


def elastic(alpha: float) -> Correction:
    r"""Elastic averaging (EASGD): worker and centre pull at each other.

    With :math:`u = \alpha\, (c - x)` the worker adds u to its replica x and the centre c subtracts it, with
    ``outer="sgd(1.0)"``. So :math:`x + c` stays as it is. The gradient that is passed in has no part in u: the worker
    has taken its local steps before.

    Parameters
    ----------
    alpha : float, in (0, 1]
        At 1 the two change places. Outside, a ValueError.

    References
    ----------
    Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", 2015.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import toolkit as tk
    >>> centre, replica = jnp.array([[1.0], [3.0]])
    >>> tk.elastic(0.25).fn(jnp.zeros(1), 0, centre, replica)
    Array([-0.5], dtype=float32)
    """
    alpha = float(fraction("alpha", alpha))
    return Correction(f"elastic({alpha})", "worker", partial(_pull, alpha), keeps_replica=True)


_CORRECTIONS: dict[str, Callable[..., Correction]] = {
    make.__name__: make for make in (scale_by_staleness, delay_compensation, elastic)
}


def _scaled(power: float, update: jax.Array, staleness: jax.Array, pulled: Any, params: Any) -> jax.Array:
    return update / jnp.maximum(staleness, 1).astype(update.dtype) ** power


def _compensated(strength: float, update: jax.Array, staleness: Any, pulled: jax.Array, params: jax.Array) -> jax.Array:
    return update + strength * update * update * (params - pulled)


def _pull(alpha: float, update: Any, staleness: Any, pulled: jax.Array, params: jax.Array) -> jax.Array:
    return alpha * (pulled - params)

"""Synchronous SGD with backup workers.

J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz, "Revisiting distributed synchronous SGD", ICLR workshop 2016.
"""

from __future__ import annotations

from toolkit.core.checks import whole
from toolkit.core.strategy import Strategy, strategy
from toolkit.policies.makers import barrier


@strategy
def backup(spares: int) -> Strategy:
    r"""Synchronous SGD that never waits for the `spares` slowest workers.

    A round merges the first :math:`n - b` fresh updates of n workers; a later one is dropped and its worker starts
    afresh.

    Parameters
    ----------
    spares : int [workers], >= 0
        :math:`b`. 0 is :func:`bsp`; with as many spares as workers each round takes the first update alone.

    Notes
    -----
    A worker that is always among the slowest contributes nothing: its rows are read and dropped.

    References
    ----------
    Chen et al., "Revisiting distributed synchronous SGD", 2016.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.backup(1), tk.parameter_server())
    chain(backup(1), parameter_server())
    """
    spares = whole("spares", spares, 0, "workers")
    return barrier(lambda progress: progress.count - spares)

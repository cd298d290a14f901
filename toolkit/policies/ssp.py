"""Stale synchronous parallel.

Q. Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
"""

from __future__ import annotations

from toolkit.core.checks import whole
from toolkit.core.strategy import Strategy, strategy
from toolkit.policies.makers import gate


@strategy
def ssp(staleness: float) -> Strategy:
    r"""Stale synchronous parallel: lead the slowest worker by at most `staleness` updates.

    A worker with clock :math:`c_p` (its completed updates) may start its next iteration iff
    :math:`c_p - \min_q c_q \le s`. Its lead is therefore at most :math:`s + 1` when that iteration is merged.

    Parameters
    ----------
    staleness : int [updates], >= 0
        :math:`s`. 0 gates like :func:`bsp` but merges each update on arrival; ``math.inf`` is :func:`asp`.

    Notes
    -----
    This staleness is a lead in iterations over the slowest worker. That of :func:`toolkit.metrics.staleness`, and of
    `stale_mean` and `stale_max` in a summary, counts the merges between the read and the merge of an update: among n
    workers at most :math:`(n - 1)(2s + 1)`, since meanwhile another worker goes from at most s behind to at most
    :math:`s + 1` ahead.

    References
    ----------
    Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", 2013.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.ssp(3), tk.parameter_server(shards=4))
    chain(ssp(3), parameter_server(4))
    """
    staleness = whole("staleness", staleness, 0, "updates", infinite=True)
    return gate(lambda progress, worker: progress.lead(worker) <= staleness)

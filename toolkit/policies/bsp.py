"""Bulk synchronous parallel.

L. G. Valiant, "A bridging model for parallel computation", Communications of the ACM 33(8), 1990.
"""

from __future__ import annotations

from toolkit.core.strategy import Strategy, strategy
from toolkit.policies.makers import barrier


@strategy
def bsp() -> Strategy:
    r"""Bulk synchronous parallel: each worker waits for every worker.

    A round merges one update of each worker, :math:`w \leftarrow w - \eta \sum_p m_p g_p / \sum_p m_p` with :math:`m_p`
    the rows behind update :math:`g_p`, and takes as long as its slowest worker.

    References
    ----------
    Valiant, "A bridging model for parallel computation", 1990.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.bsp(), tk.all_reduce(tk.ring))
    chain(bsp(), all_reduce(ring))
    """
    return barrier(lambda progress: progress.count)

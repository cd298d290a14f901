"""Asynchronous parallel.

B. Recht, C. Re, S. Wright, F. Niu, "Hogwild!", NIPS 2011; J. Dean et al., "Large scale distributed deep networks",
NIPS 2012.
"""

from __future__ import annotations

from toolkit.core.strategy import Strategy, strategy
from toolkit.policies.makers import gate


@strategy
def asp() -> Strategy:
    r"""Asynchronous parallel: nobody waits.

    Each update is merged as it arrives, :math:`w \leftarrow w - \eta g_p(w_{old})`, and its worker goes on at once.

    References
    ----------
    Recht et al., "Hogwild!", 2011; Dean et al., "Large scale distributed deep networks", 2012.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.asp(), tk.parameter_server(shards=2))
    chain(asp(), parameter_server(2))
    """
    return gate(lambda progress, worker: True)

"""Compression with error feedback.

S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error feedback fixes SignSGD and other gradient compression
schemes", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.core.errors import Refused
from toolkit.core.messages import Apply, Compute, Reduce, Send, Stage, Task
from toolkit.core.records import replace
from toolkit.core.strategy import Strategy, strategy
from toolkit.rewrites.codecs import Codec
from toolkit.rewrites.makers import rewrite


@strategy
def compress(codec: Codec) -> Strategy:
    r"""Encode each update once, where it is computed, with error feedback.

    What the code loses stays there for the next update. With residual :math:`e`, update :math:`u` and code C: send
    :math:`C(u + e)`, keep :math:`e \leftarrow u + e - C(u + e)`. Each part of an update is encoded by itself; model
    state travels uncompressed, and so do pulled parameters.

    Parameters
    ----------
    codec : Codec
        :func:`top_k`, :func:`random_k`, :func:`sign`, :func:`qsgd`, :func:`power_sgd` or :func:`fp16`. Over an
        all-reduce only a linear one, whose codes may be added.

    Raises
    ------
    Refused
        At the first merge over an all-reduce with a codec that is not linear.

    References
    ----------
    Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes", 2019.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.ssp(3), tk.parameter_server(4), tk.compress(tk.top_k(0.01)))
    chain(ssp(3), parameter_server(4), compress(top_k(0.01)))
    """
    if not isinstance(codec, Codec):
        raise Refused(
            f"compress was given {codec!r}, which is not a codec. It needs a rule for encoding. "
            f"Give one such as top_k(0.01)."
        )
    text = repr(codec)

    def change(task: Task) -> Sequence[Task]:
        match task:
            case Compute(parts=parts) | Stage(parts=parts) if parts:
                return (replace(task, codec=text),)
            case Send(item="update") | Apply(source="inbox" | "sum"):
                return (replace(task, codec=text),)
            case Reduce() if codec.linear:
                return (replace(task, codec=text),)
            case Reduce():
                raise Refused(
                    f"compress({text}) cannot shrink the updates of an all_reduce. "
                    f"A sum of such codes is not the code of the sum. "
                    f"Put all_gather() or parameter_server() above compress(), or use a linear codec such as fp16()."
                )
        return (task,)

    return rewrite(change)

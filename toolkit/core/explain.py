"""What a strategy is made of, in words."""

from __future__ import annotations

from typing import Final

from toolkit.core.strategy import Strategy, only

_SAYS: Final = {
    "policy": ("Ready, Committed, Finished, Joined, Left", "Release, Commit"),
    "exchange": (
        "Release, Commit from above; Done, Joined, Left from below",
        "tasks down; Ready, Committed, Finished up",
    ),
    "rewrite": ("tasks from above", "other tasks down"),
}


def explain(strategy: Strategy) -> str:
    """The layers of a strategy from coordinator to wire: what each is, hears and answers.

    Parameters
    ----------
    strategy : Strategy
        A chain, or one layer of it.

    Returns
    -------
    str
        Two lines per layer: its call, kind and first sentence; the messages it hears and answers.

    Examples
    --------
    >>> import toolkit as tk
    >>> print(tk.explain(tk.chain(tk.asp(), tk.parameter_server())))
    asp()                policy    Asynchronous parallel: nobody waits.
                         hears Ready, Committed, Finished, Joined, Left; answers Release, Commit
    parameter_server()   exchange  Pull, compute, push to servers that each hold a shard of the model.
                         hears Release, Commit from above; Done, Joined, Left from below; answers tasks down; Ready,
                         Committed, Finished up
    """
    layers = only("explain was given", strategy).layers or (strategy,)
    width = max(20, *(len(layer.spec) for layer in layers)) + 1
    lines = []
    for layer in layers:
        hears, answers = _SAYS.get(layer.kind, _SAYS["rewrite"])
        lines.append(f"{layer.spec:<{width}}{layer.kind:<9} {layer.doc}")
        lines.append(f"{'':<{width}}hears {hears}; answers {answers}")
    return "\n".join(line.rstrip() for line in lines)

"""The papers behind the names that stand in the text of a strategy."""

from __future__ import annotations

import ast
from importlib import resources
from typing import Final

from toolkit.core.strategy import Strategy, only

_PAPERS: Final = {
    "bsp": ("valiant1990",),
    "backup": ("chen2016",),
    "asp": ("recht2011", "dean2012"),
    "ssp": ("ho2013",),
    "dssp": ("zhao2019dssp",),
    "elastic_bsp": ("zhao2019elastic", "zhao2021"),
    "switch": ("lin2020",),
    "parameter_server": ("li2014",),
    "ring": ("patarasuk2009",),
    "halving_doubling": ("thakur2005",),
    "gossip": ("lian2017", "lian2018"),
    "local_steps": ("stich2019",),
    "adacomm": ("wang2019",),
    "compress": ("karimireddy2019",),
    "top_k": ("aji2017", "stich2018"),
    "random_k": ("stich2018",),
    "sign": ("bernstein2018",),
    "qsgd": ("alistarh2017",),
    "power_sgd": ("vogels2019",),
    "pipeline": ("huang2019",),
}


def cite(strategy: Strategy) -> str:
    """The BibTeX entries of the papers behind the layers of a strategy.

    Parameters
    ----------
    strategy : Strategy
        Or a single layer.

    Examples
    --------
    >>> import toolkit as tk
    >>> print(tk.cite(tk.ssp(3)).split(",")[0])
    @inproceedings{ho2013
    """
    tree = ast.parse(repr(only("cite was given", strategy)), mode="eval")
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    keys = {key for name in names for key in _PAPERS.get(name, ())}
    return "\n\n".join(entry for entry in entries() if entry.partition("{")[2].partition(",")[0] in keys)


def entries() -> list[str]:
    """Every BibTeX entry, in the order of the file."""
    return (resources.files("toolkit.core") / "references.bib").read_text().strip().split("\n\n")

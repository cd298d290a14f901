"""Synchronization strategies for distributed deep learning on CPU clusters: composed, trained, simulated, compared."""

from __future__ import annotations

import importlib
from typing import Any

from toolkit.core.conditions import epochs, iterations, reaches, seconds, updates
from toolkit.core.explain import explain
from toolkit.core.forecast import zipline
from toolkit.core.parse import parse
from toolkit.core.strategy import Strategy, chain, named, strategy
from toolkit.exchanges.all_gather import all_gather
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.gossip import gossip
from toolkit.exchanges.makers import exchange
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import Hop, halving_doubling, ring, schedule, tree
from toolkit.exchanges.topologies import complete_neighbours, random_peer, ring_neighbours, torus_neighbours
from toolkit.policies.asp import asp
from toolkit.policies.backup import backup
from toolkit.policies.bsp import bsp
from toolkit.policies.dssp import dssp
from toolkit.policies.elastic_bsp import elastic_bsp
from toolkit.policies.makers import barrier, gate
from toolkit.policies.ssp import ssp
from toolkit.policies.switch import switch
from toolkit.rewrites.codecs import fp16, power_sgd, qsgd, random_k, sign, top_k
from toolkit.rewrites.compress import compress
from toolkit.rewrites.forward_only import forward_only
from toolkit.rewrites.local_steps import adacomm, local_steps
from toolkit.rewrites.makers import rewrite
from toolkit.rewrites.pipeline import pipeline

#: What needs arrays, tables or a cluster is imported when it is first asked for: name -> module.
_LATER = {
    **dict.fromkeys(("Link", "Links"), "runtime.links"),
    **dict.fromkeys(("constant", "empirical", "exponential", "lognormal", "recorded", "slowed"), "runtime.timing"),
    "Simulator": "runtime.simulator",
    **dict.fromkeys(("simulate", "train", "compare", "start"), "training"),
    "sweep": "sweeping",
    "cite": "core.citations",
    "worth": "kernels.compression.worth",
    "Run": "run",
    **dict.fromkeys(("Runs", "load"), "runs"),
    **dict.fromkeys(("by_label", "by_speed", "contiguous", "dirichlet", "full_copy", "shuffled"), "data.partition"),
    **dict.fromkeys(("delay_compensation", "elastic", "scale_by_staleness"), "kernels.corrections"),
    **dict.fromkeys(("Problem", "problem"), "problems.problem"),
    "Dask": "runtime.cluster.dask",
    "attach": "runtime.cluster.live",
    "calibrate": "calibration",
}
_MODULES = ("metrics", "plots", "problems", "models")

__all__ = [
    "Hop",
    "Strategy",
    "adacomm",
    "all_gather",
    "all_reduce",
    "asp",
    "backup",
    "barrier",
    "bsp",
    "chain",
    "complete_neighbours",
    "compress",
    "dssp",
    "elastic_bsp",
    "epochs",
    "exchange",
    "explain",
    "forward_only",
    "fp16",
    "gate",
    "gossip",
    "halving_doubling",
    "iterations",
    "local_steps",
    "named",
    "parameter_server",
    "parse",
    "pipeline",
    "power_sgd",
    "qsgd",
    "random_k",
    "random_peer",
    "reaches",
    "rewrite",
    "ring",
    "ring_neighbours",
    "schedule",
    "seconds",
    "sign",
    "ssp",
    "strategy",
    "switch",
    "top_k",
    "torus_neighbours",
    "tree",
    "updates",
    "zipline",
    *_LATER,
    *_MODULES,
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"toolkit.{name}")
    if name in ("Run", "Runs", "load"):
        importlib.import_module("toolkit.training")  # what can replay a record
    if name in _LATER:
        value = getattr(importlib.import_module(f"toolkit.{_LATER[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'toolkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

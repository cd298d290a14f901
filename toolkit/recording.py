"""From the outcome of a run to its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pandas as pd
from flax import nnx

from toolkit.kernels.vector import Vector
from toolkit.place import Setup
from toolkit.prepare import Recipe
from toolkit.run import METRICS, RESOURCES, Run, table
from toolkit.runtime.outcome import Outcome
from toolkit.runtime.settings import versions
from toolkit.runtime.simulator import Simulator
from toolkit.trace import Trace

#: The option `numerics` of a run that was computed by one compiled loop instead of event by event.
COMPILED = "compiled"


def record(name: str, words: Mapping[str, Any], outcome: Outcome, on: Any, recipe: Recipe | None = None) -> Run:
    """The run that an outcome amounts to; if it ended by an error, that error, carrying the run."""
    trace = Trace()
    trace.rows.extend(outcome.rows)
    run = Run(
        name,
        words["recipe"],
        trace.frame(),
        measured=not isinstance(on, Simulator),
        seed=words["seed"],
        problem=words.get("problem", ""),
        optimizer=words.get("optimizer", ""),
        cluster={
            "description": repr(on),
            "hosts": {str(k): str(v) for k, v in outcome.hosts.items()},
            "settings": dict(outcome.settings),
            **{name: outcome.settings[name] for name in ("cpu", "oversubscribed") if name in outcome.settings},
        },
        options=dict(words["options"]),
        metrics=pd.DataFrame(outcome.metrics, columns=list(METRICS)),
        resources=table(RESOURCES, outcome.resources or None),
        events=tuple(outcome.events),
        versions=versions(),
        compile_seconds=float(sum(outcome.compile_seconds.values())),
        params=None if recipe is None or outcome.params is None else named_params(recipe.setup, outcome),
        status=outcome.status,
    )
    run.made = recipe
    if outcome.error is not None:
        outcome.error.run = run  # type: ignore[attr-defined]
        raise outcome.error
    return run


def named_params(setup: Setup, outcome: Outcome) -> dict[str, Any]:
    """The tensors of a model by block and name: what is learned, and its state."""
    with jax.enable_x64(setup.x64):
        vector = Vector.of(setup.problem.model, setup.problem.blocks, setup.state)  # type: ignore[arg-type]
        params, states = vector.unpack(outcome.params, outcome.local)  # type: ignore[arg-type]
    named: dict[str, Any] = {}
    for block, learned, rest in zip(vector.blocks, params, states, strict=True):
        for tree in (learned, rest):
            fill(named.setdefault(block.name, {}), nnx.to_pure_dict(tree) if isinstance(tree, nnx.State) else {})
    return named


def fill(goal: dict[Any, Any], tree: Mapping[Any, Any]) -> None:
    """Put the arrays of a nested mapping into another."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            fill(goal.setdefault(name, {}), value)
        else:
            goal[name] = np.asarray(value)

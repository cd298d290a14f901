"""Performing a recorded run again."""

from __future__ import annotations

import ast
import warnings
from dataclasses import replace

import jax
import pandas as pd

from toolkit.core.cluster import Cluster
from toolkit.core.errors import Refused
from toolkit.core.messages import Joined
from toolkit.core.parse import parse
from toolkit.kernels.corrections import Correction
from toolkit.prepare import Optimizer, Recipe, prepare
from toolkit.problems.problem import Problem
from toolkit.recording import named_params
from toolkit.run import Run
from toolkit.runtime import numerics, process
from toolkit.trace import key_from

#: What orders the reads and writes at each place.
STAMPS = ["kind", "key", "place", "peer", "src_seq", "dst_seq"]


def replay(
    run: Run, rounds: int | None = None, problem: Problem | None = None, optimizer: Optimizer | None = None
) -> Run:
    """Perform a recorded run again from its log, to bit-identical parameters.

    The log holds events and the order of reads and writes at each place, no arrays: all starts from seed and data.
    Identity is promised for equal settings and CPU model; a record made with other settings is replayed with a warning.

    Parameters
    ----------
    run : Run
        Of this session, or loaded.
    rounds : int, optional
        Stop after so many updates (merges).
    problem, optimizer : optional
        For a loaded run whose problem or optimizer was not one of the toolkit's own by text.
    """
    recipe = run.made or rebuilt(run, problem, optimizer)
    touched = run.trace[(run.trace["src_seq"] >= 0) | (run.trace["dst_seq"] >= 0)]
    stamps = [
        (str(kind), key_from(key), place_of(place), None if pd.isna(peer) else place_of(peer), int(reads), int(writes))
        for kind, key, place, peer, reads, writes in touched[STAMPS].itertuples(index=False)
    ]
    outcome = process.call(numerics.replay, recipe.strategy, recipe.setup, list(run.events), stamps, rounds)
    recorded = run.cluster.get("settings", {})
    names = ("cpu", "NPROC", "XLA_FLAGS", "JAX_ENABLE_X64")
    if other := [name for name in names if recorded.get(name) != outcome.settings.get(name)]:
        warnings.warn(
            f"The run was recorded with other settings: {', '.join(f'{n} was {recorded.get(n)!r}' for n in other)}. "
            f"Compiled results depend on them. The parameters of the replay may differ in their last bits.",
            stacklevel=2,
        )
    return replace(run, params=named_params(recipe.setup, outcome), status="replayed", made=recipe)


def place_of(text: str) -> int | str:
    """The name of a place from its text in a trace."""
    return int(text) if text.lstrip("-").isdigit() else text


def rebuilt(run: Run, problem: Problem | None, optimizer: Optimizer | None) -> Recipe:
    """The recipe of a loaded run, from its texts."""
    try:
        made = problem or parse(run.problem)
    except ValueError as error:
        raise Refused(
            f"The problem {run.problem!r} of the run {run.name!r} is not one that its text rebuilds. "
            f"A replay needs model and data. Call replay(problem=...) with the problem of the run."
        ) from error
    if optimizer is None and run.optimizer.startswith("optax:"):
        raise Refused(
            f"The optimizer of the run {run.name!r} was an object, recorded as {run.optimizer!r}. "
            f"Its numbers are not in the record. "
            f"Call replay(optimizer=...) with it, or train with a text such as 'sgd(0.1)'."
        )
    o, came = run.options, [event.worker for event in run.events if isinstance(event, Joined)]
    until, correction = parse(o["until"]), o["correction"]
    budget = dict.fromkeys(came, until.budget) if until.budget is not None else {}
    with jax.enable_x64(o["x64"] == "True"):
        return prepare(
            made,
            parse(run.recipe),
            Cluster(ast.literal_eval(o["workers"]), budget=budget, seed=run.seed),
            until,
            optimizer=optimizer or run.optimizer,
            outer=o["outer"],
            clock=o["clock"],
            scaling=o["scaling"],
            state=o["state"],
            deal=o["deal"] if o["deal"] in ("global", "shards") else parse(o["deal"]),
            correction=None if correction == "None" else Correction.of(correction),
            on_loss=o["on_loss"],
            evaluate=parse(o["evaluate"]),
        )

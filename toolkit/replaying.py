"""Performing a recorded run again."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pandas as pd

from toolkit.core.checks import whole
from toolkit.core.cluster import Cluster
from toolkit.core.errors import Refused
from toolkit.core.messages import Joined
from toolkit.core.parse import parse
from toolkit.kernels.corrections import Correction
from toolkit.prepare import Optimizer, Recipe, described, prepare
from toolkit.problems.problem import Problem
from toolkit.recording import COMPILED, named_params
from toolkit.run import Run, arrays
from toolkit.runtime import numerics, process
from toolkit.trace import key_from

#: What orders the reads and writes at each place.
STAMPS = ["kind", "key", "place", "peer", "src_seq", "dst_seq"]
#: The status of a replay: of all merges, of the first ones, and of all merges to parameters that are not the run's.
REPLAYED, CUT, OTHER = "replayed", "replayed up to update", "replayed to other parameters"


def replay(
    run: Run, rounds: int | None = None, problem: Problem | None = None, optimizer: Optimizer | None = None
) -> Run:
    """Perform a recorded run again from its log, to bit-identical parameters.

    The log holds events and the order of reads and writes at each place, no arrays: all starts from seed and data.
    Identity is promised for equal settings and CPU model; a record made with other settings is replayed with a warning,
    and so is one that ends at other parameters under equal settings. A run of :func:`sweep` that was compiled is equal
    but for rounding: the status says how far apart the two ended, relative to the length of the parameters.

    Parameters
    ----------
    run : Run
        Of this session, or loaded.
    rounds : int [updates], >= 0, optional
        Stop after so many updates (merges).
    problem, optimizer : optional
        Those of the run, for a loaded one whose problem or optimizer was not one of the toolkit's own by text.
    """
    if rounds is not None:
        rounds = whole("rounds", rounds, 0, "updates")
    own = run.made is not None and problem is None and optimizer is None
    recipe: Recipe = run.made if own else rebuilt(run, problem, optimizer)
    touched = run.trace[(run.trace["src_seq"] >= 0) | (run.trace["dst_seq"] >= 0)]
    stamps = [
        (str(kind), key_from(key), place_of(place), None if pd.isna(peer) else place_of(peer), int(reads), int(writes))
        for kind, key, place, peer, reads, writes in touched[STAMPS].itertuples(index=False)
    ]
    outcome = process.call(numerics.replay, recipe.strategy, recipe.setup, list(run.events), stamps, rounds)
    merges = int((run.trace["kind"] == "committed").sum())
    if outcome.tally.updates != merges:
        raise Refused(
            f"The events of the run {run.name!r} lead to {outcome.tally.updates} merges and its trace holds {merges}. "
            f"Both were written as one run, so rows are missing or altered. Replay a complete record."
        )
    recorded = run.cluster.get("settings", {})
    names = ("cpu", "NPROC", "XLA_FLAGS", "JAX_ENABLE_X64")
    params, status = named_params(recipe.setup, outcome), REPLAYED if rounds is None else f"{CUT} {rounds}"
    if other := [name for name in names if recorded.get(name) != outcome.settings.get(name)]:
        warnings.warn(
            f"The run was recorded with other settings: {', '.join(f'{n} was {recorded.get(n)!r}' for n in other)}. "
            f"Compiled results depend on them. The parameters of the replay may differ in their last bits.",
            stacklevel=2,
        )
    if run.options.get("numerics") == COMPILED:
        whole_run = status == REPLAYED and not run.status.startswith(CUT)
        status = f"{status}, {apart(params, run.params):.1g} from the compiled run" if whole_run else status
    elif not other and status == REPLAYED and not run.status.startswith(CUT) and not same(params, run.params):
        status = OTHER
        warnings.warn(
            f"The replay of {run.name!r} ended at other parameters than the run holds. Under equal settings they are "
            f"equal bit for bit, so the record was altered, or data, model or optimizer are not those of the run. "
            f"Trust neither before you know which: compare the record with the folder that was saved first.",
            stacklevel=2,
        )
    return replace(run, params=params, status=status, made=recipe)


def apart(params: Any, others: Any) -> float:
    """The distance between two sets of parameters, relative to the length of the second; NaN if that was not kept."""
    if not isinstance(others, Mapping):
        return math.nan
    one, two = (
        np.concatenate([array.ravel() for _, array in sorted(arrays(tree).items())], dtype=np.float64)
        for tree in (params, others)
    )
    return float(np.linalg.norm(one - two) / (np.linalg.norm(two) or 1.0))


def same(params: Any, others: Any) -> bool:
    """Whether two sets of parameters are equal bit for bit; nothing is known of parameters that were not kept."""
    if not isinstance(others, Mapping):
        return True
    one, two = arrays(params), arrays(others)
    return one.keys() == two.keys() and all(a.tobytes() == two[name].tobytes() for name, a in one.items())


def place_of(text: str) -> int | str:
    """The name of a place from its text in a trace."""
    return int(text) if text.lstrip("-").isdigit() else text


def rebuilt(run: Run, problem: Problem | None, optimizer: Optimizer | None) -> Recipe:
    """The recipe of a run from its texts, and from a problem or an optimizer that agree with them."""
    if not run.problem:
        raise Refused(
            f"The run {run.name!r} was simulated without arrays. It has no model and no data to compute with again. "
            f"Replay a run of train() or start()."
        )
    try:
        made = parse(run.problem) if problem is None else problem
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
    cluster, options, x64 = conventions(run)
    with jax.enable_x64(x64):
        chosen = run.optimizer if optimizer is None else optimizer
        recipe = prepare(made, parse(run.recipe), cluster, optimizer=chosen, **options)
        told = {"problem": (problem, ""), "optimizer": (optimizer, described(recipe.setup.optimizer))}
    for name, (given, states) in told.items():
        if given is not None and getattr(run, name) not in (recipe.words[name], states):
            raise Refused(
                f"The {name} {recipe.words[name]!r} was given to replay {run.name!r}, which was trained with "
                f"{getattr(run, name)!r}. A replay performs the recorded run again and no other. "
                f"Give the {name} of the run, or train with this one."
            )
    return recipe


def conventions(run: Run) -> tuple[Cluster, dict[str, Any], bool]:
    """The workers of a run, the options of its training, and whether it computed in double precision."""
    o, came = run.options, [event.worker for event in run.events if isinstance(event, Joined)]
    try:
        until, workers = parse(o["until"]), ast.literal_eval(o["workers"])
        budget = dict.fromkeys(came, until.budget) if until.budget is not None else {}
        options: dict[str, Any] = {name: o[name] for name in ("outer", "clock", "scaling", "state", "on_loss")}
        options |= {"until": until, "evaluate": parse(o["evaluate"])}
        options["deal"] = o["deal"] if o["deal"] in ("global", "shards") else parse(o["deal"])
        options["correction"] = None if o["correction"] == "None" else Correction.of(o["correction"])
        return Cluster(tuple(map(int, workers)), budget=budget, seed=run.seed), options, o["x64"] == "True"
    except (AttributeError, KeyError, SyntaxError, TypeError, ValueError) as error:
        raise Refused(
            f"The options of the run {run.name!r} do not tell how it was trained ({type(error).__name__}: {error}). "
            f"A replay needs all of them as they were recorded. Load the run from the folder that save() made."
        ) from error

"""From what a user asks for to what a runtime needs: checks, the complete strategy, the setup of its places."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import numpy as np
import optax

from toolkit.checks import correctable, demand, expect, measurable, recurring
from toolkit.core.cluster import Cluster
from toolkit.core.conditions import Condition, Either, epochs
from toolkit.core.errors import Refused
from toolkit.core.messages import Compute, Joined, Stage
from toolkit.core.strategy import Strategy, chain, named
from toolkit.data.partition import WAYS, Way, shuffled
from toolkit.data.sources import targets
from toolkit.kernels.corrections import Correction
from toolkit.kernels.vector import Vector
from toolkit.place import Setup, double
from toolkit.problems.checks import check
from toolkit.problems.digits import digits
from toolkit.problems.images import images
from toolkit.problems.logistic import logistic
from toolkit.problems.problem import Problem
from toolkit.problems.quadratic import quadratic
from toolkit.rewrites.deal import deal as dealing
from toolkit.rewrites.evaluation import evaluation

PARSED: tuple[Callable[..., Any], ...] = (*WAYS, digits, images, logistic, quadratic)
for function in PARSED:
    named(function)

Optimizer: TypeAlias = optax.GradientTransformation | str


@dataclass(frozen=True)
class Recipe:
    """A run that is ready to start: what strategies decide on, what places hold, and the words for the record."""

    strategy: Strategy
    setup: Setup
    until: Condition
    words: Mapping[str, Any]


def prepare(
    problem: Problem,
    strategy: Strategy,
    cluster: Cluster,
    until: Condition,
    *,
    optimizer: Optimizer,
    outer: Optimizer = "sgd(1.0)",
    clock: str = "updates",
    scaling: str = "one",
    state: str = "averaged",
    deal: str | Way = "global",
    correction: Correction | None = None,
    on_loss: str = "stop",
    evaluate: Condition | None = None,
) -> Recipe:
    """Check that everything fits together and build the complete strategy and the setup."""
    expect("clock", clock, ("updates", "samples"))
    expect("scaling", scaling, ("one", "mean"))
    expect("state", state, ("averaged", "local"))
    expect("on_loss", on_loss, ("stop", "continue"))
    if not isinstance(deal, Way):
        expect("deal", deal, ("global", "shards"))
    demand("problem", problem, Problem, "tk.problem(model, loss, train=(x, y), test=(x, y)) or tk.problems.digits()")
    every = epochs(1) if evaluate is None else evaluate
    demand("evaluate", every, Condition, "epochs(1) or updates(100)")
    recurring(every)
    if correction is not None:
        demand("correction", correction, Correction, "scale_by_staleness(), delay_compensation() or elastic(0.5)")
    check(problem)
    measurable(until, problem)
    rows = problem.train.rows
    vector = Vector.of(problem.model, problem.blocks, state)  # type: ignore[arg-type]
    budget = dict.fromkeys(cluster.workers, until.budget) if until.budget is not None else {}
    cluster = replace(cluster, layout=vector.layout, rows=rows, budget={**budget, **cluster.budget})
    way = deal if isinstance(deal, Way) else shuffled() if deal == "shards" else None
    shards = sizes(problem, way, cluster)
    limit = whole_epochs(until, rows)
    everyone = state == "local" and vector.local_size > 0
    full = chain(strategy, evaluation(every, everyone), dealing(rows, problem.batch, shards, limit))
    cluster = replace(cluster, homes=full.places(cluster, {}))
    setup = Setup(
        problem,
        cluster,
        steppable("optimizer", optimizer, vector),
        steppable("outer optimizer", outer, vector),
        clock,
        scaling,
        state,
        correction,
        way,
        shards,
        limit,
        sample(full, cluster),
        double(),
    )
    if correction is not None:
        correctable(correction, setup)
    options = {"outer": outer, "clock": clock, "scaling": scaling, "state": state, "deal": deal}
    options |= {"correction": correction, "on_loss": on_loss, "evaluate": every, "until": until, "x64": setup.x64}
    options |= {"workers": cluster.workers}
    words = {
        "recipe": repr(strategy),
        "problem": repr(problem),
        "optimizer": described(optimizer),
        "seed": cluster.seed,
        "options": {name: described(value) for name, value in options.items()},
    }
    return Recipe(full, setup, until, words)


def reseeded(recipe: Recipe, seed: int) -> Recipe:
    """The same run of another seed; the sizes of its shards may differ from those that its strategy deals."""
    setup = recipe.setup
    cluster = replace(setup.cluster, seed=seed)
    shards = sizes(setup.problem, setup.way, cluster)
    return replace(recipe, setup=replace(setup, cluster=cluster, shards=shards), words={**recipe.words, "seed": seed})


def sizes(problem: Problem, way: Way | None, cluster: Cluster) -> dict[int, int] | None:
    """How many rows each worker owns."""
    if way is None:
        return None
    labels = targets(problem.train) if way.labelled else None
    owned = {w: len(p) for w, p in way(problem.train.rows, cluster.workers, cluster.seed, labels).items()}
    if max(owned.values()) < problem.batch:
        raise Refused(
            f"The batch is {problem.batch} rows and no worker owns more than {max(owned.values())}. "
            f"A step reads one batch of a worker's own rows. Use a smaller batch, fewer workers or more rows."
        )
    return owned


def whole_epochs(until: Condition, rows: int) -> int | None:
    """The rows after which no more are dealt, if the run ends with an epoch."""
    if isinstance(until, Either):
        limits = [whole_epochs(part, rows) for part in (until.first, until.second)]
        return min((limit for limit in limits if limit is not None), default=None)
    return until.samples(rows) if isinstance(until, epochs) else None


def sample(strategy: Strategy, cluster: Cluster) -> Compute | Stage | None:
    """The first computation that a strategy asks for."""
    state = strategy.init(cluster)
    for worker in cluster.workers:
        state, replies = strategy.step(state, Joined(worker, 0.0))
        for reply in replies:
            if isinstance(reply, (Compute, Stage)):
                return reply
    return None


def steppable(name: str, optimizer: Optimizer, vector: Vector) -> optax.GradientTransformation:
    """The optimizer, if it can make a step on a model; shapes only, nothing is computed."""
    made = transformation(optimizer)
    flat = jax.ShapeDtypeStruct((vector.layout.size,), vector.dtype)  # type: ignore[no-untyped-call]
    try:
        step, _ = jax.eval_shape(lambda flat: made.update(flat, made.init(flat), flat), flat)
        if (step.shape, step.dtype) != (flat.shape, flat.dtype):
            raise TypeError(f"it gives {step.dtype}{list(step.shape)} for parameters {flat.dtype}{list(flat.shape)}")
    except Exception as error:  # an optimizer can be anybody's code
        title = f"{name} {optimizer!r}" if isinstance(optimizer, str) else name
        raise Refused(
            f"The {title} cannot make a step ({type(error).__name__}: {error}). "
            f"A step is made from gradient, state and parameters, each one flat vector, and gives an update like them. "
            f"Give one that needs no more, such as optax.adam(0.01) or 'sgd(0.1)'."
        ) from error
    return made


def transformation(optimizer: Optimizer) -> optax.GradientTransformation:
    """The optimizer itself, or what a text such as ``"sgd(0.1, momentum=0.9)"`` names in optax."""
    if isinstance(optimizer, optax.GradientTransformation):
        return optimizer
    if isinstance(optimizer, str):
        try:
            made = _called(ast.parse(optimizer.strip(), mode="eval").body)
            if isinstance(made, optax.GradientTransformation):
                return made
            reason: object = f"it is a {type(made).__name__}"
        except (SyntaxError, ValueError, AttributeError, TypeError) as error:
            reason = error
    else:
        reason = f"it is a {type(optimizer).__name__}"
    raise Refused(
        f"The optimizer {optimizer!r} cannot be used: {reason}. "
        f"It is an optax transformation or the text of a call of one. Give optax.sgd(0.1) or 'sgd(0.1)'."
    )


def _called(node: ast.expr) -> Any:
    """A call of a public optax function with literals or further such calls; nothing is evaluated."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id.startswith("_") or not callable(function := getattr(optax, node.func.id)):
            raise ValueError(f"optax has no {node.func.id}")
        return function(*(_called(a) for a in node.args), **{k.arg: _called(k.value) for k in node.keywords if k.arg})
    if isinstance(node, ast.List | ast.Tuple):
        return [_called(item) for item in node.elts]
    return ast.literal_eval(node)


def described(value: object) -> str:
    """A word for the record; an optax transformation has no text of its own but the names of its states."""
    if isinstance(value, str):
        return value
    if isinstance(value, optax.GradientTransformation):
        shape = jax.eval_shape(value.init, np.zeros(1, np.float32))
        states = jax.tree.leaves(shape, is_leaf=lambda node: isinstance(node, tuple) and hasattr(node, "_fields"))
        return f"optax: {', '.join(type(state).__name__ for state in states)}"
    return repr(value)

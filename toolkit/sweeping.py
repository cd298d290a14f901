"""The same virtual run for several seeds: simulated once, learned for all of them together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from immutables import Map

from toolkit.checks import checked, demand, known, runnable
from toolkit.core.checks import seeding
from toolkit.core.conditions import Condition
from toolkit.core.errors import Refused
from toolkit.core.messages import Measured
from toolkit.core.strategy import Strategy
from toolkit.core.tally import Tally
from toolkit.place import Setup
from toolkit.prepare import Optimizer, Recipe, prepare, reseeded
from toolkit.problems.problem import Problem
from toolkit.progress import Progress
from toolkit.recording import COMPILED, record
from toolkit.run import Run
from toolkit.runs import Runs
from toolkit.runtime import process
from toolkit.runtime.drive import Drive
from toolkit.runtime.numerics import PACE, metrics
from toolkit.runtime.outcome import Outcome
from toolkit.runtime.record import Recorder
from toolkit.runtime.settings import describe
from toolkit.runtime.simulator import Simulator
from toolkit.trace import Row, Trace
from toolkit.training import train
from toolkit.work.schedule import Schedule
from toolkit.work.standin import StandIn
from toolkit.work.together import Learned, learn
from toolkit.work.unknown import Unknown, filled, number, plain


def sweep(
    problem: Problem,
    strategy: Strategy,
    *,
    seeds: Sequence[int],
    optimizer: Optimizer,
    on: Any,
    until: Condition,
    name: str = "",
    progress: bool = True,
    **options: Any,
) -> Runs:
    """Train one virtual run for several seeds: simulated once, learned for all together.

    When steps and messages take place in virtual time is drawn by the seed of the simulator, not by that of the run. So
    one order of events holds for all seeds, and one compiled loop over it learns them side by side. A sweep over one
    seed is the fast way to train a tiny model.

    Parameters
    ----------
    problem, strategy, optimizer, on, until
        As in :func:`train`.
    seeds : sequence of int, each 0 to 2**64 - 1
        Of initial parameters, order of rows and random numbers in the model; each once.
    name : str, optional
        Before the seed in the name of each run; the strategy's text by default.
    progress : bool
        Whether to show how far the sweep has come.
    **options
        All options of :func:`train`.

    Returns
    -------
    Runs
        ``"SSP seed 3"`` and so on, each as from ``train(seed=3)``: trace, summary, and metrics at the same points.

    Notes
    -----
    A compiled run, marked by the option `numerics`, agrees with that of :func:`train` but for rounding: at first to
    about 1e-6, and less as training goes on, which magnifies rounding. Its :meth:`Run.replay` goes event by event and
    says in its `status` how far apart the two ended.

    Whatever the compiled loop does not hold is trained seed by seed, as by :func:`train`: runs on a cluster; codecs,
    corrections, pipelines, gossip, forward-only steps, workers that join or leave; strategies and ends that depend on a
    metric or on the seed, such as ``reaches``, ``adacomm`` or shards whose sizes are drawn; and runs that diverge.

    Examples
    --------
    >>> import toolkit as tk
    >>> runs = tk.sweep(tk.problems.quadratic(), tk.chain(tk.ssp(3), tk.parameter_server()), seeds=range(3),
    ...                 optimizer="sgd(0.05)", on=tk.Simulator(4), until=tk.updates(20), name="SSP", progress=False)
    >>> runs
    Runs(SSP seed 0, SSP seed 1, SSP seed 2)
    >>> runs.summary()["loss"].nunique()  # one schedule, three models
    3
    """
    checked(strategy, until)
    demand("name", name, str, "'SSP'")
    known(options, prepare)
    runnable(on)
    chosen, title = several(seeds), name or repr(strategy)
    if isinstance(on, Simulator):
        cluster = on.describe(seed=chosen[0], budget=until.budget)
        recipe = prepare(problem, strategy, cluster, until, optimizer=optimizer, **options)
        runs = together(title, [recipe, *(reseeded(recipe, seed) for seed in chosen[1:])], on, progress)
        if runs is not None:
            return runs
    with on.kept() if hasattr(on, "kept") else contextlib.nullcontext(on) as ready:
        common = {"optimizer": optimizer, "on": ready, "until": until, "progress": progress, **options}
        alone = {seed: train(problem, strategy, seed=seed, name=f"{title} seed {seed}", **common) for seed in chosen}
    return Runs({run.name: run for run in alone.values()})


def several(seeds: object) -> list[int]:
    """Seeds, each once."""
    listed = list(seeds) if isinstance(seeds, Sequence | np.ndarray) and not isinstance(seeds, str) else []
    chosen = [seeding(seed) for seed in listed]
    if not chosen or len(set(chosen)) < len(chosen):
        raise Refused(
            f"seeds={seeds!r} do not name runs. Each seed is a run of its own. Give some, each once, as in range(8)."
        )
    return chosen


def together(title: str, recipes: Sequence[Recipe], on: Simulator, progress: bool) -> Runs | None:
    """The runs of recipes that differ in their seed alone; None if they cannot be learned together."""
    first = recipes[0]
    if on.joins or on.leaves or any(recipe.setup.shards != first.setup.shards for recipe in recipes):
        return None
    bar = Progress(f"{title}, {len(recipes)} seeds", total=100, unit="%") if progress else None

    def heard(said: tuple[Tally, float]) -> bool:
        if bar is not None:
            bar.update(said[0].time, said[0].updates, said[0].samples, fraction=said[1])
        return True

    try:
        setups = [recipe.setup for recipe in recipes]
        swept: Swept | None = process.call(perform, first.strategy, setups, on, first.until, heard=heard)
    finally:
        if bar is not None:
            bar.close()
    if swept is None:
        return None
    trace = Trace()
    trace.rows.extend(swept.outcome.rows)
    frame = trace.frame()
    return Runs(
        {
            run.name: run
            for recipe, learned in zip(recipes, swept.learned, strict=True)
            for run in [one(f"{title} seed {recipe.words['seed']}", recipe, swept.outcome, frame, learned, on)]
        }
    )


def one(name: str, recipe: Recipe, outcome: Outcome, frame: pd.DataFrame, learned: Learned, on: Simulator) -> Run:
    """The run of one seed: the common order with what this seed found."""
    numbers = learned.numbers
    rows = [(*when, what, numbers[number(value)]) for *when, what, value in outcome.metrics]
    own = replace(
        outcome,
        rows=[],
        events=list(filled(outcome.events, numbers.tolist())),
        metrics=rows,
        params=learned.vector,
        local=learned.local,
    )
    words = {**recipe.words, "options": {**recipe.words["options"], "numerics": COMPILED}}
    found = frame["loss"].to_numpy()
    losses = np.where(found > 0, numbers[np.nan_to_num(found).astype(int)], found)  # number 0 is the initial loss
    run = record(name, words, own, on, recipe)
    return replace(run, trace=frame.assign(loss=losses))


# -- in the process that computes -----------------------------------------------------------------------------------


@dataclass
class Swept:
    """What all seeds share, its numbers unknown, and what each learned."""

    outcome: Outcome
    learned: list[Learned]


def perform(
    strategy: Strategy, setups: Sequence[Setup], simulator: Simulator, until: Condition, say: Callable[[Any], bool]
) -> Swept | None:
    """Simulate once and learn for each setup; None if the runs must be performed one by one."""
    try:
        outcome, schedule = planned(strategy, setups[0], simulator, until)
    except Exception:  # whatever it is, runs of their own do it or say it
        return None
    heard = [0.0]

    def tell(share: float) -> None:
        if time.monotonic() - heard[0] > PACE:
            heard[0] = time.monotonic()
            say((replace(outcome.tally, metrics=Map()), share))

    learned, spent = learn(setups, schedule, tell)
    taken = [found for step in schedule.steps for found in step.numbers]
    if not all(np.isfinite(each.numbers[taken]).all() for each in learned):
        return None  # it diverged, and a run of its own says where
    outcome.compile_seconds = {"simulator": spent}
    return Swept(outcome, learned)


def planned(strategy: Strategy, setup: Setup, simulator: Simulator, until: Condition) -> tuple[Outcome, Schedule]:
    """The order of events, if it depends neither on what is learned nor on the seed, with its numbers unknown."""
    arrays, trace = StandIn(setup), Trace()
    hidden = replace(setup.cluster, seed=Unknown(0))  # type: ignore[arg-type]
    drive = Drive(strategy, hidden, Recorder(trace), until)
    for name, value in arrays.measure(None, arrays.looks()).items():
        drive.feed(Measured(name, value, -1, 0.0))
    simulator.run(drive, arrays)
    rows: list[tuple[Any, ...]] = [row._replace(loss=plain(row.loss)) for row in map(Row._make, trace.rows)]
    outcome = Outcome(rows, drive.log, metrics(drive.measured), tally=drive.tally, status=drive.status)
    outcome.settings = describe()
    last = max(drive.tally.updates - 1, -1)
    for name, value in arrays.measure(None, arrays.looks()).items():
        outcome.metrics.append((drive.tally.time, last, drive.tally.samples, name, value))
    return outcome, arrays.schedule

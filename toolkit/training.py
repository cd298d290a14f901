"""Training under a strategy, on a cluster or in virtual time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from toolkit.checks import checked, demand, known, runnable, weighed
from toolkit.core.checks import seeding
from toolkit.core.conditions import Condition
from toolkit.core.errors import Refused
from toolkit.core.strategy import Strategy
from toolkit.prepare import Optimizer, prepare
from toolkit.problems.problem import Problem
from toolkit.recording import record
from toolkit.replaying import replay
from toolkit.run import Run
from toolkit.runs import Runs
from toolkit.runtime import numerics, process
from toolkit.runtime.drive import Drive
from toolkit.runtime.handle import Handle
from toolkit.runtime.outcome import Outcome
from toolkit.runtime.record import Recorder
from toolkit.runtime.simulator import Simulator
from toolkit.started import Started
from toolkit.trace import Trace

Run._replay = replay  # a record knows no engine


def simulate(strategy: Strategy, simulator: Simulator, until: Condition, name: str = "") -> Run:
    """Run a strategy in virtual time without arrays: thousands of workers, timing only.

    Parameters
    ----------
    strategy : Strategy
        A policy over an exchange, with or without rewrites.
    simulator : Simulator
    until : condition
        :func:`seconds`, :func:`iterations`, :func:`updates`, or several joined by ``|``.
    name : str, optional
        In plots and summaries; the strategy's text by default.

    Examples
    --------
    >>> import toolkit as tk
    >>> strategy = tk.chain(tk.bsp(), tk.all_reduce(tk.ring))
    >>> run = tk.simulate(strategy, tk.Simulator(4, step=tk.constant([1, 1, 1, 2])), until=tk.iterations(8))
    >>> run.summary()["seconds"].item()
    16.0
    """
    demand("simulator", simulator, Simulator, "Simulator(4)")
    checked(strategy, until)
    weighed(simulator)
    cluster = simulator.describe(budget=until.budget)
    trace = Trace()
    drive = Drive(strategy, cluster, Recorder(trace), until)
    simulator.run(drive)
    outcome = Outcome(trace.rows, drive.log, tally=drive.tally, status=drive.status)
    words = {"recipe": repr(strategy), "seed": simulator.seed, "options": {"until": repr(until)}}
    return record(name or repr(strategy), words, outcome, simulator)


def train(
    problem: Problem,
    strategy: Strategy,
    *,
    optimizer: Optimizer,
    on: Any,
    until: Condition,
    seed: int = 0,
    name: str = "",
    progress: bool = True,
    **options: Any,
) -> Run:
    """Train a problem under a strategy and wait for the end.

    Parameters
    ----------
    problem : Problem
    strategy : Strategy
    optimizer : optax.GradientTransformation or str
        Runs where updates are applied; under local steps, at the worker. A text such as ``"sgd(0.1)"`` is kept in
        the record.
    on : Simulator or Dask
        In virtual time, with the real optimizer; or on a cluster.
    until : condition
        :func:`seconds`, :func:`iterations`, :func:`updates`, :func:`epochs`, :func:`reaches`; ``|`` joins several.
    seed : int, >= 0
        Of the initial parameters, the order of rows and every other draw; below 2**64.
    name : str, optional
        In plots and summaries.
    progress : bool
        Whether to show how far the run has come.
    **options
        outer : optimizer, default ``"sgd(1.0)"``
            Applies the averaged drift of local steps; the default is plain averaging.
        clock : {"updates", "samples"}, default "updates"
            What learning-rate schedules count: merges, or rows.
        scaling : {"one", "mean"}, default "one"
            Whether each merge is a full step, or one in proportion to the part of the workers whose updates it holds.
        state : {"averaged", "local"}, default "averaged"
            Batch-norm statistics travel and are averaged with the updates, or stay at each worker and are averaged
            when evaluated.
        deal : {"global", "shards"} or way, default "global"
            One order of all rows per epoch for everybody; or rows distributed over the workers first, in equal random
            shares or by :func:`shuffled`, :func:`contiguous`, :func:`by_label`, :func:`dirichlet`, :func:`full_copy`,
            :func:`by_speed`.
        correction : Correction, optional
            :func:`scale_by_staleness`, :func:`delay_compensation` or :func:`elastic`, on each update before the mean.
        on_loss : {"stop", "continue"}, default "stop"
            When a worker is lost.
        evaluate : condition, default ``epochs(1)``
            How often to measure: each time it has come true once more, right after a merge. The initial and the final
            model are measured in any case.

    Returns
    -------
    Run

    Examples
    --------
    >>> import toolkit as tk
    >>> run = tk.train(tk.problems.quadratic(), tk.chain(tk.bsp(), tk.all_reduce(tk.ring)), optimizer="sgd(0.1)",
    ...                on=tk.Simulator(2), until=tk.updates(5), progress=False)
    >>> run.summary()[["updates", "iterations"]].values.tolist()  # five merges, each of two workers
    [[5, 10]]
    """
    started = start(
        problem, strategy, optimizer=optimizer, on=on, until=until, seed=seed, name=name, progress=progress, **options
    )
    run: Run = started.wait()
    return run


def compare(
    strategies: Mapping[str, Strategy],
    problem: Problem,
    *,
    optimizer: Optimizer,
    on: Any,
    until: Condition,
    seed: int = 0,
    **options: Any,
) -> Runs:
    """Train one problem under several strategies, one after the other, on one cluster.

    Parameters
    ----------
    strategies : {name: Strategy}
    problem, optimizer, on, until, seed
        As in :func:`train`.
    **options
        `progress` and all options of :func:`train`.

    Returns
    -------
    Runs
        If a run fails, the error says which, and its `runs` holds those that ended before.

    Examples
    --------
    >>> import toolkit as tk
    >>> server = tk.parameter_server()
    >>> runs = tk.compare({"BSP": tk.chain(tk.bsp(), server), "ASP": tk.chain(tk.asp(), server)},
    ...                   tk.problems.quadratic(), optimizer="sgd(0.1)", on=tk.Simulator(2), until=tk.updates(4),
    ...                   progress=False)
    >>> list(runs)
    ['BSP', 'ASP']
    """
    if not isinstance(strategies, Mapping) or not strategies:
        raise Refused(
            f"compare was given {strategies!r} and no mapping with a strategy. Each run needs a name. "
            f"Give a mapping such as {{'BSP': chain(bsp(), all_reduce(ring))}}."
        )
    if odd := [name for name in strategies if not isinstance(name, str)]:
        raise Refused(f"compare was given the names {odd}. Runs are found by text. Name each strategy by a string.")
    runnable(on)
    known(options, prepare, "progress")
    ended: dict[str, Run] = {}
    with on.kept() if hasattr(on, "kept") else contextlib.nullcontext(on) as ready:
        for name, strategy in strategies.items():
            try:
                ended[name] = train(
                    problem, strategy, optimizer=optimizer, on=ready, until=until, seed=seed, name=name, **options
                )
            except BaseException as error:  # also an interrupt from the keyboard
                error.add_note(f"This happened in the run {name!r}; the runs before it are kept in the error's `runs`.")
                error.runs = Runs(ended)  # type: ignore[attr-defined]
                raise
    return Runs(ended)


def start(
    problem: Problem,
    strategy: Strategy,
    *,
    optimizer: Optimizer,
    on: Any,
    until: Condition,
    seed: int = 0,
    name: str = "",
    progress: bool = False,
    **options: Any,
) -> Handle:
    """Start a run and return at once.

    Parameters
    ----------
    problem, strategy, optimizer, on, until, seed, name
        As in :func:`train`.
    progress : bool
        Whether to show how far the run has come; here not by default.
    **options
        All options of :func:`train`.

    Returns
    -------
    Started or Live
        With ``wait()``, ``stop()``, ``progress`` and ``metrics``; on a cluster also ``detach()``. A cluster without
        processes starts them meanwhile.

    Examples
    --------
    >>> import toolkit as tk
    >>> started = tk.start(tk.problems.quadratic(), tk.chain(tk.asp(), tk.parameter_server()), optimizer="sgd(0.01)",
    ...                    on=tk.Simulator(2), until=tk.seconds(1e6))
    >>> started.stop()
    >>> started.wait().status
    'stopped'
    """
    checked(strategy, until)
    demand("name", name, str, "'BSP'")
    known(options, prepare)
    runnable(on)
    seed = seeding(seed)
    granted = {"budget": until.budget} if isinstance(on, Simulator) else {}  # to workers that join later, too
    recipe = prepare(problem, strategy, on.describe(seed=seed, **granted), until, optimizer=optimizer, **options)
    title = name or repr(strategy)
    if isinstance(on, Simulator):
        launch = partial(process.call, numerics.run, recipe.strategy, recipe.setup, on, until)
        return Started(title, recipe, on, launch, progress)
    return on.start(title, recipe, partial(record, title, recipe.words), progress)  # type: ignore[no-any-return]

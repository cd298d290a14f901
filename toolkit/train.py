"""Training under a strategy, on a cluster or in virtual time."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from toolkit.core.conditions import Condition
from toolkit.core.errors import Refused
from toolkit.core.parse import parse
from toolkit.core.strategy import Strategy
from toolkit.core.tally import Tally
from toolkit.kernels.vector import Vector
from toolkit.prepare import Optimizer, Recipe, prepare
from toolkit.problems.problem import Problem
from toolkit.progress import Progress
from toolkit.run import METRICS, RESOURCES, Run, table
from toolkit.runs import Runs
from toolkit.runtime import numerics, process
from toolkit.runtime.drive import Drive
from toolkit.runtime.outcome import Outcome
from toolkit.runtime.record import Recorder
from toolkit.runtime.settings import versions
from toolkit.runtime.simulator import Simulator
from toolkit.trace import Trace, key_from


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
    checked(strategy, until)
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
        :func:`seconds`, :func:`iterations`, :func:`updates`, :func:`epochs`, :func:`reaches`, or several joined by
        ``|``.
    seed : int, >= 0
        Of the initial parameters, the order of rows and every other draw.
    name : str, optional
        In plots and summaries.
    progress : bool
        Whether to show how far the run has come.
    outer : optimizer, default ``"sgd(1.0)"``
        Applies the averaged drift of local steps; the default is plain averaging.
    clock : {"updates", "samples"}, default "updates"
        What learning-rate schedules count: merges, or rows.
    scaling : {"one", "mean"}, default "one"
        Whether each merge is a full step, or one in proportion to the part of the workers whose updates it holds.
    state : {"averaged", "local"}, default "averaged"
        Batch-norm statistics travel and are averaged with the updates, or stay at each worker and are averaged when
        evaluated.
    deal : {"global", "shards"} or way, default "global"
        One order of all rows per epoch for everybody; or rows distributed over the workers first, in equal random
        shares or by
        :func:`shuffled`, :func:`contiguous`, :func:`by_label`, :func:`dirichlet`, :func:`full_copy`, :func:`by_speed`.
    correction : Correction, optional
        :func:`scale_by_staleness`, :func:`delay_compensation` or :func:`elastic`, on each update before the mean.
    on_loss : {"stop", "continue"}, default "stop"
        When a worker is lost.
    evaluate : condition, default ``epochs(1)``
        How often to measure; the initial and the final model are measured in any case.

    Returns
    -------
    Run

    Examples
    --------
    >>> import toolkit as tk
    >>> run = tk.train(tk.problems.quadratic(), tk.chain(tk.bsp(), tk.all_reduce(tk.ring)), optimizer="sgd(0.1)",
    ...                on=tk.Simulator(2), until=tk.updates(5), progress=False)
    >>> run.summary()["updates"].item()
    5
    """
    return start(
        problem, strategy, optimizer=optimizer, on=on, until=until, seed=seed, name=name, progress=progress, **options
    ).wait()


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
    problem, optimizer, on, until, seed, **options
        As in :func:`train`.

    Returns
    -------
    Runs
        If a run fails, the error says which, and its `runs` holds those that ended before.

    Examples
    --------
    >>> import toolkit as tk
    >>> server = tk.parameter_server()
    >>> runs = tk.compare({"BSP": tk.chain(tk.bsp(), server), "ASP": tk.chain(tk.asp(), server)}, tk.problems.quadratic(), optimizer="sgd(0.1)", on=tk.Simulator(2),
    ...                   until=tk.updates(4), progress=False)
    >>> list(runs)
    ['BSP', 'ASP']
    """
    if not strategies:
        raise Refused(
            "compare was given no strategy. There is nothing to run. Give a mapping such as "
            "{'BSP': chain(bsp(), all_reduce(ring))}."
        )
    ended: dict[str, Run] = {}
    with on.kept() if hasattr(on, "kept") else _alone(on) as ready:
        for name, strategy in strategies.items():
            try:
                ended[name] = train(
                    problem, strategy, optimizer=optimizer, on=ready, until=until, seed=seed, name=name, **options
                )
            except Exception as error:
                error.add_note(f"This happened in the run {name!r}; the runs before it are kept in the error's `runs`.")
                error.runs = Runs(ended)  # type: ignore[attr-defined]
                raise
    return Runs(ended)


class _alone:
    """Something that needs no closing, as a context."""

    def __init__(self, on: Any) -> None:
        self.on = on

    def __enter__(self) -> Any:
        return self.on

    def __exit__(self, *exception: object) -> None:
        pass


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
) -> Started:
    """Start a run and return at once.

    Parameters
    ----------
    problem, strategy, optimizer, on, until, seed, name, progress, **options
        As in :func:`train`.

    Returns
    -------
    Started
        With ``wait()``, ``stop()`` and ``progress``.

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
    recipe = prepare(problem, strategy, on.describe(seed=seed), until, optimizer=optimizer, **options)
    title = name or repr(strategy)
    if isinstance(on, Simulator):
        launch = partial(process.call, numerics.run, recipe.strategy, recipe.setup, on, until)
        return Started(title, recipe, on, launch, progress)
    return on.start(title, recipe, partial(record, title, recipe.words), progress)  # type: ignore[no-any-return]


class Started:
    """A run under way in virtual time."""

    def __init__(
        self, name: str, recipe: Recipe, on: Simulator, launch: Callable[..., Outcome], progress: bool
    ) -> None:
        self.name, self._recipe, self._on = name, recipe, on
        self._go = True
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self.tally = Tally()
        self.metrics = table(METRICS)
        self._bar = follow(name, recipe.until) if progress else None
        self._thread = threading.Thread(target=self._work, args=(launch,), daemon=True)
        self._thread.start()

    def _work(self, launch: Callable[..., Outcome]) -> None:
        try:
            self._outcome = launch(heard=self._heard)
        except BaseException as error:
            self._error = error

    def _heard(self, said: Any) -> bool:
        self.tally, rows = said
        self.metrics = table(METRICS, rows)
        if self._bar is not None:
            show(self._bar, self._recipe.until, self.tally)
        return self._go

    @property
    def progress(self) -> dict[str, Any]:
        """How far it has come: seconds, updates, samples and the latest metrics."""
        return {
            "seconds": self.tally.time,
            "updates": self.tally.updates,
            "samples": self.tally.samples,
            **self.tally.metrics,
        }

    def stop(self) -> None:
        """End it soon; what it has achieved is kept."""
        self._go = False

    def wait(self, timeout: float | None = None) -> Run:
        """The run, once it has ended; its error is raised, with the run so far in the error's `run`."""
        try:
            self._thread.join(timeout)
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._thread.is_alive():
            raise TimeoutError(
                f"The run {self.name!r} goes on after {timeout} s. It was not waited for any longer. Wait again, or "
                f"stop it."
            )
        if self._bar is not None:
            self._bar.close()
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return record(self.name, self._recipe.words, self._outcome, self._on, self._recipe)


def checked(strategy: Strategy, until: Condition) -> None:
    """Refuse what is not a strategy with an exchange, or no condition."""
    if not isinstance(strategy, Strategy):
        raise Refused(
            f"{strategy!r} is not a strategy. A run needs a policy over an exchange. Write chain(bsp(), "
            f"all_reduce(ring))."
        )
    if not isinstance(until, Condition):
        raise Refused(
            f"until={until!r} is no condition. A run must know when to end. Use seconds(60), epochs(3), or another."
        )
    kinds = [layer.kind for layer in strategy.layers or (strategy,)]
    if kinds.count("policy") != 1 or kinds.count("exchange") != 1 or kinds.index("policy") > kinds.index("exchange"):
        raise Refused(
            f"{strategy!r} is made of {', '.join(kinds)}. A run needs one policy above one exchange. Write for example "
            f"chain(ssp(3), parameter_server(2))."
        )


def follow(name: str, until: Condition) -> Progress:
    """A bar for a run."""
    return Progress(name, total=100, unit="%")


def show(bar: Progress, until: Condition, tally: Tally) -> None:
    """Move a bar."""
    bar.update(tally.time, tally.updates, tally.samples, dict(tally.metrics), min(1.0, until.amount(tally)))


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
        },
        options=dict(words["options"]),
        metrics=pd.DataFrame(outcome.metrics, columns=list(METRICS)),
        resources=table(RESOURCES, outcome.resources or None),
        events=tuple(outcome.events),
        versions=versions(),
        compile_seconds=float(sum(outcome.compile_seconds.values())),
        params=None
        if recipe is None or outcome.params is None
        else named_params(recipe.setup.problem, outcome, recipe.setup.state),
        status=outcome.status,
    )
    run.made = recipe
    if outcome.error is not None:
        outcome.error.run = run  # type: ignore[attr-defined]
        raise outcome.error
    return run


def named_params(problem: Problem, outcome: Outcome, state: str) -> dict[str, Any]:
    """The tensors of a model by block and name: what is learned, and its state."""
    vector = Vector.of(problem.model, problem.blocks, state)  # type: ignore[arg-type]
    params, states = vector.unpack(outcome.params, outcome.local)  # type: ignore[arg-type]
    named: dict[str, Any] = {}
    for block, learned, rest in zip(vector.blocks, params, states, strict=True):
        for tree in (learned, rest):
            fill(named.setdefault(block.name, {}), tree.to_pure_dict() if hasattr(tree, "to_pure_dict") else {})
    return named


def fill(goal: dict[Any, Any], tree: Mapping[Any, Any]) -> None:
    """Put the arrays of a nested mapping into another."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            fill(goal.setdefault(name, {}), value)
        else:
            goal[name] = np.asarray(value)


def replay(
    run: Run, rounds: int | None = None, problem: Problem | None = None, optimizer: Optimizer | None = None
) -> Run:
    """Perform a recorded run again from its log, to bit-identical parameters.

    The log holds events and the order of reads and writes at each place, no arrays: everything starts from seed and
    data.
    Identity is promised for equal settings and CPU model; a record made with other settings is replayed with a warning.

    Parameters
    ----------
    run : Run
        Of this session, or loaded.
    rounds : int, optional
        Stop after so many merges.
    problem, optimizer : optional
        For a loaded run whose problem or optimizer was not one of the toolkit's own by text.
    """
    recipe = run.made or rebuilt(run, problem, optimizer)
    stamps = [
        (str(kind), key_from(key), place_of(place), None if pd.isna(peer) else place_of(peer), int(reads), int(writes))
        for kind, key, place, peer, reads, writes in run.trace.loc[
            (run.trace.src_seq >= 0) | (run.trace.dst_seq >= 0), ["kind", "key", "place", "peer", "src_seq", "dst_seq"]
        ].itertuples(index=False)
    ]
    outcome = process.call(numerics.replay, recipe.strategy, recipe.setup, list(run.events), stamps, rounds)
    recorded = run.cluster.get("settings", {})
    names = ("cpu", "NPROC", "XLA_FLAGS", "JAX_ENABLE_X64")
    if other := [name for name in names if recorded.get(name) != outcome.settings.get(name)]:
        warnings.warn(
            f"The run was recorded with other settings: {', '.join(f'{n} was {recorded.get(n)!r}' for n in other)}. "
            f"Compiled results "
            f"depend on them. The parameters of the replay may differ in their last bits.",
            stacklevel=2,
        )
    outcome.status = "replayed"
    params = named_params(recipe.setup.problem, outcome, recipe.setup.state)
    again = replace(run, params=params, status="replayed")
    again.made = recipe
    return again


def place_of(text: str) -> int | str:
    """The name of a place from its text in a trace."""
    return int(text) if text.lstrip("-").isdigit() else text


def rebuilt(run: Run, problem: Problem | None, optimizer: Optimizer | None) -> Recipe:
    """The recipe of a loaded run, from its texts."""
    try:
        made = problem or parse(run.problem)
    except ValueError as error:
        raise Refused(
            f"The problem {run.problem!r} of the run {run.name!r} is not one that its text rebuilds. A replay needs "
            f"model and data. "
            f"Call replay(problem=...) with the problem of the run."
        ) from error
    if optimizer is None and run.optimizer.startswith("optax:"):
        raise Refused(
            f"The optimizer of the run {run.name!r} was an object, recorded as {run.optimizer!r}. Its numbers are "
            f"not in the record. "
            f"Call replay(optimizer=...) with it, or train with a text such as 'sgd(0.1)'."
        )
    from toolkit.core.cluster import Cluster
    from toolkit.core.messages import Joined
    from toolkit.kernels.corrections import Correction

    workers = tuple(
        sorted({event.worker for event in run.events if isinstance(event, Joined) and event.time == 0.0})
    ) or (0,)
    o = run.options
    return prepare(
        made,
        parse(run.recipe),
        Cluster(workers, seed=run.seed),
        parse(o["until"]),
        optimizer=optimizer or run.optimizer,
        outer=o["outer"],
        clock=o["clock"],
        scaling=o["scaling"],
        state=o["state"],
        deal=o["deal"] if o["deal"] in ("global", "shards") else parse(o["deal"]),
        correction=None if o["correction"] == "None" else Correction.of(o["correction"]),
        on_loss=o["on_loss"],
        evaluate=parse(o["evaluate"]),
    )


Run._replay = replay

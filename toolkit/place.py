"""Where tensors live: the arrays at each place, and what each task takes from them and leaves there.

Every runtime performs a task as ``value = read(source, task)`` and later ``write(target, task, value)``. Values that
travel are tuples of NumPy arrays. Parameters at a replica or server are replaced, never written into, so that a value
that was read stays what it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from toolkit import work
from toolkit.core.cluster import Cluster, Home
from toolkit.core.messages import (
    Apply,
    Chunk,
    Compute,
    Evaluate,
    Facts,
    Key,
    Mix,
    PlaceName,
    Reduce,
    Send,
    Span,
    Stage,
    Task,
    Worker,
)
from toolkit.data.partition import Way
from toolkit.kernels import stages
from toolkit.kernels.applying import Applier
from toolkit.kernels.corrections import Correction
from toolkit.kernels.training import Learner
from toolkit.problems.problem import Problem

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = tuple[Array, ...]


@dataclass(frozen=True)
class Setup:
    """All that a process must know to hold places of a run; it travels, arrays do not."""

    problem: Problem
    cluster: Cluster
    optimizer: optax.GradientTransformation
    outer: optax.GradientTransformation
    clock: str = "updates"
    scaling: str = "one"
    state: str = "averaged"
    correction: Correction | None = None
    way: Way | None = None
    shards: Mapping[Worker, int] | None = None
    limit: int | None = None
    local: bool = False


@dataclass
class Place:
    """The arrays at one place, over the span of its home."""

    name: PlaceName
    home: Home
    params: Array
    local: Array
    optimizer: Any = None  # of the merges applied here
    carried: list[Array] | None = None  # the values of an optimizer state that came with a replica
    inner: Any = None  # of the local steps made here
    pulled: dict[Worker, Array] = field(default_factory=dict)  # what each worker read here, or what was pulled to here
    update: Array | None = None
    clock: int = 0
    rows: int = 0  # behind the updates computed here
    encoded: dict[Span, Value] = field(default_factory=dict)
    residual: Array | None = None
    memory: dict[Span, Any] = field(default_factory=dict)
    sums: dict[Key, Value] = field(default_factory=dict)
    inbox: dict[Worker, tuple[int, list[tuple[Span, Value]]]] = field(default_factory=dict)
    snapshots: dict[tuple[int | None, PlaceName], Array] = field(default_factory=dict)
    stage: work.Microbatches = field(default_factory=lambda: work.Microbatches())

    def cut(self, vector: Array, part: Span) -> Array:
        """The values of a part of the span."""
        start = self.home.span[0]
        return vector[part[0] - start : part[1] - start]


class Places:
    """The places of one process and the compiled functions they share.

    Parameters
    ----------
    setup : Setup
    names : places to hold; none at a coordinator
    """

    def __init__(self, setup: Setup, names: Iterable[PlaceName]) -> None:
        self.setup = setup
        self.learner = Learner(setup.problem, setup.cluster.seed, setup.state)  # type: ignore[arg-type]
        self._initial = self.learner.initial()
        self._appliers: dict[tuple[Span | None, bool], Applier] = {}
        self._stages: dict[Span, stages.Stage] = {}
        self.rows = work.Rows(setup)
        self.places: dict[PlaceName, Place] = {}
        for name in names:
            self.add(name)

    def add(self, name: PlaceName) -> None:
        """Hold one more place, with the initial values that follow from the seed."""
        home = self.home(name)
        vector, local = self._initial
        if home.role == "stage":
            local = local[slice(*self.stage(home.span).local)]
        self.places[name] = Place(
            name, home, vector[slice(*home.span)].copy(), local if home.role != "server" else local[:0]
        )

    def at(self, name: PlaceName) -> Place:
        """A place held here; one of a worker that has just joined is made."""
        if name not in self.places:
            self.add(name)
        return self.places[name]

    def home(self, name: PlaceName) -> Home:
        """The home of a place; a worker that came later lives as the first one does."""
        homes = self.setup.cluster.homes
        if name in homes:
            return homes[name]
        worker, _, stage = str(name).partition(".")
        first = self.setup.cluster.workers[0]
        like = homes[f"{first}.{stage}" if stage else first]
        return Home(like.role, like.span, int(worker), like.model, None, like.stage)

    def worker(self, name: PlaceName) -> Worker:
        """The worker to which a place belongs; -1 for a server."""
        found = self.home(name).worker
        return -1 if found is None else found

    def applier(self, span: Span, drift: bool) -> Applier:
        """The optimizer step on a span: of gradients, or of drifts by the outer optimizer."""
        learned = self.learner.vector.trainable
        key = (None if learned is None else span, drift)
        if key not in self._appliers:
            mask = None if learned is None else learned[slice(*span)]
            optimizer = self.setup.outer if drift else self.setup.optimizer
            self._appliers[key] = Applier(optimizer, mask, self.setup.clock)  # type: ignore[arg-type]
        return self._appliers[key]

    def local_applier(self, place: Place) -> Applier:
        """The optimizer step of local steps at a worker."""
        return self.applier(place.home.span, False)

    def stage(self, span: Span) -> stages.Stage:
        """The compiled blocks of a pipeline stage."""
        if span not in self._stages:
            self._stages[span] = stages.Stage(self.learner, span)
        return self._stages[span]

    def compile(self) -> float:
        """Compile what the places here will need; return the seconds it took."""
        began = time.perf_counter()
        work.warm(self)
        return time.perf_counter() - began

    # -- tasks ------------------------------------------------------------------------------------------------------

    def read(self, name: PlaceName, task: Task) -> Any:
        """What a task takes from a place, or makes of what is there."""
        place = self.at(name)
        match task:
            case Compute():
                return work.compute(self, place, task)
            case Stage():
                return work.stage(self, place, task)
            case Apply():
                return work.apply(self, place, task)
            case Mix():
                return work.mix(place, task)
            case Send():
                return self._sent(place, task)
            case Chunk(of=key, start=start, stop=stop, count=count):
                return tuple(values[work.chunk(len(values), count, start, stop)] for values in place.sums[key])
            case Evaluate():
                return (place.params, place.local, np.array([place.rows]))
        raise TypeError(f"{task} cannot be read at {name}. No place holds that. Perform tasks of the vocabulary.")

    def write(self, name: PlaceName, task: Task, value: Any) -> None:
        """Leave what a task made or brought at a place."""
        place = self.at(name)
        match task:
            case Compute() | Stage() | Apply() | Mix():
                value.install(place)
            case Send():
                self._arrived(place, task, value)
            case Reduce():
                place.sums = {task.key: work.own_part(self, place, task)}
            case Chunk(of=key, start=start, stop=stop, count=count, adds=adds):
                for values, piece in zip(place.sums[key], value, strict=True):
                    here = work.chunk(len(values), count, start, stop)
                    values[here] = values[here] + piece if adds else piece

    def facts(self, task: Task, value: Any) -> Facts:
        """What is reported of a computation."""
        return dict(value.facts)

    def _sent(self, place: Place, task: Send) -> Value:
        match task.item:
            case "params":
                if self.setup.correction and self.setup.correction.where == "server":
                    place.pulled[self.worker(task.dst)] = place.params
                return (place.cut(place.params, task.part),)
            case "update":
                return work.encoded(self, place, task.part, task.codec)
            case "snapshot":
                return (place.params,)
            case "replica":
                leaves = jax.tree.leaves(place.optimizer) if place.carried is None else place.carried
                return (place.params, place.local, *(np.asarray(leaf) for leaf in leaves))
        return place.stage.outgoing.pop((task.item, task.microbatch[0]))

    def _arrived(self, place: Place, task: Send, value: Value) -> None:
        match task.item:
            case "params":
                keeps = self.setup.correction is not None and self.setup.correction.keeps_replica
                if keeps and place.clock:
                    goal = place.pulled.setdefault(place.home.worker or 0, place.params.copy())
                else:
                    goal = place.params if place.params.flags.writeable else place.params.copy()
                    place.params = goal
                    if keeps:
                        place.pulled[place.home.worker or 0] = goal.copy()
                place.cut(goal, task.part)[:] = value[0]
                if keeps and goal is place.params:
                    place.cut(place.pulled[place.home.worker or 0], task.part)[:] = value[0]
            case "update":
                worker = self.worker(task.src)
                version = int(task.key[2]) if task.round is None else task.round
                known, pieces = place.inbox.get(worker, (-1, []))
                place.inbox[worker] = (version, [*(pieces if known == version else []), (task.part, value)])
            case "snapshot":
                place.snapshots[task.round, task.src] = value[0]
            case "replica":
                place.params, place.local = np.array(value[0]), np.array(value[1])
                place.optimizer, place.carried = None, [np.array(leaf) for leaf in value[2:]] or None
            case _:
                place.stage.incoming[task.item, task.microbatch[0]] = value[0]

    def optimizer(self, place: Place, drift: bool) -> Any:
        """The optimizer state of the merges at a place: as it is, as it was carried there, or a first one."""
        if place.optimizer is None:
            place.optimizer = self.applier(place.home.span, drift).init(place.params)
            if place.carried is not None:
                place.optimizer, place.carried = (
                    jax.tree.unflatten(jax.tree.structure(place.optimizer), place.carried),
                    None,
                )
        return place.optimizer

    # -- the model as a whole ------------------------------------------------------------------------------------------

    def initial(self) -> dict[PlaceName, Value]:
        """The values of a model before the first step, as if read at one replica."""
        return {-1: (*self._initial, np.array([0]))}

    def assemble(self, values: Mapping[PlaceName, Value]) -> tuple[Array, Array]:
        """The model vector [P] and local state [S] that some places hold together.

        Shards are put side by side; replicas are averaged, and equal ones stay equal; local states are averaged by
        the rows
        behind them.
        """
        vector, local = self._initial[0].copy(), self._initial[1].copy()
        homes = {
            name: self.home(name) if name != -1 else Home("worker", self.learner.layout.whole, -1, True)
            for name in values
        }
        holders = [name for name, home in homes.items() if home.model]
        for span in {homes[name].span for name in holders}:
            vector[slice(*span)] = work.mean([values[name][0] for name in holders if homes[name].span == span])
        if local.size:
            for span in {homes[name].span for name in values if homes[name].role != "server"}:
                same = [name for name, home in homes.items() if home.span == span and home.role != "server"]
                where = slice(*self.stage(span).local) if homes[same[0]].role == "stage" else slice(None)
                local[where] = work.mean(
                    [values[name][1] for name in same], [float(values[name][2][0]) for name in same]
                )
        return vector, local

    def measure(self, task: Evaluate | None, values: Mapping[PlaceName, Value]) -> dict[str, float]:
        """The exact metrics of the model on the test rows."""
        return self.learner.evaluate(*self.assemble(values), self.setup.problem.test)


def sources(homes: Mapping[PlaceName, Home], workers: Iterable[Worker], local: bool) -> tuple[PlaceName, ...]:
    """The places that hold the model, and with `local` state also the workers; of `workers` alone."""
    live = set(workers)
    return tuple(
        n
        for n, h in homes.items()
        if (h.model or (local and h.role != "server")) and (h.worker is None or h.worker in live)
    )

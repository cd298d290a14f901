"""Where tensors live: the arrays at each place, and what each task takes from them and leaves there.

Every runtime performs a task as ``value = read(source, task)`` and later ``write(target, task, value)``. Values that
travel are tuples of NumPy arrays. An array that a place holds is replaced, never written into (but for the sums of a
collective, which are copied as they are read), so that a value that was read stays what it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

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
from toolkit.problems.problem import Problem
from toolkit.work import coding, merges, steps, travel, warming, whole
from toolkit.work.learners import learner
from toolkit.work.rows import Rows

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = tuple[Array, ...]


@dataclass(frozen=True)
class Setup:
    """All that a process must know to hold places of a run; it travels, arrays do not.

    `first` is the first computation that the strategy asks for, a sample of what is to be compiled; `x64` is whether
    JAX computes in double precision.
    """

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
    first: Compute | Stage | None = None
    x64: bool = False

    @property
    def local(self) -> bool:
        """Whether workers take optimizer steps of their own, from the first iteration on."""
        return isinstance(self.first, Compute) and self.first.local


@dataclass
class Place:
    """The arrays at one place, over the span of its home."""

    name: PlaceName
    home: Home
    params: Array
    local: Array
    optimizers: dict[bool, Any] = field(default_factory=dict)  # states: of steps by gradients, of steps by drifts
    pulled: dict[Worker, Array] = field(default_factory=dict)  # what each worker read here, or what was pulled to here
    pulling: tuple[Key, Array] = ((), np.zeros(0))  # a pull of which not every part has arrived
    update: Array | None = None
    clock: int = 0
    rows: int = 0  # behind the updates computed here
    encoded: dict[Span, Value] = field(default_factory=dict)
    left: dict[Span, coding.Left] = field(default_factory=dict)  # by the codes of earlier updates
    leaves: dict[Span, coding.Left] = field(default_factory=dict)  # by those of the present update
    total: Array | None = None  # the sum of the updates of a merge, of which each part may be a sum of its own
    sums: dict[Key, merges.Sum] = field(default_factory=dict)
    inbox: dict[Worker, tuple[int, list[tuple[Span, Value]]]] = field(default_factory=dict)
    snapshots: dict[tuple[int, PlaceName], Array] = field(default_factory=dict)
    stage: steps.Microbatches = field(default_factory=steps.Microbatches)

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
        if double() != setup.x64:  # as where the run was described
            jax.config.update("jax_enable_x64", setup.x64)
        self.setup = setup
        self.learner = learner(setup)
        self.correct: Callable[..., jax.Array] = jax.jit(setup.correction.fn if setup.correction else unchanged)
        self.start = self.learner.initial()
        self._appliers: dict[tuple[Span | None, bool], Applier] = {}
        self._stages: dict[Span, stages.Stage] = {}
        self.rows = Rows(setup)
        self.places: dict[PlaceName, Place] = {}
        for name in names:
            self.add(name)

    def add(self, name: PlaceName) -> None:
        """Hold one more place, with the initial values that follow from the seed."""
        home = self.home(name)
        vector, local = self.start
        if home.role == "stage":
            local = local[slice(*self.stage(home.span).local)]
        self.places[name] = Place(name, home, vector[slice(*home.span)], local if home.role != "server" else local[:0])

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

    def optimizer(self, place: Place, drift: bool) -> Any:
        """The state of an optimizer at a place: as it is, or a first one."""
        if drift not in place.optimizers:
            place.optimizers[drift] = self.applier(place.home.span, drift).init(place.params)
        return place.optimizers[drift]

    def stage(self, span: Span) -> stages.Stage:
        """The compiled blocks of a pipeline stage."""
        if span not in self._stages:
            self._stages[span] = stages.Stage(self.learner, span)
        return self._stages[span]

    def zeros(self) -> tuple[Array, Array]:
        """A model vector [P] and local state [S] of zeros."""
        vector, local = self.start
        return np.zeros_like(vector), np.zeros_like(local)

    def compile(self) -> float:
        """Compile what the places here will need; return the seconds it took."""
        began = time.perf_counter()
        warming.warm(self)
        return time.perf_counter() - began

    # -- tasks ------------------------------------------------------------------------------------------------------

    def read(self, name: PlaceName, task: Task) -> Any:
        """What a task takes from a place, or makes of what is there."""
        place = self.at(name)
        match task:
            case Compute():
                return steps.compute(self, place, task)
            case Stage():
                return steps.stage(self, place, task)
            case Apply():
                return merges.apply(self, place, task)
            case Mix():
                return merges.mix(place, task)
            case Send():
                return travel.sent(self, place, task)
            case Chunk():
                # Sums are added to in place, perhaps before this has left.
                return tuple(values.copy() for values in self.lent(name, task))
            case Evaluate():
                return (place.params, place.local, np.array([place.rows]))
        raise TypeError(f"{task} cannot be read at {name}. No place holds that. Perform tasks of the vocabulary.")

    def lent(self, name: PlaceName, task: Chunk) -> Value:
        """What a hop takes from a sum, for whoever copies it at once."""
        values = self.at(name).sums[task.of].values
        return tuple(array[merges.chunk(len(array), task.count, task.start, task.stop)] for array in values)

    def write(self, name: PlaceName, task: Task, value: Any) -> None:
        """Leave what a task made or brought at a place."""
        place = self.at(name)
        match task:
            case Compute() | Stage() | Apply() | Mix():
                value.install(place)
            case Send():
                travel.arrived(self, place, task, value)
            case Reduce():
                merges.begin(self, place, task)
            case Chunk(adds=adds):
                for here, piece in zip(self.lent(name, task), value, strict=True):
                    np.add(here, piece, out=here) if adds else np.copyto(here, piece)

    def facts(self, task: Task, value: Any) -> Facts:
        """What is reported of a computation."""
        return dict(value.facts)

    # -- the model as a whole ------------------------------------------------------------------------------------------

    def initial(self) -> dict[PlaceName, Value]:
        """The values of a model before the first step, as if read at one replica."""
        return {-1: (*self.start, np.array([0]))}

    def assemble(self, values: Mapping[PlaceName, Value]) -> tuple[Array, Array]:
        """The model vector [P] and local state [S] that some places hold together."""
        return whole.assemble(self, values)

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


def double() -> bool:
    """Whether JAX computes in double precision here and now."""
    return bool(jnp.result_type(float) == np.float64)


def unchanged(update: jax.Array, staleness: Any, pulled: Any, params: Any) -> jax.Array:
    """The correction of a run without one."""
    return update

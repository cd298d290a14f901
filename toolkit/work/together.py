"""Performing a schedule for several seeds at once, in one compiled loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from toolkit.data.sampling import positions
from toolkit.kernels.scanning import Batches, Events, Scan, State, stacked
from toolkit.kernels.training import Learner, words
from toolkit.place import Places, Setup
from toolkit.work.coding import Array
from toolkit.work.merges import mean
from toolkit.work.rows import Rows
from toolkit.work.schedule import Copy, Entry, Evaluation, Look, Merged, Pull, Schedule, Step

#: Bytes of rows that are gathered at a time, and the most steps of such a piece of the order.
GATHERED, LONGEST = 64 * 2**20, 1024
_BATCH = 256  # rows that are evaluated at once


class Learned(NamedTuple):
    """What a seed came to: model vector [P], local state [S], and the numbers of the schedule."""

    vector: Array
    local: Array
    numbers: Array


def learn(setups: Sequence[Setup], schedule: Schedule, say: Callable[[float], object]) -> tuple[list[Learned], float]:
    """What each setup learns by a schedule, and the seconds of compiling; `setups` differ in their seed alone.

    Seeds are learned side by side, each an entry of a leading axis, but for convolutions: those of several models at
    once are grouped ones, many times slower than one after the other.
    """
    places = Places(setups[0], ())
    alone = "conv_general_dilated" in jaxpr(places.learner)
    groups = [[setup] for setup in setups] if alone else [list(setups)]
    scan, learned, spent = compiled(places, schedule), list[Learned](), 0.0
    for done, group in enumerate(groups):
        together = Together(places, scan, group, schedule)
        spent += together.compile() if not done else 0.0
        for share in together.run():
            say((done + share) / len(groups))
        learned += together.learned()
    return learned, spent


def jaxpr(learner: Learner) -> str:
    """The primitives of a step."""
    vector, local = learner.initial()
    rows = learner.problem.train.take(np.zeros(1, np.int64))
    return str(jax.make_jaxpr(learner.differentiate)(vector, local, *map(learner.cast, rows), words((0,))))


def compiled(places: Places, schedule: Schedule) -> Scan:
    """The loop over the kinds of steps and merges that a schedule holds."""
    setup, learner = places.setup, places.learner
    counts = {step.ticket.count for step in schedule.steps}
    sizes = {stop - start for start, stop in schedule.shards}
    outer = places.applier(learner.layout.whole, setup.local)
    inner = places.applier(learner.layout.whole, False) if setup.local else None
    return Scan(learner, outer, inner, sorted(counts), sorted(sizes))


class Together:
    """The arrays of a run for some seeds, with a leading axis of seeds.

    Parameters
    ----------
    places : Places
        Of the first setup; gives learner and optimizers.
    scan : Scan
    setups : sequence of Setup
    schedule : Schedule
    """

    def __init__(self, places: Places, scan: Scan, setups: Sequence[Setup], schedule: Schedule) -> None:
        self.learner, self.scan, self.setups, self.schedule = places.learner, scan, setups, schedule
        self.source, self.test = setups[0].problem.train, setups[0].problem.test
        self.rows = [Rows(setup) for setup in setups]
        self.numbers = np.full((len(setups), schedule.count), np.nan)
        self.place = {worker: i for i, worker in enumerate(setups[0].cluster.workers)}
        self.shards = {
            size: [span for span in schedule.shards if span[1] - span[0] == size] for size in self.scan.sizes
        }
        self.state: State = stacked([self._first(setup) for setup in setups])
        self.slots = self._slots()
        self.found = self._nothing()
        self.random = any(jax.tree.leaves(block.rngs) for block in self.learner.vector.blocks)
        self.views: dict[Look, tuple[Array | None, Array | None]] = {}
        self.last: tuple[Array, Array]

    def _first(self, setup: Setup) -> State:
        """Every place as it is before the first step of a seed."""
        problem, n, vector = setup.problem, len(self.place), self.learner.vector
        model, local = vector.initial(problem.model, problem.blocks, setup.cluster.seed)
        outer, inner, learned = self.scan.outer, self.scan.inner, vector.trainable
        state = () if inner is None else stacked([jax.jit(inner.begin)(model, learned)] * n)
        begin = jax.jit(outer.begin)
        masks = {span: None if learned is None else learned[slice(*span)] for span in self.schedule.shards}
        shards = tuple(
            stacked([begin(model[slice(*span)], masks[span]) for span in self.shards[size]]) for size in self.scan.sizes
        )
        return State(
            model, np.tile(model, (n, 1)), np.zeros((n, len(model)), model.dtype), np.tile(local, (n, 1)), state, shards
        )

    def _slots(self) -> int:
        """How many steps a piece of the order holds."""
        one = self.source.take(np.zeros(1, np.int64))
        nbytes = sum(self.learner.cast(part).nbytes for part in one) * max(self.scan.counts, default=1)
        return int(max(1, min(len(self.schedule.steps), LONGEST, GATHERED // (nbytes * len(self.setups)))))

    def _nothing(self) -> Array:
        return np.zeros((len(self.setups), self.slots, 2), self.learner.vector.dtype)

    def compile(self) -> float:
        """Compile the loop and the measuring; return the seconds it took."""
        began = time.perf_counter()
        events, batches, _ = self._packed([])
        self.state, self.found = jax.block_until_ready(  # type: ignore[no-untyped-call]
            self.scan.advance(self.state, self.found, events, 0, 0, batches)  # of no events
        )
        self._measured(np.asarray(self.state.model), np.asarray(self.state.local[:, 0]))
        return time.perf_counter() - began

    def run(self) -> Iterator[float]:
        """Perform the schedule piece by piece; the share that is done after each."""
        done = 0
        for piece in self.schedule.pieces(self.slots):
            self._perform(piece)
            done += len(piece)
            yield done / len(self.schedule.entries)

    def learned(self) -> list[Learned]:
        """What each seed came to."""
        return [Learned(*parts) for parts in zip(*self.last, self.numbers, strict=True)]

    def _perform(self, piece: Sequence[Entry]) -> None:
        events, batches, steps = self._packed(piece)
        self.found, at, done = self._nothing(), 0, 0
        for entry in piece:
            if not isinstance(entry, (Look, Evaluation)):
                at += 1
                continue
            if at > done:
                self.state, self.found = self.scan.advance(self.state, self.found, events, done, at, batches)
                done = at
            if isinstance(entry, Look):
                self._look(entry)
            else:
                self._evaluate(entry)
        if at > done:
            self.state, self.found = self.scan.advance(self.state, self.found, events, done, at, batches)
        found = np.asarray(self.found, np.float64)
        for slot, step in enumerate(steps):
            loss, norm = step.numbers
            before = 0.0 if step.first else self.numbers[:, loss]
            self.numbers[:, loss], self.numbers[:, norm] = before + step.weight * found[:, slot, 0], found[:, slot, 1]

    def _packed(self, piece: Sequence[Entry]) -> tuple[Events, Batches, list[Step]]:
        """The events of a piece as columns, and the rows and weights that they read."""
        steps, weights, rows = list[Step](), list[Array](), list[tuple[float, ...]]()
        for entry in piece:
            match entry:
                case Pull(worker, (start, stop)):
                    rows.append((0, self.place[worker], start, stop, 0, 0, 0, 0, 0, 0, 0, 0))
                case Copy(worker, source):
                    rows.append((1, self.place[worker], 0, 0, self.place[source], 0, 0, 0, 0, 0, 0, 0))
                case Step(worker, ticket, _, samples, first, last, fresh):
                    kind = self.scan.step(ticket.count)
                    rows.append((kind, self.place[worker], 0, 0, len(steps), 0, samples, 0, 0, first, last, fresh))
                    steps.append(entry)
                case Merged(span, group, shares, samples, factor, share):
                    size = span[1] - span[0]
                    worker = self.place[group[0]] if len(group) == 1 else -1
                    number = self.shards[size].index(span)
                    kind = self.scan.merge(size)
                    rows.append((kind, worker, *span, len(weights), number, samples, factor, share, 0, 0, 0))
                    if len(group) > 1:
                        weights.append(np.zeros(len(self.place)))
                        weights[-1][[self.place[member] for member in group]] = shares
        return self._columns(rows), self._batches(steps, weights), steps

    def _columns(self, rows: Sequence[tuple[float, ...]]) -> Events:
        table = np.zeros((4 * self.slots, len(Events._fields)))
        table[: len(rows)] = rows or np.zeros((0, table.shape[1]))
        dtype, top = self.learner.vector.dtype, np.iinfo(np.int32).max
        types = {"factor": dtype, "share": dtype, "first": np.bool_, "last": np.bool_, "fresh": np.bool_}
        named = zip(Events._fields, np.minimum(table, top).T, strict=True)
        return Events(*(column.astype(types.get(name, np.int32)) for name, column in named))

    def _batches(self, steps: Sequence[Step], weights: Sequence[Array]) -> Batches:
        shape = len(self.setups), self.slots, max(self.scan.counts, default=1)
        places, random = np.zeros(shape, np.int64), np.zeros((*shape[:2], 2), np.uint32)
        for i, (setup, rows) in enumerate(zip(self.setups, self.rows, strict=True)):
            for slot, step in enumerate(steps):
                found = positions(step.ticket, self.source, setup.cluster.seed, rows.shards)
                places[i, slot, : len(found)] = found
                if self.random:
                    random[i, slot] = words((setup.cluster.seed, *step.key))
        taken = (self.learner.cast(part) for part in self.source.take(places.reshape(-1)))
        x, y = (part.reshape(*shape, *part.shape[1:]) for part in taken)
        table = np.zeros((self.slots, len(self.place)), self.learner.vector.dtype)
        table[: len(weights)] = weights or table[:0]
        return Batches(x, y, random, table)

    # -- what is measured -------------------------------------------------------------------------------------------

    def _look(self, look: Look) -> None:
        span = None if look.span is None else np.asarray(self.state.model[:, slice(*look.span)])
        own = None if look.worker is None else np.asarray(self.state.local[:, self.place[look.worker]])
        self.views[look] = span, own

    def _evaluate(self, evaluation: Evaluation) -> None:
        """Put together what was looked at, as :mod:`toolkit.work.whole` does, and measure it."""
        vector = np.array(self.state.model)
        for look in evaluation.looks:
            if look.span is not None:
                vector[:, slice(*look.span)] = self.views[look][0]
        owners, local = [look for look in evaluation.looks if look.worker is not None], self.state.local[:, 0]
        if owners:
            views, behind = [self.views[look][1] for look in owners], [float(look.rows) for look in owners]
            local = np.stack([mean([view[i] for view in views], behind) for i in range(len(self.setups))])  # type: ignore[index]
        self.last = vector, np.asarray(local)
        self.numbers[:, evaluation.numbers] = self._measured(*self.last)

    def _measured(self, vector: Array, local: Array) -> Array:
        """The metrics of each seed [seeds, metrics]."""
        sums = np.zeros((len(self.setups), 1 + len(self.learner.problem.metrics)))
        for first in range(0, self.test.rows, _BATCH):
            rows = self.test.take(np.arange(first, min(first + _BATCH, self.test.rows)))
            found = self.scan.measure(vector, local, *map(self.learner.cast, rows))
            sums += np.stack([np.asarray(found[name]) for name in ("loss", *self.learner.problem.metrics)], axis=1)
        return sums / self.test.rows

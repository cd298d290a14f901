"""Virtual time with real arithmetic, and the replay of a log: jobs for a process of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from toolkit.core.conditions import Condition
from toolkit.core.errors import Refused
from toolkit.core.messages import (
    Apply,
    Chunk,
    Committed,
    Evaluate,
    Event,
    Key,
    Left,
    Measured,
    Mix,
    PlaceName,
    Reduce,
    Send,
    Task,
)
from toolkit.core.strategy import Strategy
from toolkit.core.tally import Tally
from toolkit.exchanges.schedules import hops
from toolkit.place import Places, Setup, sources
from toolkit.runtime.collective import chunk
from toolkit.runtime.drive import Drive
from toolkit.runtime.outcome import Outcome
from toolkit.runtime.record import Recorder
from toolkit.runtime.settings import describe
from toolkit.runtime.simulator import Simulator
from toolkit.trace import Trace

#: Seconds between two reports of progress.
PACE = 0.25


def run(
    strategy: Strategy, setup: Setup, simulator: Simulator, until: Condition, say: Callable[[Any], bool]
) -> Outcome:
    """Train in virtual time: the real optimizer under a virtual clock."""
    places = Places(setup, setup.cluster.homes)
    outcome = Outcome(settings=describe(), compile_seconds={"simulator": places.compile()})
    said = [0.0]

    def watch(tally: Tally) -> bool:
        if time.monotonic() - said[0] < PACE:
            return True
        said[0] = time.monotonic()
        return say((tally, metrics(drive.measured)))

    trace = Trace()
    drive = Drive(strategy, setup.cluster, Recorder(trace), until, watch)
    begin(drive, places)
    try:
        simulator.run(drive, places)
    except Exception as error:
        outcome.error, drive.status = error, f"stopped: {error}"
    finish(drive, places, outcome, model(places, drive.log))
    outcome.rows = trace.rows
    return outcome


def begin(drive: Drive, places: Places) -> None:
    """Measure the initial model and tell the strategy."""
    for name, value in places.measure(None, places.initial()).items():
        event = Measured(name, value, -1, 0.0)
        drive.feed(event)


def model(places: Places, events: Iterable[Event]) -> dict[PlaceName, Any]:
    """What the places that hold the model have at the end, but for workers that left or came and did nothing yet."""
    gone = {event.worker for event in events if isinstance(event, Left)}
    homes = {name: place.home for name, place in places.places.items()}
    known = places.setup.cluster.homes
    live = {
        place.home.worker
        for name, place in places.places.items()
        if place.home.worker is not None and place.home.worker not in gone and (name in known or place.clock)
    }
    held = sources(homes, live, bool(places.learner.vector.local_size))
    return {name: places.read(name, Evaluate(("evaluate",), name, ())) for name in held}


def finish(drive: Drive, places: Places, outcome: Outcome, values: Mapping[PlaceName, Any]) -> None:
    """Measure the final model and put together what the run leaves."""
    outcome.events, outcome.tally, outcome.status = drive.log, drive.tally, drive.status
    outcome.params, outcome.local = places.assemble(values)
    outcome.metrics = metrics(drive.measured)
    last = max(drive.tally.updates - 1, -1)
    for name, value in places.measure(None, values).items():
        outcome.metrics.append((drive.tally.time, last, drive.tally.samples, name, value))


def metrics(measured: Iterable[tuple[Measured, int]]) -> list[tuple[float, int, int, str, float]]:
    """Measured values as rows, each with the samples merged by then."""
    return [(event.time, event.round, samples, event.name, event.value) for event, samples in measured]


# -- replay -----------------------------------------------------------------------------------------------------------


class Effect(NamedTuple):
    """A read or a write of a task at a place."""

    seq: int
    key: Key
    place: PlaceName
    writes: bool


def replay(
    strategy: Strategy,
    setup: Setup,
    events: list[Event],
    stamps: list[tuple[str, Key, PlaceName, PlaceName | None, int, int]],
    rounds: int | None,
    say: Callable[[Any], bool],
) -> Outcome:
    """Perform the tasks of a recorded run again, in the order in which each place read and wrote.

    The tasks follow from the events, the order from the stamps; no array comes from the record.
    """
    replies = list(asked(strategy, setup, events))
    tasks = {reply.key: reply for reply in replies if isinstance(reply, Task)}
    places = Places(setup, setup.cluster.homes)
    queues: dict[PlaceName, list[Effect]] = {}
    for kind, key, place, peer, reads, writes in stamps:
        if key not in tasks or (rounds is not None and late(tasks[key], rounds)):
            continue
        if kind == "evaluate":
            continue
        if reads >= 0 and kind != "reduce":
            queues.setdefault(place, []).append(Effect(reads, key, place, False))
        if writes >= 0:
            target = peer if peer is not None else place
            queues.setdefault(target, []).append(Effect(writes, key, target, True))
    values: dict[tuple[Key, PlaceName], Any] = {}
    for effect in ordered(queues, tasks):
        task = tasks[effect.key]
        source = task.src if isinstance(task, (Send, Chunk)) else effect.place
        if isinstance(task, Chunk) and task.of not in places.at(effect.place).sums:
            places.write(effect.place, tasks[task.of], None)  # of a sum that was cancelled before it ended here
        if not effect.writes:
            values[effect.key, source] = places.read(effect.place, task)
        else:
            places.write(effect.place, task, values.pop((effect.key, source), None))
    merges = sum(isinstance(reply, Committed) for reply in replies)
    outcome = Outcome(settings=describe(), events=events, tally=Tally(updates=merges))
    outcome.params, outcome.local = places.assemble(model(places, events))
    return outcome


def late(task: Task, rounds: int) -> bool:
    """Whether a task changes a model after the first `rounds` merges."""
    return isinstance(task, (Apply, Mix)) and (task.round or 0) >= rounds


def asked(strategy: Strategy, setup: Setup, events: list[Event]) -> Iterator[Task | Committed]:
    """Every task and every merge that a strategy answers these events with."""
    state = strategy.init(setup.cluster)
    for event in events:
        state, replies = strategy.step(state, event)
        for reply in replies:
            if isinstance(reply, Reduce):
                yield reply
                yield from (chunk(reply, number) for number in range(len(hops(reply.schedule, len(reply.group))[1])))
            elif isinstance(reply, (Task, Committed)):
                yield reply


def ordered(queues: Mapping[PlaceName, list[Effect]], tasks: Mapping[Key, Task]) -> Iterator[Effect]:
    """The effects in an order that keeps that of each place and lets no value be written before it is read."""
    heads = {place: iter(sorted(effects)) for place, effects in queues.items()}
    waiting: dict[PlaceName, Effect | None] = {place: next(head, None) for place, head in heads.items()}
    done: set[tuple[Key, PlaceName]] = set()
    moved = True
    while moved:
        moved = False
        for place in heads:
            while (effect := waiting[place]) is not None:
                task = tasks[effect.key]
                source = task.src if isinstance(task, (Send, Chunk)) else place
                if effect.writes and not isinstance(task, Reduce) and (effect.key, source) not in done:
                    break
                if not effect.writes:
                    done.add((effect.key, source))
                yield effect
                waiting[place], moved = next(heads[place], None), True
    if any(effect is not None for effect in waiting.values()):
        stuck = next(effect for effect in waiting.values() if effect is not None)
        raise Refused(
            f"The record cannot be replayed: at {stuck.place} the write of {stuck.key} has no read before it. "
            f"Rows are missing from the trace. Replay a complete record."
        )

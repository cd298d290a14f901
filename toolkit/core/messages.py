"""The vocabulary: every message that crosses a border between layers, as frozen records.

*Events* (something happened) rise from the runtime to the policy; *actions* (something is wanted) fall from
the policy to the runtime. Actions that a runtime can perform are *tasks*; together with their ``after`` they
form a graph. Messages are plain data: names, numbers and tuples, never an array, a function or a clock.

A worker is a number; a *place* is a worker, a server shard ``"s0"``, a pipeline stage ``"3.1"`` (stage 1 of
worker 3) or the :data:`COORDINATOR`. A *span* is a range ``(start, stop)`` of the flat model vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from toolkit.core.records import Record, field

Worker: TypeAlias = int
PlaceName: TypeAlias = int | str
Key: TypeAlias = tuple[str | int, ...]
Keys: TypeAlias = tuple[Key, ...]
Span: TypeAlias = tuple[int, int]
Facts: TypeAlias = Mapping[str, Any]

COORDINATOR = "coordinator"


class Event(Record):
    """Something happened: rises through the layers."""


class Action(Record):
    """Something is wanted: falls through the layers."""


class _Rising(dict[type, bool]):
    def __missing__(self, kind: type) -> bool:
        self[kind] = issubclass(kind, Event)
        return self[kind]


#: For each class of messages, whether it is an event; asked for every message, so it is looked up once per class.
RISING: Mapping[type, bool] = _Rising()


# -- events of the runtime ------------------------------------------------------------------------------------


class Joined(Event):
    """A worker is ready to take part; `time` is in seconds since the run began."""

    worker: Worker
    time: float


class Left(Event):
    """A worker is gone and will not come back under this number."""

    worker: Worker
    time: float


class Done(Event):
    """A :class:`Join` was reached: everything it waited for is performed.

    `facts` unites what its predecessors reported: ``samples`` (rows used), ``loss``, ``norm`` of the update.
    """

    task: Join
    time: float
    facts: Facts = field(default_factory=dict)


class Measured(Event):
    """A metric of the model as it was after merge number `round`."""

    name: str
    value: float
    round: int
    time: float


# -- events of an exchange ------------------------------------------------------------------------------------


class Ready(Event):
    """An update of `worker` can be merged; `stale` counts the merges issued since its parameters were read."""

    worker: Worker
    time: float
    stale: int


class Committed(Event):
    """The model now contains the updates of `group`."""

    group: frozenset[Worker]
    time: float


class Finished(Event):
    """A worker has run all its iterations: it leaves every quorum, plan and minimum."""

    worker: Worker
    time: float


# -- actions of a policy --------------------------------------------------------------------------------------


class Release(Action):
    """These workers may start their next iteration."""

    workers: frozenset[Worker]


class Commit(Action):
    """Take the updates of `group` into the model, as one mean weighted by samples."""

    group: frozenset[Worker]


# -- tasks ----------------------------------------------------------------------------------------------------


class Ticket(Record):
    """Which rows a step reads: `count` rows from position `first` of the order of `epoch`.

    The order is that of all rows, or with `shard` the order of that worker's own rows. Count 0 means that
    no rows are left.
    """

    epoch: int
    first: int
    count: int
    shard: Worker | None = None


class Keyed(Action):
    """A task by its name."""

    key: Key


class Task(Keyed, kw_only=True):
    """Work for a runtime: begins once every task of the same reply named in `after` is done.

    A `key` is used once per run. Tasks of a merge carry its number in `round`.
    """

    after: Keys = ()
    round: int | None = None


class Compute(Task):
    """One local update at a worker: a gradient, or the drift of `steps` local steps.

    `parts` are the spans in which the update will travel; a codec encodes each by itself. One ticket per step.
    """

    at: PlaceName
    parts: tuple[Span, ...] = ()
    steps: int = 1
    codec: str | None = None
    tickets: tuple[Ticket, ...] = ()
    forward: bool = False
    local: bool = False


class Stage(Task):
    """Forward or backward of stage `stage` (index, count) on microbatch `microbatch` (index, count)."""

    at: PlaceName
    worker: Worker
    phase: str
    stage: tuple[int, int]
    microbatch: tuple[int, int]
    parts: tuple[Span, ...] = ()
    codec: str | None = None
    tickets: tuple[Ticket, ...] = ()
    forward: bool = False


class Send(Task):
    """Move an item of `src` to `dst`.

    `item` is ``"params"`` (pulled weights replace those of `dst`), ``"update"`` (goes into the inbox of `dst`),
    ``"snapshot"`` (parameters for a later :class:`Mix`, into the inbox), ``"replica"`` (parameters, model
    state and optimizer state), ``"activations"`` or ``"cotangents"`` between stages. The value is read when the
    task becomes ready, then queues for the link.
    """

    src: PlaceName
    dst: PlaceName
    item: str
    part: Span
    codec: str | None = None
    microbatch: tuple[int, int] = (0, 1)


class Reduce(Task):
    """Sum the weighted updates of `group` over `part` and leave the sum at every member.

    One task for the whole collective: each place expands `schedule`, the name of a list of hops, for itself.
    """

    group: tuple[PlaceName, ...]
    schedule: str
    part: Span
    weights: tuple[float, ...]
    codec: str | None = None


class Chunk(Task):
    """One hop of a :class:`Reduce`: chunks ``[start, stop)`` of `count` go from `src` to `dst`, which adds or replaces.

    Made from the schedule by each place for itself; `of` is the key of the collective.
    """

    src: PlaceName
    dst: PlaceName
    of: Key
    part: Span
    start: int
    stop: int
    count: int
    adds: bool
    codec: str | None = None


class Apply(Task):
    """Optimizer step on `part` at a place with the weighted mean update of `group`.

    The updates are taken from `source`: the place's ``"inbox"``, the ``"sum"`` of a :class:`Reduce`, or its own
    ``"update"``. `staleness` counts, for each member, the merges between its pull and this one; `samples` is the
    number of rows merged before; `share` is the part of the live workers that the group makes up. A `drift` of local
    steps is applied by the outer optimizer.
    """

    at: PlaceName
    group: tuple[Worker, ...]
    clocks: tuple[int, ...]
    source: str
    part: Span
    weights: tuple[float, ...]
    staleness: tuple[int, ...]
    samples: int = 0
    share: float = 1.0
    codec: str | None = None
    drift: bool = False


class Mix(Task):
    """Replace the parameters of a place by ``sum(weight * snapshot)`` over `sources`, itself among them."""

    at: PlaceName
    sources: tuple[PlaceName, ...]
    weights: tuple[float, ...]
    part: Span


class Evaluate(Task):
    """Measure the model that `sources` hold together, on copies, outside the timed lanes."""

    at: PlaceName
    sources: tuple[PlaceName, ...]


class Cancel(Task):
    """Drop at a place what is still to do for merge `of`, and report whether it was already applied there."""

    at: PlaceName
    of: int


class Join(Task):
    """Takes no time; its :class:`Done` rises once `after` is done. `about` names the workers it concerns."""

    about: tuple[Worker, ...] = ()

"""Evaluation at stated intervals, of one version of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from immutables import Map

from toolkit.core.cluster import Cluster, Home
from toolkit.core.conditions import Condition
from toolkit.core.messages import (
    COORDINATOR,
    Apply,
    Committed,
    Done,
    Evaluate,
    Event,
    Join,
    Joined,
    Keys,
    Left,
    Measured,
    Mix,
    PlaceName,
    Worker,
)
from toolkit.core.records import Record, field, replace
from toolkit.core.strategy import Message, Strategy
from toolkit.core.tally import Tally


class Watch(Record):
    """What has been achieved, who is here, when the last evaluation was, and the writes of the merge in this reply."""

    tally: Tally
    homes: Mapping[PlaceName, Home]
    live: Map[Worker, bool] = field(default_factory=Map)
    passed: int = 0
    under_way: bool = False
    writes: Keys = ()


def evaluation(every: Condition, everyone: bool = False) -> Strategy:
    """Evaluate the model each time `every` has passed once more, right after a merge.

    All shards are read at the version of that merge; replicas are averaged. No second evaluation is asked for while one
    is under way. With `everyone`, workers that hold no model are read too, for the state they keep to themselves.
    """

    def init(cluster: Cluster) -> Watch:
        return Watch(
            Tally(rows=cluster.rows),
            {n: h for n, h in cluster.homes.items() if h.model or (everyone and h.worker is not None)},
        )

    def sources(watch: Watch) -> tuple[PlaceName, ...]:
        return tuple(name for name, home in watch.homes.items() if home.worker is None or home.worker in watch.live)

    def step(watch: Watch, message: Message) -> tuple[Watch, Sequence[Message]]:
        match message:
            case Event():
                watch = replace(watch, tally=watch.tally.observe(message), writes=())
                match message:
                    case Joined(worker):
                        return replace(watch, live=watch.live.set(worker, True)), ()
                    case Left(worker) if worker in watch.live:
                        again = watch.passed - watch.under_way  # it may take the evaluation under way along
                        return replace(watch, live=watch.live.delete(worker), passed=again, under_way=False), ()
                    case Measured():
                        return replace(watch, under_way=False), ()
                    case Done(Join(("merged", _), about=group), time):  # Committed rises from above this layer
                        return replace(watch, tally=watch.tally.observe(Committed(frozenset(group), time))), ()
                return watch, ()
            case Apply() | Mix():
                return replace(watch, writes=(*watch.writes, message.key)), (message,)
            case Join(("merged", number), about=group):
                passed = math.floor(every.amount(watch.tally.observe(Committed(frozenset(group), watch.tally.time))))
                if passed <= watch.passed or watch.under_way:
                    return watch, (message,)
                task = Evaluate(
                    ("evaluate", number), COORDINATOR, sources(watch), after=watch.writes, round=int(number)
                )
                return replace(watch, passed=passed, under_way=True), (message, task)
        return watch, (message,)

    return Strategy(init, step)

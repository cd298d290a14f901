"""Pipeline parallelism.

Y. Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from toolkit.core.checks import few
from toolkit.core.cluster import Cluster, Home
from toolkit.core.errors import Refused
from toolkit.core.layout import overlap
from toolkit.core.messages import (
    Apply,
    Cancel,
    Compute,
    Event,
    Key,
    Keys,
    Mix,
    PlaceName,
    Reduce,
    Send,
    Span,
    Stage,
    Task,
    Worker,
)
from toolkit.core.records import replace
from toolkit.core.strategy import Homes, Message, State, Strategy, strategy

#: What stands for a task's key in the `after` of others: per stage, the keys of that stage.
Renamed: TypeAlias = Mapping[Key, tuple[Keys, ...]]


@strategy
def pipeline(stages: int, microbatches: int = 1) -> Strategy:
    r"""Split each worker's model over `stages` places and each batch into `microbatches`.

    Worker w becomes the places ``"w.0"`` to ``"w.{stages - 1}"``, each with consecutive blocks of the model. Their
    parameters, updates and optimizer state live and travel only there; between stages go activations and their
    cotangents. With p equal stages and m equal microbatches an iteration takes :math:`(m + p - 1) / m` of the time
    without gaps.

    Parameters
    ----------
    stages : int, in 1..100_000
        At most the number of blocks of the model.
    microbatches : int, in 1..100_000
        Of sizes that differ by at most one row; the gradient is the weighted sum over them. Batch-norm statistics are
        those of a microbatch.

    References
    ----------
    Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", 2019.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.chain(tk.bsp(), tk.parameter_server(), tk.pipeline(stages=2, microbatches=4))
    chain(bsp(), parameter_server(), pipeline(2, 4))
    """
    stages, microbatches = few("stages", stages, 1, "stages"), few("microbatches", microbatches, 1, "microbatches")

    def places(cluster: Cluster, homes: Homes) -> Homes:
        spans = cluster.layout.stages(stages)
        split: dict[PlaceName, Home] = {}
        for name, home in homes.items():
            if home.role == "worker":
                for s, span in enumerate(spans):
                    split[f"{name}.{s}"] = replace(
                        home, role="stage", span=span, beside=name if s == 0 else None, stage=(s, stages)
                    )
            else:
                split[name] = home
        return split

    def init(cluster: Cluster) -> State:
        return Split(cluster.layout.stages(stages), microbatches), {}

    def step(state: State, message: Message) -> tuple[State, Sequence[Message]]:
        split, renamed = state
        if isinstance(message, Event):
            return (split, {}), ()
        if not isinstance(message, Task):
            return state, (message,)
        if isinstance(message, Compute):
            tasks, names = split.compute(message, renamed)
        else:
            tasks, names = split.expand(message, renamed)
        return (split, {**renamed, message.key: names} if names else renamed), tasks

    return Strategy(init, step, places=places)


def wait(renamed: Renamed, after: Keys, stage: int | None = None) -> Keys:
    """What to wait for: of an expanded task its part at this stage, or, from elsewhere, all its parts."""
    found: list[Key] = []
    for key in after:
        if key not in renamed:
            found.append(key)
        elif stage is None:
            found.extend(k for keys in renamed[key] for k in keys)
        else:
            found.extend(renamed[key][stage])
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Split:
    """The stages' spans and the number of microbatches, and how tasks are divided among them."""

    spans: tuple[Span, ...]
    microbatches: int

    def expand(self, task: Task, renamed: Renamed) -> tuple[list[Task], tuple[Keys, ...]]:
        """One task per stage whose span it concerns; tasks that concern no worker stay as they are."""
        tasks: list[Task] = []
        names: list[Keys] = []
        for s, span in enumerate(self.spans):
            part = self.at_stage(task, s, span)
            if part is not None:
                tasks.append(replace(part, key=(*task.key, s), after=wait(renamed, task.after, s)))
            names.append((tasks[-1].key,) if part is not None else ())
        if tasks:
            return tasks, tuple(names)
        return [replace(task, after=wait(renamed, task.after))], ()

    def at_stage(self, task: Task, s: int, span: Span) -> Task | None:
        """The part of a task that a stage has to do."""
        match task:
            case Send(src=src, dst=dst, part=part) if (isinstance(src, int) or isinstance(dst, int)) and (
                piece := overlap(part, span) or (span if part[0] == part[1] else None)
            ):
                return replace(task, src=at(src, s), dst=at(dst, s), part=piece)
            case Apply(at=place, part=part) | Mix(at=place, part=part) if isinstance(place, int) and (
                piece := overlap(part, span) or (span if part[0] == part[1] else None)
            ):
                changed = replace(task, at=at(place, s), part=piece)
                if isinstance(changed, Mix):
                    changed = replace(changed, sources=tuple(at(v, s) for v in changed.sources))
                return changed
            case Reduce(group=group, part=part) if piece := overlap(part, span) or (
                span if part[0] == part[1] else None
            ):
                return replace(task, group=tuple(at(v, s) for v in group), part=piece)
            case Cancel(at=place) if isinstance(place, int):
                return replace(task, at=at(place, s))
        return None

    def compute(self, task: Compute, renamed: Renamed) -> tuple[list[Task], tuple[Keys, ...]]:
        """Forward through the stages and back, microbatch by microbatch."""
        if task.local:
            raise Refused(
                f"pipeline was asked for {task.steps} local step(s) of worker {task.at}. "
                f"An optimizer step at a worker would need the parameters of every stage. "
                f"Leave out local_steps() or pipeline()."
            )
        worker = task.at
        assert isinstance(worker, int)
        tasks: list[Task] = []
        latest: dict[int, Keys] = {s: wait(renamed, task.after, s) for s in range(len(self.spans))}
        phases = ("forward",) if task.forward else ("forward", "backward")
        for phase in phases:
            for m in range(self.microbatches):
                tasks.extend(self.pass_through(task, worker, phase, m, latest))
        return tasks, tuple(latest[s] for s in range(len(self.spans)))

    def pass_through(
        self, task: Compute, worker: Worker, phase: str, m: int, latest: dict[int, Keys]
    ) -> Iterator[Task]:
        """One microbatch through all stages in one direction; `latest` holds what each stage did last."""
        count, clock = len(self.spans), task.key[2]
        item = "activations" if phase == "forward" else "cotangents"
        order = range(count) if phase == "forward" else range(count - 1, -1, -1)
        arrived: Keys = ()
        for i, s in enumerate(order):
            if i:
                src, dst = at(worker, order[i - 1]), at(worker, s)
                move = Send(
                    (item, worker, clock, s, m),
                    src,
                    dst,
                    item,
                    (0, 0),
                    microbatch=(m, self.microbatches),
                    after=arrived,
                )
                yield move
                arrived = (move.key,)
            parts = tuple(p for part in task.parts if (p := overlap(part, self.spans[s])))
            stage = Stage(
                ("stage", worker, clock, phase, s, m),
                at(worker, s),
                worker,
                phase,
                (s, count),
                (m, self.microbatches),
                parts,
                task.codec,
                task.tickets,
                task.forward,
                after=tuple(dict.fromkeys((*arrived, *latest[s]))),
            )
            yield stage
            latest[s] = arrived = (stage.key,)


def at(place: PlaceName, stage: int) -> PlaceName:
    """The place of a worker's stage; other places are themselves."""
    return f"{place}.{stage}" if isinstance(place, int) else place

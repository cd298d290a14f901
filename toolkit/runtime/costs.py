"""What tasks cost in virtual time: seconds of work, seconds on the wire, bytes."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.core.cluster import Cluster, hosts
from toolkit.core.layout import cuts
from toolkit.core.messages import Apply, Chunk, Compute, PlaceName, Send, Stage, Task, Worker
from toolkit.runtime.links import Link, Links
from toolkit.runtime.timing import StepTime
from toolkit.runtime.wire import chunk_nbytes, send_nbytes

#: The part of a step that its forward pass takes; the backward pass computes two gradients of the same cost.
FORWARD = 1 / 3


class Costs:
    """The seconds and bytes of each task on a described cluster.

    Parameters
    ----------
    cluster : Cluster
        With its homes.
    step : step time [s]
    link : Link or Links
    apply : float [s]
        One optimizer step on the whole model; a shard takes its part.
    given : {place: host}, optional
    seed : int
        Of the step times.
    control : float [s]
        From the end of a task until what the coordinator answers is taken up.
    """

    def __init__(
        self,
        cluster: Cluster,
        step: StepTime,
        link: Link | Links,
        apply: float,
        given: Mapping[PlaceName, PlaceName] | None,
        seed: int,
        control: float = 0.0,
    ) -> None:
        self.seed, self.control = seed, control
        self.cluster, self.step, self.link, self.apply = cluster, step, link, apply
        self._hosts = hosts(cluster, given)
        self._size = max(1, cluster.layout.size)
        self._steps: dict[Worker, int] = {}
        self._sizes: dict[object, int] = {}

    def host(self, place: PlaceName) -> PlaceName:
        """The host of a place; one that joined later has its own."""
        return self._hosts.get(place, place)

    def places_of(self, worker: Worker) -> list[PlaceName]:
        """The places of a worker."""
        return [worker, *(name for name, home in self.cluster.homes.items() if home.worker == worker)]

    def worker(self, place: PlaceName) -> Worker | None:
        """The worker to which a place belongs."""
        home = self.cluster.homes.get(place)
        return home.worker if home else place if isinstance(place, int) else None

    def samples(self, task: Compute | Stage) -> int:
        """The rows that a task reads; without data each step counts as one."""
        steps = task.steps if isinstance(task, Compute) else 1
        return sum(ticket.count for ticket in task.tickets) if task.tickets else steps

    def nbytes(self, task: Task) -> int:
        """The bytes that a task sends."""
        if type(task) is Send:
            key: object = (task.item, task.part, task.codec)
        elif type(task) is Chunk:
            key = (task.part, task.codec, task.start, task.stop, task.count)
        else:
            return 0
        size = self._sizes.get(key)
        if size is None:
            layout = self.cluster.layout
            if isinstance(task, Send):
                size = send_nbytes(layout, task)
            else:
                size = chunk_nbytes(layout, task.part, task.codec, task.count, task.start, task.stop)
            self._sizes[key] = size
        return size

    def between(self, source: PlaceName, target: PlaceName) -> Link:
        """The link from one host to another."""
        return self.link if isinstance(self.link, Link) else self.link.between(source, target)

    def work(self, task: Task, now: float) -> float:
        """Seconds on the CPU of its host."""
        match task:
            case Apply(part=(start, stop)):
                return self.apply * ((stop - start) / self._size if stop > start else 1.0) if self.apply else 0.0
            case Compute(at=place, tickets=tickets, steps=steps, forward=forward):
                worker = place if isinstance(place, int) else 0
                count = len(tickets) if tickets else steps
                if tickets and not any(ticket.count for ticket in tickets):
                    return 0.0
                first = self._steps.get(worker, 0)
                self._steps[worker] = first + count
                total = sum([self.step(worker, index, now, self.seed) for index in range(first, first + count)])
                return total * FORWARD if forward else total
            case Stage(worker=worker, stage=(_, stages), microbatch=(m, microbatches), phase=phase):
                whole = self.step(worker, int(task.key[2]) - 1, now, self.seed)
                rows = self.samples(task)
                a, b = cuts((0, rows), microbatches)[m] if task.tickets else (0, 1)
                share = (b - a) / rows if task.tickets and rows else 1 / microbatches
                return whole * share / stages * (FORWARD if phase == "forward" else 1 - FORWARD)
        return 0.0

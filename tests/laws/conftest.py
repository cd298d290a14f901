"""The arrays of a run, replaced by exact books: who holds which updates, with which weight."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any

import pytest

from toolkit.core.messages import (
    Apply,
    Chunk,
    Compute,
    Evaluate,
    Facts,
    Mix,
    PlaceName,
    Reduce,
    Send,
    Stage,
    Task,
)
from toolkit.exchanges.schedules import hops


def plus(a: Counter, b: Counter, factor: Fraction = Fraction(1)) -> Counter:
    """``a + factor * b``, exactly."""
    total = Counter(a)
    for key, value in b.items():
        total[key] += factor * value
    return total


class Ledger:
    """An update is the pair (worker, clock); a model is the sum of the updates it has taken, each with its weight.

    `start` gives each place a further entry, to follow where the initial parameters go; `learns=False` is a learning
    rate of zero. `samples` are the rows behind each update of a worker.
    """

    def __init__(self, start: dict[PlaceName, Counter] | None = None, learns: bool = True, samples: dict | None = None):
        self.model: dict[PlaceName, Counter] = defaultdict(Counter, start or {})
        self.update: dict[PlaceName, tuple[int, int]] = {}
        self.inbox: dict[PlaceName, dict[Any, Any]] = defaultdict(dict)
        self.sums: dict[tuple[PlaceName, Any], list[Counter]] = {}
        self.merges: dict[PlaceName, list[tuple[int, tuple, tuple]]] = defaultdict(list)
        self.learns, self.samples = learns, samples or {}

    def read(self, place: PlaceName, task: Task) -> Any:
        match task:
            case Compute():
                return task.at, task.key[2]
            case Stage(worker=worker):
                return worker, task.key[2]
            case Send(item="update"):
                return self.update[place]
            case Send(item="replica"):
                return Counter(self.model[place]), list(self.merges[place])
            case Send(item="snapshot" | "params") | Evaluate():
                return Counter(self.model[place])
            case Send():
                return None
            case Chunk(of=of, start=start, stop=stop):
                return [Counter(chunk) for chunk in self.sums[place, of][start:stop]]
            case Apply():
                return self._mean(place, task)
            case Mix(sources=sources, weights=weights):
                known = {place: self.model[place], **{k: v for k, v in self.inbox[place].items() if k != place}}
                mixed = Counter()
                for source, weight in zip(sources, weights, strict=True):
                    mixed = plus(mixed, known[source], Fraction(weight).limit_denominator(10**6))
                return mixed
        raise TypeError(task)

    def _mean(self, place: PlaceName, task: Apply) -> Counter:
        total = sum(map(Fraction, task.weights))
        wanted = Counter()
        for worker, clock, weight in zip(task.group, task.clocks, task.weights, strict=True):
            wanted[worker, clock] += Fraction(weight) / total
            assert weight == self.samples.get(worker, weight), "weights are rows"
        match task.source:
            case "sum":
                found = self.sums.pop((place, ("reduce", task.round)), None) or next(
                    self.sums.pop(key) for key in list(self.sums) if key[0] == place and key[1][1] == task.round
                )
                assert all(chunk == found[0] for chunk in found), "every chunk is the sum of the same updates"
                taken = Counter({key: value / total for key, value in found[0].items()})
            case _:
                own = self.update.get(place)
                items = [self.update[place] if own and own[0] == w else self.inbox[place][w] for w in task.group]
                taken = Counter()
                for item, weight in zip(items, task.weights, strict=True):
                    taken[item] += Fraction(weight) / total
        assert taken == wanted, f"{task} took {taken} at {place}"
        return wanted

    def write(self, place: PlaceName, task: Task, value: Any) -> None:
        match task:
            case Compute() | Stage():
                self.update[place] = value
            case Send(item="update"):
                self.inbox[place][value[0]] = value
            case Send(item="snapshot", src=src):
                self.inbox[place][src] = value
            case Send(item="replica"):
                self.model[place], self.merges[place] = value
            case Send():
                pass
            case Reduce(group=group, weights=weights, schedule=schedule):
                chunks, _ = hops(schedule, len(group))
                own = Counter({self.update[place]: Fraction(weights[group.index(place)])})
                self.sums[place, task.key] = [Counter(own) for _ in range(chunks)]
            case Chunk(of=of, start=start, adds=adds):
                for i, chunk in enumerate(value, start):
                    mine = self.sums[place, of]
                    mine[i] = plus(mine[i], chunk) if adds else chunk
            case Apply():
                if self.learns:
                    self.model[place] = plus(self.model[place], value)
                self.merges[place].append((task.round, task.group, task.clocks))
            case Mix():
                self.model[place] = value
            case _:
                raise TypeError(task)

    def facts(self, task: Task, value: Any) -> Facts:
        worker = value[0]
        tickets = task.tickets if isinstance(task, (Compute, Stage)) else ()
        rows = sum(ticket.count for ticket in tickets) if tickets else self.samples.get(worker, 1)
        return {"samples": rows, "loss": 1.0, "norm": 1.0}

    def measure(self, task: Evaluate, values: dict[PlaceName, Any]) -> dict[str, float]:
        return {"entries": float(max(map(len, values.values())))}


@pytest.fixture(scope="session")
def ledger() -> type[Ledger]:
    return Ledger

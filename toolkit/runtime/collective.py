"""Collectives as hops: what each place derives for itself from the name of a schedule and a group."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from toolkit.core.messages import Chunk, Reduce
from toolkit.exchanges.schedules import hops


class Order(NamedTuple):
    """For one hop, by number: what must have reached its source, and what must be written at its target before it."""

    source: tuple[int, ...]
    target: tuple[int, ...]


@lru_cache(maxsize=256)
def orders(schedule: str, ranks: int) -> tuple[Order, ...]:
    """What each hop of a schedule waits for; so the sum of a chunk has the same bits whatever arrives first."""
    _, plan = hops(schedule, ranks)
    wrote: dict[tuple[int, int], list[int]] = {}
    found = []
    for i, hop in enumerate(plan):
        chunks = range(hop.start, hop.stop)
        source = {k for c in chunks for k in wrote.get((hop.src, c), ())}
        target = {k for c in chunks for k in wrote.get((hop.dst, c), ())}
        found.append(Order(tuple(sorted(source)), tuple(sorted(target))))
        for c in chunks:
            wrote.setdefault((hop.dst, c), []).append(i)
    return tuple(found)


@lru_cache(maxsize=256)
def incoming(schedule: str, ranks: int) -> tuple[tuple[int, ...], ...]:
    """For each rank, the hops that write to it."""
    _, plan = hops(schedule, ranks)
    return tuple(tuple(i for i, hop in enumerate(plan) if hop.dst == rank) for rank in range(ranks))


def chunk(reduce: Reduce, number: int) -> Chunk:
    """Hop `number` of a collective."""
    count, plan = hops(reduce.schedule, len(reduce.group))
    hop = plan[number]
    return Chunk(
        ("hop", *reduce.key[1:], number),
        reduce.group[hop.src],
        reduce.group[hop.dst],
        reduce.key,
        reduce.part,
        hop.start,
        hop.stop,
        count,
        hop.adds,
        reduce.codec,
        round=reduce.round,
    )

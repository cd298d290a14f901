"""Joins: how a strategy is told that what it asked for is done."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from toolkit.core.messages import Done, Facts, Join, Key


class Report(NamedTuple):
    """A task is done, and nobody knows yet."""

    key: Key
    time: float
    facts: Facts | None


class Waiting:
    """A join under way: how many keys it still waits for, and the facts gathered for it."""

    __slots__ = ("facts", "join", "missing")

    def __init__(self, join: Join, missing: int) -> None:
        self.join, self.missing = join, missing
        self.facts: dict[str, Any] = {}


class Joins:
    """The joins under way, found by their own keys and by those of what they wait for."""

    def __init__(self) -> None:
        self._joins: dict[Key, Waiting] = {}
        self._after: dict[Key, list[Waiting]] = {}  # key of a task -> the joins that wait for it

    def add(self, joins: Iterable[Join], now: float) -> list[Done]:
        """Take up the joins of a reply; those that wait for nothing are done."""
        done: list[Done] = []
        for join in joins:
            if not join.after:
                done.append(Done(join, now))
                continue
            waiting = self._joins[join.key] = Waiting(join, len(join.after))
            for key in join.after:
                others = self._after.get(key)
                if others is None:
                    self._after[key] = [waiting]
                elif waiting in others:
                    waiting.missing -= 1  # a key that is named twice
                else:
                    others.append(waiting)
        return done

    def done(self, key: Key, time: float, facts: Facts | None = None) -> Sequence[Done]:
        """The joins that are reached now that a task is done."""
        reached: list[Done] = []
        for waiting in self._after.pop(key, ()):
            if facts:
                unite(waiting.facts, facts)
            waiting.missing -= 1
            if not waiting.missing and self._joins.pop(waiting.join.key, None) is not None:  # else it was dropped
                reached.append(Done(waiting.join, time, waiting.facts))
        return reached

    def forget(self, round: int) -> None:
        """Drop the joins of a cancelled merge, but not the one that waits for its cancelling."""
        for name in [n for n, w in self._joins.items() if w.join.round == round and n[0] != "cancelled"]:
            del self._joins[name]

    def pending(self) -> list[tuple[Join, frozenset[Key]]]:
        """The joins under way and what each waits for, for messages about what is overdue."""
        return [(w.join, frozenset(key for key in w.join.after if key in self._after)) for w in self._joins.values()]


def unite(gathered: dict[str, Any], facts: Facts) -> None:
    """Add facts: norms combine as those of parts of one vector, lists are joined, others replace."""
    for name, value in facts.items():
        if name == "norm" and name in gathered:
            gathered[name] = math.hypot(gathered[name], value)
        elif isinstance(value, tuple) and name in gathered:
            gathered[name] = (*gathered[name], *value)
        else:
            gathered[name] = value

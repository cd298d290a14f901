"""Joins: how a strategy is told that what it asked for is done."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from toolkit.core.messages import Done, Facts, Join, Key


class Report(NamedTuple):
    """A task is done, and nobody knows yet."""

    key: Key
    time: float
    facts: Facts | None


class Joins:
    """The joins under way, what each still waits for, and the facts gathered for it."""

    def __init__(self) -> None:
        self._missing: dict[Key, set[Key]] = {}  # join -> keys
        self._joins: dict[Key, tuple[Join, dict[str, Any]]] = {}
        self._waiting: dict[Key, list[Key]] = {}  # key -> joins

    def add(self, joins: Iterable[Join], now: float) -> list[Done]:
        """Take up the joins of a reply; those that wait for nothing are done."""
        done: list[Done] = []
        for join in joins:
            if not join.after:
                done.append(Done(join, now))
                continue
            self._joins[join.key], self._missing[join.key] = (join, {}), set(join.after)
            for key in self._missing[join.key]:
                self._waiting.setdefault(key, []).append(join.key)
        return done

    def done(self, key: Key, time: float, facts: Facts | None = None) -> list[Done]:
        """The joins that are reached now that a task is done."""
        reached: list[Done] = []
        for name in self._waiting.pop(key, ()):
            if name not in self._joins:
                continue
            join, gathered = self._joins[name]
            if facts:
                unite(gathered, facts)
            self._missing[name].discard(key)
            if not self._missing[name]:
                del self._joins[name], self._missing[name]
                reached.append(Done(join, time, gathered))
        return reached

    def forget(self, round: int) -> None:
        """Drop the joins of a cancelled merge, but not the one that waits for its cancelling."""
        for name in [n for n, (join, _) in self._joins.items() if join.round == round and n[0] != "cancelled"]:
            del self._joins[name], self._missing[name]

    def pending(self) -> list[tuple[Join, frozenset[Key]]]:
        """The joins under way and what each waits for, for messages about what is overdue."""
        return [(join, frozenset(self._missing[name])) for name, (join, _) in self._joins.items()]


def unite(gathered: dict[str, Any], facts: Facts) -> None:
    """Add facts: norms combine as those of parts of one vector, lists are joined, others replace."""
    for name, value in facts.items():
        if name == "norm" and name in gathered:
            gathered[name] = math.hypot(gathered[name], value)
        elif isinstance(value, tuple) and name in gathered:
            gathered[name] = (*gathered[name], *value)
        else:
            gathered[name] = value

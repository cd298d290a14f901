"""What can go wrong in a stack of strategies."""

from __future__ import annotations


class ChainError(ValueError):
    """A strategy asked for something that no layer below it can do."""


class Livelock(ChainError):
    """One event made the layers answer each other without end."""


class Refused(ValueError):
    """A combination of strategies, a description or an input that cannot work."""


class Lost(RuntimeError):
    """A worker, server or coordinator is gone and the run was not allowed to go on without it."""


class Overdue(TimeoutError):
    """Nothing happened before a deadline; the message names worker, task and round."""


class Diverged(ValueError):
    """An update was not finite; the message names worker, round and staleness."""

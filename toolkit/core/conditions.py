"""Conditions on what a run has achieved: when to stop, to switch, to evaluate."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.core.errors import Refused
from toolkit.core.strategy import named
from toolkit.core.tally import Tally


@dataclass(frozen=True)
class Condition:
    """Something that becomes true of a run; ``a | b`` is true when either is.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.seconds(60) | tk.reaches("loss", 0.3)
    seconds(60) | reaches('loss', 0.3)
    """

    def reached(self, tally: Tally) -> bool:
        """Whether it is true of `tally`."""
        raise NotImplementedError

    def amount(self, tally: Tally) -> float:
        """How far it has come, 1 when reached; for a progress bar and for repeated use as an interval."""
        return 0.0

    @property
    def budget(self) -> int | None:
        """The number of iterations it grants each worker, if it bounds them."""
        return None

    def __or__(self, other: Condition) -> Condition:
        return either(self, other)

    def __repr__(self) -> str:
        values = ", ".join(repr(getattr(self, name)) for name in self.__dataclass_fields__)
        return f"{type(self).__name__}({values})"


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise Refused(
            f"{name}({value!r}) is not a positive amount. A run, a phase or an interval must have an extent. "
            f"Give a number above zero."
        )


@named
@dataclass(frozen=True, repr=False)
class seconds(Condition):
    """True after `limit` seconds: real ones on a cluster, virtual ones in a simulator.

    Parameters
    ----------
    limit : float [s], > 0
        From the start of the run; compiling does not count. Infinity is never reached.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.seconds(60)
    seconds(60)
    """

    limit: float

    def __post_init__(self) -> None:
        _positive("seconds", self.limit)

    def reached(self, tally: Tally) -> bool:
        return tally.time >= self.limit

    def amount(self, tally: Tally) -> float:
        return tally.time / self.limit


@named
@dataclass(frozen=True, repr=False)
class updates(Condition):
    """True after `limit` merges into the model.

    The merge of a group is one, whatever its size; the updates of its single workers are their iterations.

    Parameters
    ----------
    limit : int [merges], > 0
        Infinity is never reached.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.updates(500)
    updates(500)
    """

    limit: int

    def __post_init__(self) -> None:
        _positive("updates", self.limit)

    def reached(self, tally: Tally) -> bool:
        return tally.updates >= self.limit

    def amount(self, tally: Tally) -> float:
        return tally.updates / self.limit


@named
@dataclass(frozen=True, repr=False)
class iterations(Condition):
    """Each worker runs exactly `limit` iterations; true when all have.

    Parameters
    ----------
    limit : int [iterations], > 0
        Of each worker, however fast it is. A number that is not whole is refused.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.iterations(8)
    iterations(8)
    """

    limit: int

    def __post_init__(self) -> None:
        _positive("iterations", self.limit)
        if int(self.limit) != self.limit:
            raise Refused(
                f"iterations({self.limit!r}) is not whole. A worker runs an iteration or does not. Give a whole number."
            )

    def reached(self, tally: Tally) -> bool:
        return tally.joined and tally.active == 0

    @property
    def budget(self) -> int | None:
        return int(self.limit)


@named
@dataclass(frozen=True, repr=False)
class epochs(Condition):
    """True once ``limit * rows`` rows have been used, by all workers together.

    Parameters
    ----------
    limit : float [epochs], > 0
        Passes over the training rows; a fraction is rounded to whole rows. Refused for a run without data.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.epochs(3)
    epochs(3)
    """

    limit: float

    def __post_init__(self) -> None:
        _positive("epochs", self.limit)

    def reached(self, tally: Tally) -> bool:
        return self.amount(tally) >= 1 or (tally.joined and tally.active == 0)

    def amount(self, tally: Tally) -> float:
        if not tally.rows:
            raise Refused(
                f"{self!r} was asked of a run without data. An epoch is a pass over the rows of a problem. "
                f"Use seconds, updates or iterations with simulate."
            )
        return tally.samples / round(self.limit * tally.rows)


@named
@dataclass(frozen=True, repr=False)
class reaches(Condition):
    r"""True once a measured metric is at least as good as a value.

    A metric m with "loss" or "error" in its name reaches the value v when :math:`m \le v`, any other when
    :math:`m \ge v`. It changes only when the model is evaluated.

    Parameters
    ----------
    metric : str
        ``"loss"``, or a metric of the problem.
    value : float

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.reaches("accuracy", 0.9)
    reaches('accuracy', 0.9)
    """

    metric: str
    value: float

    def reached(self, tally: Tally) -> bool:
        measured = tally.metrics.get(self.metric)
        if measured is None:
            return False
        return measured <= self.value if falls(self.metric) else measured >= self.value


@dataclass(frozen=True)
class Either(Condition):
    """True when one of two conditions is."""

    first: Condition
    second: Condition

    def reached(self, tally: Tally) -> bool:
        return self.first.reached(tally) or self.second.reached(tally)

    def amount(self, tally: Tally) -> float:
        return max(self.first.amount(tally), self.second.amount(tally))

    @property
    def budget(self) -> int | None:
        budgets = [b for b in (self.first.budget, self.second.budget) if b is not None]
        return min(budgets, default=None)

    def __repr__(self) -> str:
        return f"{self.first!r} | {self.second!r}"


def either(first: Condition, second: Condition) -> Condition:
    """True when one of two conditions is."""
    return Either(first, second)


def falls(metric: str) -> bool:
    """Whether smaller values of a metric are better."""
    return any(word in metric for word in ("loss", "error"))

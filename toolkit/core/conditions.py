"""Conditions on what a run has achieved: when to stop, to switch, to evaluate."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.core.checks import finite, positive, whole
from toolkit.core.errors import Refused
from toolkit.core.strategy import named, text
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
        return Either(self, other)

    def __ror__(self, other: Condition) -> Condition:
        return Either(other, self)

    def __repr__(self) -> str:
        values = ", ".join(text(getattr(self, name)) for name in self.__dataclass_fields__)
        return f"{type(self).__name__}({values})"


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
        object.__setattr__(self, "limit", positive("limit", self.limit, "seconds", infinite=True))

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
    limit : int [merges], >= 1
        Infinity is never reached.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.updates(500)
    updates(500)
    """

    limit: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", whole("limit", self.limit, 1, "updates", infinite=True))

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
    limit : int [iterations], >= 1
        Of each worker, however fast it is. As an interval: of the workers on average.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.iterations(8)
    iterations(8)
    """

    limit: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", whole("limit", self.limit, 1, "iterations"))

    def reached(self, tally: Tally) -> bool:
        return tally.over

    def amount(self, tally: Tally) -> float:
        return tally.iterations / (self.limit * max(1, tally.joined))

    @property
    def budget(self) -> int | None:
        return self.limit


@named
@dataclass(frozen=True, repr=False)
class epochs(Condition):
    """True once ``limit * rows`` rows have been used, by all workers together.

    Parameters
    ----------
    limit : float [epochs], > 0
        Passes over the training rows; a fraction is rounded to whole rows, at least one. Refused without data.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.epochs(3)
    epochs(3)
    """

    limit: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", positive("limit", self.limit, "epochs"))

    def samples(self, rows: int) -> int:
        """How many rows are to be used in all."""
        return max(1, round(self.limit * rows))

    def reached(self, tally: Tally) -> bool:
        return self.amount(tally) >= 1 or tally.over

    def amount(self, tally: Tally) -> float:
        if not tally.rows:
            raise Refused(
                f"{self!r} was asked of a run without data. An epoch is a pass over the rows of a problem. "
                f"Use seconds, updates or iterations with simulate."
            )
        return tally.samples / self.samples(tally.rows)


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

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise Refused(
                f"metric={self.metric!r} is not the name of a metric. What is measured goes by its name. "
                f"Give 'loss', or the name of a metric of the problem."
            )
        object.__setattr__(self, "metric", str(self.metric))
        object.__setattr__(self, "value", finite("value", self.value))

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

    def __post_init__(self) -> None:
        for side in (self.first, self.second):
            if not isinstance(side, Condition):
                raise Refused(
                    f"{side!r} stands beside a | and is a {type(side).__name__}. Only conditions can hold, one or the "
                    f"other. Write for example seconds(60) | updates(500)."
                )

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


def falls(metric: str) -> bool:
    """Whether smaller values of a metric are better."""
    return any(word in metric for word in ("loss", "error"))

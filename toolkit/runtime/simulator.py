"""A cluster in virtual time: described, not owned."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolkit.core.checks import amount, few, native, seeding, whole
from toolkit.core.cluster import Cluster, placement
from toolkit.core.errors import Overdue, Refused
from toolkit.core.layout import Layout, Piece
from toolkit.core.messages import PlaceName, Worker
from toolkit.runtime.costs import Costs
from toolkit.runtime.data import Data
from toolkit.runtime.drive import Drive
from toolkit.runtime.engine import Engine
from toolkit.runtime.links import Link, Links
from toolkit.runtime.timing import StepTime, constant, step_time


def changes(name: str, given: Any) -> tuple[tuple[float, Worker], ...]:
    """Changes of membership; refuse what is not a list of times and workers, each worker once."""
    pairs = native(given)
    try:
        plain = [(amount("time", time, "seconds"), whole("worker", worker, 0, "workers")) for time, worker in pairs]
        fits = len({worker for _, worker in plain}) == len(plain)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise Refused(
            f"{name}={given!r} are not times and workers. Membership changes at a time from 0 s on, and a worker comes "
            f"and goes once. Give pairs such as (6.0, 2)."
        )
    return tuple(plain)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No search for circles meanwhile: millions of records without any make it a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclass(frozen=True)
class Simulator:
    """A described cluster on which strategies run in deterministic virtual time.

    Events are ordered by (time, sequence); equal seeds give equal traces, byte for byte. A host has one CPU and a
    full-duplex link, shared first come first served by all places on it.

    Parameters
    ----------
    workers : int, in 1..100_000
    step : step time [s], or float [s]
        :func:`constant`, :func:`lognormal`, :func:`exponential`, :func:`recorded`, :func:`slowed`; or a function of
        your own, (worker, number of its step, time [s], seed) -> [s].
    link : Link or Links
        Between hosts; within a host messages take no time.
    apply : float [s], >= 0
        An optimizer step on the whole model.
    nbytes : float [byte], >= 0
        Size of the model when only time is simulated.
    hosts : {place: host}, optional
        Places that share a host, for example ``{"s0": 1}`` or ``{1: 0}``. One that a strategy does not have is refused.
    joins, leaves : list of (time [s], worker)
        A worker number from `workers` on joins; one that leaves stops computing, a shard beside it stays.
    seed : int, 0 to 2**64 - 1
    control : float [s], >= 0
        From the end of a task until the hosts take up what the coordinator answers to it.

    Examples
    --------
    >>> import toolkit as tk
    >>> cluster = tk.Simulator(4, step=tk.constant([1, 1, 1, 2]), link=tk.Link(1e-4, 1e9), nbytes=4e6)
    >>> run = tk.simulate(tk.chain(tk.ssp(3), tk.parameter_server()), cluster, until=tk.seconds(20))
    >>> run.measured
    False
    """

    workers: int
    step: StepTime | float = field(default_factory=lambda: constant(1.0))
    link: Link | Links = field(default_factory=Link)
    apply: float = 0.0
    nbytes: float = 0.0
    hosts: Mapping[PlaceName, PlaceName] | None = None
    joins: Sequence[tuple[float, Worker]] = ()
    leaves: Sequence[tuple[float, Worker]] = ()
    seed: int = 0
    control: float = 0.0

    def __post_init__(self) -> None:
        plain = {
            "workers": few("workers", self.workers, 1, "workers"),
            "step": step_time(self.step),
            "apply": amount("apply", self.apply, "seconds"),
            "nbytes": amount("nbytes", self.nbytes, "bytes"),
            "hosts": None if self.hosts is None else placement(self.hosts),
            "joins": changes("joins", self.joins),
            "leaves": changes("leaves", self.leaves),
            "seed": seeding(self.seed),
            "control": amount("control", self.control, "seconds"),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        if not isinstance(self.link, (Link, Links)):
            raise Refused(
                f"link={self.link!r} is no link. Messages need a latency and a bandwidth. "
                f"Give one such as Link(1e-4, 1e9), or Links."
            )
        if clash := {worker for _, worker in self.joins} & set(range(self.workers)):
            raise Refused(
                f"The workers {sorted(clash)} join a cluster in which they are from the start. "
                f"A number is used once. Number newcomers from {self.workers} on."
            )
        comes = dict.fromkeys(range(self.workers), 0.0) | {worker: time for time, worker in self.joins}
        if strange := [worker for time, worker in self.leaves if comes.get(worker, math.inf) > time]:
            raise Refused(
                f"The workers {strange} leave a cluster in which they are not by then. Who leaves was there from the "
                f"start or has joined. Let them join before, or number them from 0 to {self.workers - 1}."
            )

    def describe(
        self, layout: Layout | None = None, rows: int = 0, budget: int | None = None, seed: int | None = None
    ) -> Cluster:
        """What a strategy is told of this cluster."""
        everyone = (*range(self.workers), *(worker for _, worker in self.joins))
        sized = layout or Layout((Piece("model", round(self.nbytes / 4), ""),))
        granted = dict.fromkeys(everyone, budget) if budget is not None else {}
        return Cluster(tuple(range(self.workers)), sized, granted, self.seed if seed is None else seed, rows)

    def run(self, drive: Drive, data: Data | None = None) -> None:
        """Drive a strategy here; `data` are the arrays, if any."""
        cluster = replace(drive.cluster, homes=drive.strategy.places(drive.cluster, {}))
        assert not isinstance(self.step, (int, float))
        costs = Costs(cluster, self.step, self.link, self.apply, self.hosts, self.seed, self.control)
        starts = [(0.0, worker) for worker in range(self.workers)]
        engine = Engine(costs, drive.recorder, data, [*starts, *self.joins], self.leaves)
        with contextlib.nullcontext() if data else uncollected():
            drive.run(engine)
        if drive.status == "idle":
            raise Overdue(
                f"Nothing more happens at {engine.now:g} s although {drive.until!r} does not hold. "
                f"Every worker waits, has left or is finished: {drive.tally.updates} updates, {drive.tally.active} "
                f"workers active. Ask for less, or let a policy go on without those who left."
            )

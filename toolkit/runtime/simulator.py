"""A cluster in virtual time: described, not owned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from toolkit.core.checks import whole
from toolkit.core.cluster import Cluster
from toolkit.core.errors import Overdue, Refused
from toolkit.core.layout import Layout, Piece
from toolkit.core.messages import PlaceName, Worker
from toolkit.runtime.costs import Costs
from toolkit.runtime.drive import Drive
from toolkit.runtime.engine import Data, Engine
from toolkit.runtime.timing import Link, Links, StepTime, constant


@dataclass(frozen=True)
class Simulator:
    """A described cluster on which strategies run in deterministic virtual time.

    Events are ordered by (time, sequence); equal seeds give equal traces, byte for byte. A host has one CPU and a
    full-duplex link, shared first come first served by all places on it.

    Parameters
    ----------
    workers : int, >= 1
    step : step time [s], or float [s]
        :func:`constant`, :func:`lognormal`, :func:`exponential`, :func:`recorded`, :func:`slowed`.
    link : Link or Links
        Between hosts; within a host messages take no time.
    apply : float [s], >= 0
        An optimizer step on the whole model.
    nbytes : float [byte], >= 0
        Size of the model when only time is simulated.
    hosts : {place: host}, optional
        Places that share a host, for example ``{"s0": 1}`` or ``{1: 0}``.
    joins, leaves : list of (time [s], worker)
        A worker number from `workers` on joins; one that leaves stops computing, a shard beside it stays.
    seed : int

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

    def __post_init__(self) -> None:
        whole("workers", self.workers, 1, "workers")
        if isinstance(self.step, (int, float)):
            object.__setattr__(self, "step", constant(self.step))
        for name in ("apply", "nbytes"):
            if not getattr(self, name) >= 0:
                raise Refused(
                    f"{name}={getattr(self, name)!r} is below zero. Nothing takes or weighs less than nothing. "
                    f"Give 0 or more."
                )
        for time, worker in (*self.joins, *self.leaves):
            if not time >= 0 or worker < 0:
                raise Refused(
                    f"({time!r}, {worker!r}) is not a time and a worker. Membership changes at a time from 0 s on. "
                    f"Give pairs such as (6.0, 2)."
                )
        if clash := {worker for _, worker in self.joins} & set(range(self.workers)):
            raise Refused(
                f"The workers {sorted(clash)} join a cluster in which they are from the start. "
                f"A number is used once. Number newcomers from {self.workers} on."
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
        costs = Costs(cluster, self.step, self.link, self.apply, self.hosts, self.seed)
        starts = [(0.0, worker) for worker in range(self.workers)]
        engine = Engine(costs, drive.recorder, data, [*starts, *self.joins], self.leaves)
        drive.run(engine)
        if drive.status == "idle":
            raise Overdue(
                f"Nothing more happens at {engine.now:g} s although {drive.until!r} does not hold. "
                f"Every worker waits, has left or is finished: {drive.tally.updates} updates, {drive.tally.active} "
                f"workers active. Ask for less, or let a policy go on without those who left."
            )

"""A cluster of Dask workers on which strategies run for real."""

from __future__ import annotations

import contextlib
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import Any

from distributed import Client
from distributed.deploy.cluster import Cluster as DaskCluster

from toolkit.core.checks import positive, whole
from toolkit.core.cluster import Cluster, hosts, placement
from toolkit.core.errors import Lost, Refused
from toolkit.core.messages import COORDINATOR, PlaceName, Worker
from toolkit.core.strategy import NAMES
from toolkit.exchanges.schedules import SCHEDULES
from toolkit.runtime.cluster.job import Job, own, pack
from toolkit.runtime.cluster.lanes import allowed
from toolkit.runtime.cluster.line import Line
from toolkit.runtime.cluster.live import Live
from toolkit.runtime.cluster.local import Local
from toolkit.runtime.cluster.ping import ping
from toolkit.runtime.cluster.processes import address, cards, connected, warn_if_crowded
from toolkit.runtime.links import Link

#: How often a run is started anew when a process it was given has just died.
TRIES = 3


@dataclass
class Dask:
    """A real cluster: each worker, server and the coordinator lives in a process of Dask.

    Parameters
    ----------
    cluster : Client, Cluster or str, optional
        A connected client, a cluster object, or the address of a scheduler. Without one, processes are started on this
        machine and closed after the run; inside ``with tk.Dask(workers=4) as on:`` they are kept for several runs.
    workers : int, >= 1, optional
        By default one per core here, and on a given cluster one less than it has processes.
    slowdown : {worker: factor > 0}, optional
        The steps of a worker are padded by sleep to `factor` times its step as it was timed before the run.
    hosts : {place: host}, optional
        Places that share a process, for example ``{"s0": 1}``. The coordinator has one of its own.
    pace : float [s], > 0, optional
        The least time of a step with factor 1; steps are padded by sleep.
    deadline : float [s], > 0
        Without any report for so long, a run ends with an error that names what it waits for.

    Notes
    -----
    More workers than cores are allowed, with a warning, and flagged in the record of a run.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.Dask(workers=4, slowdown={2: 2.0})
    Dask(workers=4, slowdown={2: 2.0})
    """

    cluster: Any = None
    workers: int | None = None
    slowdown: Mapping[Worker, float] | None = None
    hosts: Mapping[PlaceName, PlaceName] | None = None
    pace: float | None = None
    deadline: float = 60.0
    _crowded: bool = field(default=False, repr=False, compare=False)  # more workers than cores, and said so
    _kept: int = field(default=0, repr=False, compare=False)
    _owned: Local | None = field(default=None, repr=False, compare=False)
    _client: Client | None = field(default=None, repr=False, compare=False)
    _guard: Any = field(default_factory=threading.RLock, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.workers is not None:
            self.workers = whole("workers", self.workers, 1, "workers")
        positive("deadline", self.deadline, "seconds")
        if self.pace is not None:
            positive("pace", self.pace, "seconds")
        if not isinstance(self.slowdown, Mapping | None):
            raise Refused(
                f"slowdown={self.slowdown!r} is no mapping. It says by how much some workers are slower. "
                f"Give one such as {{2: 2.0}}."
            )
        if self.hosts is not None:
            self.hosts = placement(self.hosts)
        for worker, factor in (self.slowdown or {}).items():
            positive(f"slowdown[{worker!r}]", factor, "times the step")
            number = isinstance(worker, Integral) and not isinstance(worker, bool)
            if not number or not 0 <= worker < (self.workers or sys.maxsize):
                raise Refused(
                    f"slowdown names the worker {worker!r} of {self.workers or 'an unknown number of'} workers. A slow "
                    f"worker must take part. Use numbers from 0 to one less than the workers."
                )
        if self.slowdown is not None:
            self.slowdown = {int(worker): float(factor) for worker, factor in self.slowdown.items()}
        if not (self.cluster is None or isinstance(self.cluster, (Client, DaskCluster, str))):
            raise Refused(
                f"Dask was given {self.cluster!r}, a {type(self.cluster).__name__}. Processes are reached through a "
                f"client, a cluster or the address of a scheduler. Give one of these, or nothing to start processes."
            )

    def __repr__(self) -> str:
        given = {"workers": None, "slowdown": None, "hosts": None, "pace": None, "deadline": 60.0}
        texts = [] if self.cluster is None else [repr(address(self.cluster))]
        texts += [f"{name}={value!r}" for name, default in given.items() if (value := getattr(self, name)) != default]
        return f"Dask({', '.join(texts)})"

    # -- what training asks -------------------------------------------------------------------------------------------

    def describe(self, seed: int = 0) -> Cluster:
        """What a strategy is told of this cluster, but for the model and the rows."""
        count = self.workers
        if count is None and self.cluster is None:
            count = len(allowed())
        elif count is None:
            with self.kept():
                count = max(1, len(self.client.scheduler_info(n_workers=-1)["workers"]) - 1)
        return Cluster(tuple(range(count)), seed=seed)

    def start(self, name: str, recipe: Any, finish: Callable[..., Any], progress: bool = False) -> Live:
        """Start a run and return a handle; `finish` makes of its outcome what waiting for it returns."""
        setup = recipe.setup
        if strange := sorted(set(self.slowdown or {}) - set(setup.cluster.workers)):
            raise Refused(
                f"slowdown names the workers {strange} of a cluster of {len(setup.cluster.workers)}. A slow worker "
                f"must take part. Use numbers from 0 to {len(setup.cluster.workers) - 1}."
            )
        where = hosts(setup.cluster, self.hosts)
        job = Job(
            name,
            recipe.strategy,
            setup,
            recipe.until,
            where,
            recipe.words["options"].get("on_loss", "stop"),
            dict(self.slowdown or {}),
            self.pace,
            self.deadline,
            own(NAMES),
            own(SCHEDULES),
            recipe,
        )
        names = [COORDINATOR, *(host for host in dict.fromkeys(where.values()) if host != COORDINATOR)]
        stack = contextlib.ExitStack()
        stack.enter_context(self.kept())
        return Live(self, job, finish, partial(self._launch, job, names, finish), stack, progress)

    def _launch(self, job: Job, names: list[PlaceName], finish: Callable[..., Any]) -> Line:
        """Find processes for a run and ask one to lead it; where one turns out to be gone, with another."""
        for left in reversed(range(TRIES)):
            found = cards(self.client, len(names), self._owned)
            chosen: dict[PlaceName, str] = dict(zip(names, (c["address"] for c in found), strict=True))
            try:
                line = Line(self.client, uuid.uuid4().hex, chosen).lead(job, pack(finish))
            except (Lost, ConnectionError):
                if not left:
                    raise
            else:
                if not self._crowded:
                    self._crowded = warn_if_crowded(len(names) - 1, found)
                return line
        raise AssertionError

    # -- processes ----------------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """The client of the cluster, within :meth:`kept`; connected when it is first asked for."""
        with self._guard:
            assert self._kept
            if self._client is None:
                if self.cluster is None:
                    self._owned = Local((self.workers or len(allowed())) + 1)
                self._client = connected(self._owned.address if self._owned else self.cluster)
            return self._client

    @contextlib.contextmanager
    def kept(self) -> Iterator[Dask]:
        """Stay connected, and keep processes that were started for a run, until the end of the block."""
        with self._guard:
            self._kept += 1
        try:
            yield self
        finally:
            with self._guard:
                self._kept -= 1
                if not self._kept:
                    self.close()

    @property
    def brief(self) -> bool:
        """Whether processes that were started here end with the run under way: no block keeps them."""
        return self.cluster is None and self._kept < 2

    def ping(self, nbytes: int = 4_000_000, repeats: int = 20) -> Link:
        """The link between two processes, measured: half a round trip, and the bytes per second beyond it.

        Parameters
        ----------
        nbytes : int [byte], >= 1
            Of the messages that measure the bandwidth.
        repeats : int, >= 1
            The median of so many is taken.
        """
        whole("nbytes", nbytes, 1, "bytes")
        whole("repeats", repeats, 1, "messages")
        with self.kept():
            return ping(self.client, nbytes, repeats)

    def __enter__(self) -> Dask:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.kept())
        try:
            _ = self.client  # connected from here on
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def close(self) -> None:
        """Disconnect, and end the processes that were started here."""
        with self._guard:
            client, owned, self._client, self._owned = self._client, self._owned, None, None
        if client is not None and client is not self.cluster:
            client.close()
        if owned is not None:
            owned.close()

"""A cluster of Dask workers on which strategies run for real."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.deploy.cluster import Cluster as DaskCluster

from toolkit.core.checks import positive, whole
from toolkit.core.cluster import Cluster, hosts
from toolkit.core.errors import Refused
from toolkit.core.messages import COORDINATOR, PlaceName, Worker
from toolkit.core.strategy import NAMES
from toolkit.exchanges.schedules import SCHEDULES
from toolkit.runtime.cluster.agent import Agent, card
from toolkit.runtime.cluster.job import Job, own
from toolkit.runtime.cluster.lanes import allowed
from toolkit.runtime.cluster.live import Live
from toolkit.runtime.settings import environment

#: Seconds in which a scheduler must answer, a missing worker may still come, and one of our own must have started.
CONNECT, COME, START = 10.0, 5.0, 60.0


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
    _kept: int = field(default=0, repr=False, compare=False)
    _owned: LocalCluster | None = field(default=None, repr=False, compare=False)
    _client: Client | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.workers is not None:
            whole("workers", self.workers, 1, "workers")
        for name in ("pace", "deadline"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name), "seconds")
        for worker, factor in (self.slowdown or {}).items():
            positive(f"slowdown[{worker!r}]", factor, "times the step")
            if isinstance(worker, bool) or not isinstance(worker, int) or worker < 0 or worker >= (self.workers or sys.maxsize):
                raise Refused(
                    f"slowdown names the worker {worker!r} of {self.workers or 'an unknown number of'} workers. A slow worker must "
                    f"take part. Use numbers from 0 to one less than the workers."
                )
        if not (self.cluster is None or isinstance(self.cluster, (Client, DaskCluster, str))):
            raise Refused(
                f"Dask was given {self.cluster!r}, a {type(self.cluster).__name__}. Processes are reached through a client, a cluster "
                f"or the address of a scheduler. Give one of these, or nothing to start processes here."
            )

    def __repr__(self) -> str:
        given = {"workers": None, "slowdown": None, "hosts": None, "pace": None, "deadline": 60.0}
        texts = [] if self.cluster is None else [repr(address(self.cluster))]
        texts += [f"{name}={value!r}" for name, default in given.items() if (value := getattr(self, name)) != default]
        return f"Dask({', '.join(texts)})"

    # -- what training asks ---------------------------------------------------------------------------------------------

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
                f"slowdown names the workers {strange} of a cluster of {len(setup.cluster.workers)}. A slow worker must take part. "
                f"Use numbers from 0 to {len(setup.cluster.workers) - 1}."
            )
        where = {place: host for place, host in hosts(setup.cluster, self.hosts).items()}
        names = list(dict.fromkeys(where.values()))
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
        stack = contextlib.ExitStack()
        try:
            stack.enter_context(self.kept())
            cards = self.processes(len(names) + (COORDINATOR not in names))
            chosen = {COORDINATOR: cards[0]["address"]}
            chosen |= dict(zip((n for n in names if n != COORDINATOR), (c["address"] for c in cards[1:]), strict=False))
            warn_if_crowded(len(names), cards)
            return Live(self, self.client, uuid.uuid4().hex, job, chosen, finish, progress, stack.pop_all())
        finally:
            stack.close()

    # -- processes --------------------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """The client of the cluster, while one is connected."""
        assert self._client is not None
        return self._client

    @contextlib.contextmanager
    def kept(self) -> Iterator[Dask]:
        """Stay connected, and keep processes that were started for a run, until the end of the block."""
        self._kept += 1
        try:
            if self._client is None:
                self._client = self._connect()
            yield self
        finally:
            self._kept -= 1
            if not self._kept:
                self.close()

    def __enter__(self) -> Dask:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.kept())
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def close(self) -> None:
        """Disconnect, and end the processes that were started here."""
        client, owned, self._client, self._owned = self._client, self._owned, None, None
        if client is not None and client is not self.cluster:
            client.close()
        if owned is not None:
            owned.close()

    def processes(self, needed: int) -> list[dict[str, Any]]:
        """The cards of `needed` processes, those that take part in no run first."""
        with contextlib.suppress(TimeoutError):
            if self._owned is not None:
                with spawning():
                    self._owned.scale(max(needed, len(self._owned.workers)))
                    self.client.wait_for_workers(needed, timeout=START)
            else:
                self.client.wait_for_workers(needed, timeout=COME)
        self.client.register_plugin(Agent())
        cards = self.client.run(card, on_error="ignore")
        found = sorted(cards.values(), key=lambda c: (c["member"] is not None, c["machine"], c["address"]))
        if len(found) < needed:
            raise Refused(
                f"The run needs {needed} processes and the cluster at {address(self.client)} has {len(found)}. Each host of places "
                f"and the coordinator have one of their own. Start {needed - len(found)} more Dask workers, or let places share a "
                f"host by hosts={{place: host}}."
            )
        return found[:needed]

    def _connect(self) -> Client:
        if isinstance(self.cluster, Client):
            if self.cluster.asynchronous:
                raise Refused(
                    "Dask was given an asynchronous client. A run is waited for, and would block the loop of that client. Give an "
                    "ordinary Client, or the address of the scheduler."
                )
            return self.cluster
        if self.cluster is None:
            count = (self.workers or len(allowed())) + 1
            with spawning():
                self._owned = LocalCluster(
                    n_workers=count, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0"
                )
        target = self._owned if self.cluster is None else self.cluster
        try:
            return Client(target, timeout=CONNECT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise Refused(
                f"No scheduler answered at {address(target)} within {CONNECT:g} s ({type(error).__name__}: {error}). A run needs one. "
                f"Check the address, start a scheduler there, or leave it out to start processes here."
            ) from None


def address(cluster: Any) -> str:
    """The address of the scheduler of a client or cluster, or the address itself."""
    if isinstance(cluster, Client):
        return str(cluster.scheduler.address if cluster.scheduler else "a closed client")
    return str(getattr(cluster, "scheduler_address", cluster))


def warn_if_crowded(count: int, cards: Sequence[Mapping[str, Any]]) -> None:
    """Say once that more processes compute than there are cores for them."""
    cores = sum(len(c["cores"]) for c in {c["machine"]: c for c in cards}.values())
    if count > cores:
        warnings.warn(
            f"{count} processes compute on {cores} cores: their steps take turns, and times say little about a real cluster. The "
            f"record of the run is flagged as oversubscribed.",
            stacklevel=4,
        )


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Start processes with the settings of a worker, and without running the user's script again in each of them."""
    main, before, settings = sys.modules["__main__"], dict(os.environ), environment()
    hidden = {name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__}
    main.__spec__ = None
    key = "distributed.nanny.pre-spawn-environ"
    os.environ.update(settings)
    try:
        with dask.config.set({key: {**dask.config.get(key), **settings}}):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        main.__dict__.update(hidden)

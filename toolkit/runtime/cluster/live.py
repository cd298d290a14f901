"""A run under way on a cluster: wait for it, watch it, stop it, leave it and find it again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any, TypeVar

import pandas as pd
from distributed import Client

from toolkit.core.errors import Lost, Refused
from toolkit.core.messages import COORDINATOR, PlaceName
from toolkit.core.tally import Tally
from toolkit.progress import Progress
from toolkit.runtime.cluster import job as jobs
from toolkit.runtime.cluster.channel import Channel, Message, blob
from toolkit.runtime.cluster.news import topic

T = TypeVar("T")

#: Seconds between two looks at the keyboard while waiting.
LOOK = 0.2


class Live:
    """A run under way on a cluster.

    Made by :func:`toolkit.start`; :func:`attach` finds one again.

    Attributes
    ----------
    name : str
    tally : Tally
        How far it has come, as last heard.
    hosts : {host: address}
        Where the agents of its processes listen.
    status : str
        ``"waiting for the run ..."``, ``"preparing"``, ``"running"`` or ``"ended"``.

    Examples
    --------
    >>> import toolkit as tk
    >>> sorted(name for name in dir(Live) if not name.startswith("_"))
    ['detach', 'metrics', 'progress', 'stop', 'wait']
    """

    def __init__(
        self,
        on: Any,
        client: Client,
        run: str,
        job: jobs.Job,
        addresses: Mapping[PlaceName, str],
        finish: Callable[..., Any],
        progress: bool,
        stack: contextlib.ExitStack,
        ask: bool = True,
    ) -> None:
        self.name, self.tally, self.status = job.title, Tally(), "waiting"
        self.hosts = dict(addresses)
        self._measured: list[tuple[float, int, int, str, float]] = []
        self._on, self._client, self._run, self._job, self._finish, self._stack = on, client, run, job, finish, stack
        self._result: Any = None
        message = {"title": job.title, "addresses": list(addresses.items()), "keep": jobs.pack(finish)}
        data = jobs.pack(job) if ask else b""
        self._channel = self._call(self._open(addresses[COORDINATOR], data if ask else None, message)).result()
        self._bar = Progress(job.title, total=100, unit="%") if progress else None
        client.subscribe_topic(topic(run), self._told)
        self._outcome: Future[Message] = self._call(self._channel.ask("wait", run=run))

    async def _open(self, address: str, data: bytes | None, message: Mapping[str, Any]) -> Channel:
        arguments = self._client.security.get_connection_args("client")
        channel = Channel(lambda channel, message: None).open(address, arguments)
        if data is not None:
            try:
                await channel.ask("lead", 30.0, run=self._run, arrays=[blob(data)], **message)
            except BaseException:
                channel.abort()
                raise
        return channel

    def _call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        loop: asyncio.AbstractEventLoop = self._client.loop.asyncio_loop  # type: ignore[union-attr]
        return asyncio.run_coroutine_threadsafe(work, loop)

    # -- what a user does ---------------------------------------------------------------------------------------------

    @property
    def progress(self) -> dict[str, Any]:
        """How far it has come: seconds, updates, samples and the latest metrics."""
        numbers = {"seconds": self.tally.time, "updates": self.tally.updates, "samples": self.tally.samples}
        return {"status": self.status, **numbers, **self.tally.metrics}

    @property
    def metrics(self) -> pd.DataFrame:
        """What was measured so far: `time` [s], `round`, `samples`, `name`, `value`."""
        return pd.DataFrame(list(self._measured), columns=["time", "round", "samples", "name", "value"])

    def wait(self, timeout: float | None = None) -> Any:
        """The run, once it has ended; its error is raised, with the run so far in the error's `run`."""
        left = timeout
        try:
            while self._result is None:
                try:
                    self._result = self._outcome.result(LOOK if left is None else min(left, LOOK))
                except NotYet:
                    if left is not None:
                        left -= LOOK
                        if left <= 0:
                            raise TimeoutError(
                                f"The run {self.name!r} goes on after {timeout} s. It was not waited for any longer. "
                                f"Wait again, or stop it."
                            ) from None
        except KeyboardInterrupt:
            self.stop()
            raise
        except ConnectionError:
            self._end()
            raise Lost(
                f"The process that leads the run {self.name!r} is gone. With it went what was not saved. Look at the "
                f"log of that worker, and start the run again."
            ) from None
        self._end()
        return self._finish(jobs.unpack(self._result["outcome"]), self._on, self._job.recipe)

    def stop(self) -> None:
        """End it now; what it has achieved is kept, and :meth:`wait` returns it."""
        with contextlib.suppress(ConnectionError):
            self._call(self._channel.ask("stop", run=self._run)).result(30.0)

    def detach(self) -> None:
        """Leave the run to itself, on a cluster that goes on without this process; :func:`attach` finds it again."""
        self._close(forget=False)

    # -- within -------------------------------------------------------------------------------------------------------

    def _told(self, event: tuple[float, Mapping[str, Any]]) -> None:
        news = event[1]
        self.status = news["status"]
        if "tally" in news:
            self._measured.extend(tuple(row) for row in news["metrics"])
            self.tally = Tally(**news["tally"], metrics=Tally().metrics.update(news["last"]))
            if self._bar is not None:
                done = min(1.0, self._job.until.amount(self.tally))
                self._bar.update(
                    self.tally.time, self.tally.updates, self.tally.samples, dict(self.tally.metrics), done
                )

    def _end(self) -> None:
        self.status = "ended"
        self._close(forget=True)

    def _close(self, forget: bool) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

        async def close() -> None:
            if forget and not self._channel.over:
                self._channel.send("forget", run=self._run)
            await self._channel.close()

        with contextlib.suppress(Exception):
            self._client.unsubscribe_topic(topic(self._run))
            self._call(close()).result(5.0)
        self._stack.close()


def attach(client: Any, name: str | None = None) -> Live:
    """Find a run that goes on, or ended unseen, on a cluster.

    Parameters
    ----------
    client : Client, Cluster, str or Dask
        Of the cluster.
    name : str, optional
        Of the run, when there are several.

    Raises
    ------
    Refused
        When there is no such run, or more than one.

    Examples
    --------
    >>> import toolkit as tk
    >>> run = tk.attach("tcp://scheduler:8786").wait()  # doctest: +SKIP
    """
    from toolkit.runtime.cluster.agent import card
    from toolkit.runtime.cluster.dask import Dask

    on = client if isinstance(client, Dask) else Dask(client)
    stack = contextlib.ExitStack()
    stack.enter_context(on.kept())
    cards = on.client.run(card, on_error="ignore").values()
    found = [
        (c["address"], run, lead) for c in cards for run, lead in c["leads"].items() if name in (None, lead["title"])
    ]
    if len(found) != 1:
        stack.close()
        titles = ", ".join(repr(lead["title"]) for _, _, lead in found) or "none"
        raise Refused(
            f"attach found {len(found)} runs ({titles}) on the cluster. It joins exactly one. Give the name of the run "
            f"that is meant."
        )
    address, run, _ = found[0]
    kept = on.client.sync(_kept, on.client, address, run)
    job, finish = jobs.unpack(kept["job"]), jobs.unpack(kept["keep"])
    return Live(on, on.client, run, job, {COORDINATOR: address}, finish, False, stack, ask=False)


async def _kept(client: Client, address: str, run: str) -> Message:
    """What the coordinator keeps for whoever attaches."""
    channel = Channel(lambda channel, message: None).open(address, client.security.get_connection_args("client"))
    answer = await channel.ask("keep", 30.0, run=run)
    await channel.close()
    return answer

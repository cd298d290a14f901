"""The line from a client to the process that leads a run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from distributed import Client

from toolkit.core.errors import Overdue
from toolkit.core.messages import COORDINATOR, PlaceName
from toolkit.runtime.cluster import job as jobs
from toolkit.runtime.cluster.channel import Channel, Message, blob
from toolkit.runtime.cluster.news import topic

T = TypeVar("T")

#: Seconds in which a leader must answer, and let go of the line.
ANSWER, CLOSE = 30.0, 5.0


class Line:
    """A connection to the leader of a run.

    Parameters
    ----------
    client : Client
    run : token
    hosts : {host: address}
        Where the agents of the run's processes listen, the coordinator's at least.

    Attributes
    ----------
    outcome : Future
        What the leader answers once the run has ended.
    """

    def __init__(self, client: Client, run: str, hosts: Mapping[PlaceName, str]) -> None:
        self._client, self._run, self.hosts = client, run, dict(hosts)
        self._channel = self._call(self._open()).result()
        self.outcome: Future[Message] = Future()

    async def _open(self) -> Channel:
        arguments = self._client.security.get_connection_args("client")
        return Channel(lambda channel, message: None).open(self.hosts[COORDINATOR], arguments)

    def _call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        loop: asyncio.AbstractEventLoop = self._client.loop.asyncio_loop  # type: ignore[union-attr]
        return asyncio.run_coroutine_threadsafe(work, loop)

    def _ask(self, op: str, **data: Any) -> Message:
        try:
            return self._call(self._channel.ask(op, ANSWER, run=self._run, **data)).result()
        except TimeoutError:
            self.close(forget=False)
            raise Overdue(
                f"The process at {self.hosts[COORDINATOR]} did not answer {op!r} within {ANSWER:g} s. It is to lead "
                f"the run. Look at the log of that worker, and start the run again."
            ) from None
        except BaseException:
            self.close(forget=False)
            raise

    def lead(self, job: jobs.Job, keep: bytes) -> Line:
        """Ask for the run; `keep` is for whoever attaches."""
        addresses = list(self.hosts.items())
        self._ask("lead", title=job.title, addresses=addresses, keep=keep, arrays=[blob(jobs.pack(job))])
        return self

    def kept(self) -> tuple[jobs.Job, Any]:
        """The job, and what was kept for whoever attaches."""
        answer = self._ask("keep")
        return jobs.unpack(answer["job"]), jobs.unpack(answer["keep"])

    def watch(self, told: Callable[[Message], None], deadline: float) -> None:
        """Let `told` hear how far the run has come, and wait for its outcome while the leader gives a sign in time."""
        self._client.subscribe_topic(topic(self._run), lambda event: told(event[1]))
        self.outcome = self._call(self._wait(deadline))

    async def _wait(self, deadline: float) -> Message:
        outcome = asyncio.ensure_future(self._channel.ask("wait", run=self._run))
        while not (await asyncio.wait([outcome], timeout=deadline / 2))[0]:
            try:
                await self._channel.ask("ping", deadline / 2)
            except TimeoutError:
                outcome.cancel()
                raise ConnectionError(f"it gave no sign within {deadline:g} s") from None
        return outcome.result()

    def stop(self) -> None:
        """End the run; returns when nothing of it is performed any more."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            self._call(self._channel.ask("stop", ANSWER, run=self._run)).result()

    def close(self, forget: bool) -> None:
        """Let go; a run that is forgotten cannot be found again."""

        async def close() -> None:
            if forget and not self._channel.over:
                self._channel.send("forget", run=self._run)
            await self._channel.close()

        with contextlib.suppress(Exception):
            self._client.unsubscribe_topic(topic(self._run))
        with contextlib.suppress(Exception):
            self._call(close()).result(CLOSE)

"""The processes of a run, as its coordinator reaches them: claimed all or none, asked, told, and let go."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from toolkit.core.errors import Lost, Overdue
from toolkit.core.messages import PlaceName
from toolkit.runtime.cluster.channel import Channel, Message

#: Round trips of which the shortest tells the difference of two clocks.
PINGS = 8
#: Seconds in which a process that is not busy must answer.
ANSWER = 30.0


class Crew:
    """Connections to the agents of a run.

    Parameters
    ----------
    run, title : token and name of the run
    addresses : {host: address}
    arguments : of connections
    heard : (host, message) -> None
    lost : (host, reason) -> None
    """

    def __init__(
        self,
        run: str,
        title: str,
        addresses: Mapping[PlaceName, str],
        arguments: Mapping[str, Any],
        heard: Callable[[PlaceName, Message], None],
        lost: Callable[[PlaceName, str], None],
    ) -> None:
        self.run, self.title, self.addresses = run, title, addresses
        self.busy: str | None = None  # the run that has a process which this one needs
        self._arguments, self._heard, self._lost = arguments, heard, lost
        self._channels: dict[PlaceName, Channel] = {}

    def alive(self, host: PlaceName) -> bool:
        """Whether a host is connected."""
        channel = self._channels.get(host)
        return channel is not None and not channel.over

    async def claim(self, deadline: float, stopped: Callable[[], bool], met: asyncio.Future[None]) -> None:
        """Take all processes, or none and wait for whoever has them; `met` is set once all that are free answered.

        All runs ask in one order, that of the addresses, so that no two wait for each other.
        """
        late = time.monotonic() + deadline
        while not stopped():
            self.busy = await self._try(deadline)
            if not met.done():
                met.set_result(None)
            if self.busy is None:
                return
            await self.release()
            if time.monotonic() > late:
                raise Overdue(
                    f"The run {self.title!r} waited {deadline:g} s for processes that take part in the run "
                    f"{self.busy!r}. A process takes part in one run at a time. Wait for that run, stop it, or add "
                    f"processes to the cluster."
                )
            await asyncio.sleep(random.uniform(0.1, 0.3))
        raise Lost(f"The run {self.title!r} was stopped before it began. Nothing was computed. Start it again.")

    async def _try(self, deadline: float) -> str | None:
        for host in sorted(self.addresses, key=lambda host: self.addresses[host]):
            channel = Channel(
                lambda channel, message, host=host: self._heard(host, message),  # type: ignore[misc]
                lambda channel, host=host: self._closed(host, channel),  # type: ignore[misc]
            )
            self._channels[host] = channel.open(self.addresses[host], self._arguments)
            busy: str | None = (await self.ask(host, "claim", deadline, title=self.title))["busy"]
            if busy is not None:
                return busy
        return None

    def _closed(self, host: PlaceName, channel: Channel) -> None:
        if self._channels.get(host) is channel:
            self._lost(host, f"the connection to {self.addresses[host]} broke")

    async def ask(self, host: PlaceName, op: str, timeout: float, /, **data: Any) -> Message:
        """Ask a host and wait for the answer."""
        try:
            return await self._channels[host].ask(op, timeout, run=self.run, **data)
        except (ConnectionError, TimeoutError) as error:
            raise Lost(
                f"The process of {host} at {self.addresses[host]} did not answer {op!r}: "
                f"{error or f'{timeout:g} s passed'}. A run needs all its processes. Look at the log of that worker, "
                f"and start the run again."
            ) from error

    def tell(self, hosts: Collection[PlaceName], op: str, **data: Any) -> None:
        """Send a message to those hosts that are still there."""
        for host in filter(self.alive, hosts):
            self._channels[host].send(op, run=self.run, **data)

    async def difference(self, host: PlaceName) -> float:
        """What to add to the clock of a host to get that of this process."""
        trips = []
        for _ in range(PINGS):
            began = time.monotonic()
            there = (await self.ask(host, "ping", ANSWER))["time"]
            ended = time.monotonic()
            trips.append((ended - began, (began + ended) / 2 - there))
        return min(trips)[1]

    async def release(self) -> None:
        """Let all processes go."""
        self.tell(self._channels, "release")
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for channel in channels.values()))

    def abort(self) -> None:
        """End all connections at once."""
        for channel in self._channels.values():
            channel.abort()

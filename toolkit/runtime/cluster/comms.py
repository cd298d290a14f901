"""Messages over the connections of Dask: TCP, TLS, UCX or in-process; arrays travel as frames that nobody copies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from distributed.comm.core import Comm, connect
from distributed.protocol.serialize import to_serialize

#: Seconds to find a peer, and to send what is queued before an end.
CONNECT, CLOSE = 10.0, 1.0


class Comms:
    """One such connection.

    Parameters
    ----------
    where : Comm or str
        A connection that was made, or an address, which is connected in the background.
    arguments : of connections
    """

    copies = False

    def __init__(self, where: Comm | str, arguments: Mapping[str, Any]) -> None:
        self._where, self._arguments = where, arguments
        self._outbox: asyncio.Queue[tuple[dict[str, Any], Callable[[], float] | None] | None] = asyncio.Queue()

    def start(self, heard: Callable[[Any], bool], gone: Callable[[], None]) -> None:
        """Begin: `heard` takes what comes and says whether it was a message, `gone` is called at the end."""
        self._task = asyncio.ensure_future(self._run(heard, gone))

    def put(self, message: dict[str, Any], arrays: Sequence[np.ndarray], stamp: Callable[[], float] | None) -> None:
        """Queue a message."""
        if arrays:
            message["arrays"] = [to_serialize(np.ascontiguousarray(array)) for array in arrays]
        self._outbox.put_nowait((message, stamp))

    async def close(self) -> None:
        """Send what is queued, then end."""
        self._outbox.put_nowait(None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(self._task, return_exceptions=True), CLOSE)

    def abort(self) -> None:
        """End at once."""
        self._task.cancel()

    async def _run(self, heard: Callable[[Any], bool], gone: Callable[[], None]) -> None:
        comm: Comm | None = None
        try:
            where = self._where
            comm = await connect(where, timeout=CONNECT, **self._arguments) if isinstance(where, str) else where
            comm.allow_offload = False  # arrays are not decoded, so there is nothing to hand to a thread
            reader, writer = asyncio.ensure_future(self._read(comm, heard)), asyncio.ensure_future(self._write(comm))
            try:
                await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (reader, writer):
                    task.cancel()
                await asyncio.gather(reader, writer, return_exceptions=True)
        except OSError:
            pass
        finally:
            if comm is not None:
                comm.abort()
            gone()

    async def _write(self, comm: Comm) -> None:
        while (item := await self._outbox.get()) is not None:
            message, stamp = item
            if stamp is not None:
                message["began"] = stamp()
            await comm.write(message)

    async def _read(self, comm: Comm, heard: Callable[[Any], bool]) -> None:
        while heard(await comm.read()):
            pass

"""Messages between two processes, over the connections that Dask itself uses: TCP, TLS, UCX or in-process.

A message is a mapping of plain data; arrays travel beside it as frames that nobody copies. Messages keep their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import pickle
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import cloudpickle
import numpy as np
from distributed.comm.core import Comm, connect, listen
from distributed.protocol.serialize import to_serialize

Message: TypeAlias = Mapping[str, Any]
Heard: TypeAlias = Callable[["Channel", Message], Any]

#: Seconds to find a peer.
CONNECT = 10.0


class Channel:
    """One connection: messages sent and heard, questions asked and answered.

    Parameters
    ----------
    heard : (channel, message) -> answer
        Called in the event loop for each message; what it returns, or awaits, answers a question.
    closed : channel -> None
        Called once the connection is gone, whoever ended it.
    """

    def __init__(self, heard: Heard, closed: Callable[[Channel], None] = lambda channel: None) -> None:
        self._heard, self._closed = heard, closed
        self._outbox: asyncio.Queue[tuple[dict[str, Any], Callable[[], float] | None] | None] = asyncio.Queue()
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.over = False
        self.sent = self.received = 0  # bytes of arrays

    def open(self, where: str | Comm, arguments: Mapping[str, Any] | None = None) -> Channel:
        """Begin: on a connection that was made, or to an address, which is connected in the background."""
        self._keep(self._run(where, arguments or {}))
        return self

    def send(
        self, op: str, arrays: Sequence[np.ndarray] = (), stamp: Callable[[], float] | None = None, **data: Any
    ) -> None:
        """Queue a message; `stamp` tells the time at which it is handed to the connection, as ``began``."""
        message = {"op": op, **data}
        if arrays:
            message["arrays"] = [to_serialize(np.ascontiguousarray(array)) for array in arrays]
            self.sent += nbytes(arrays)
        self._outbox.put_nowait((message, stamp))

    async def ask(self, op: str, timeout: float | None = None, /, **data: Any) -> Message:
        """Send a question and wait for its answer; an error there is raised here."""
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        if self.over:
            raise ConnectionError(f"The connection was closed before {op!r} could be asked.")
        self.send(op, ask=number, **data)
        try:
            return await asyncio.wait_for(future, timeout)
        finally:
            self._asked.pop(number, None)

    async def close(self) -> None:
        """Send what is queued, then end the connection."""
        if not self.over:
            self._outbox.put_nowait(None)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*self._tasks, return_exceptions=True), 1.0)
        self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        current = asyncio.current_task() if self._tasks else None
        for task in self._tasks - {current}:
            task.cancel()

    # -- within -------------------------------------------------------------------------------------------------------

    def _keep(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, where: str | Comm, arguments: Mapping[str, Any]) -> None:
        comm: Comm | None = None
        try:
            comm = await connect(where, timeout=CONNECT, **arguments) if isinstance(where, str) else where
            comm.allow_offload = False  # arrays are not decoded, so there is nothing to hand to a thread
            reader, writer = asyncio.ensure_future(self._read(comm)), asyncio.ensure_future(self._write(comm))
            try:
                await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (reader, writer):
                    task.cancel()
                await asyncio.gather(reader, writer, return_exceptions=True)
        except OSError:
            pass
        finally:
            self.over = True
            if comm is not None:
                comm.abort()
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(ConnectionError("The connection was closed before an answer came."))
            self._closed(self)

    async def _write(self, comm: Comm) -> None:
        while (item := await self._outbox.get()) is not None:
            message, stamp = item
            if stamp is not None:
                message["began"] = stamp()
            await comm.write(message)

    async def _read(self, comm: Comm) -> None:
        while True:
            message = await comm.read()
            if not isinstance(message, Mapping) or not isinstance(message.get("op"), str):
                return  # no message of ours: nobody to talk to
            self.received += nbytes(message.get("arrays", ()))
            if message["op"] == "answer":
                self._answered(message)
                continue
            try:
                answer = self._heard(self, message)
            except Exception as error:
                self._answer(message, error)
                continue
            if inspect.isawaitable(answer):
                self._keep(self._later(message, answer))
            elif "ask" in message:
                self._answer(message, answer)

    async def _later(self, message: Message, work: Awaitable[Any]) -> None:
        try:
            answer = await work
        except Exception as error:
            answer = error
        self._answer(message, answer)

    def _answer(self, message: Message, answer: Any) -> None:
        if "ask" not in message:
            if isinstance(answer, Exception):
                raise answer
        elif isinstance(answer, Exception):
            self.send("answer", to=message["ask"], error=packed(answer))
        else:
            self.send("answer", to=message["ask"], **(answer or {}))

    def _answered(self, message: Message) -> None:
        future = self._asked.get(message["to"])
        if future is not None and not future.done():
            if "error" in message:
                future.set_exception(pickle.loads(message["error"]))
            else:
                future.set_result(message)


def packed(error: BaseException) -> bytes:
    """An exception as bytes, with the trace of where it happened; one that cannot travel is told in words."""
    error.add_note("".join(traceback.format_exception(error)).rstrip())
    try:
        data: bytes = cloudpickle.dumps(error.with_traceback(None))
        pickle.loads(data)
    except Exception:
        data = cloudpickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data


def nbytes(arrays: Sequence[Any]) -> int:
    """The bytes of some arrays."""
    return sum(array.nbytes for array in arrays)


def blob(data: bytes) -> np.ndarray:
    """Bytes as an array, so that they travel as a frame."""
    return np.frombuffer(data, np.uint8)


async def listening(address: str, heard: Heard, closed: Callable[[Channel], None], arguments: Mapping[str, Any]) -> Any:
    """A listener near `address` (its protocol and host) that makes a channel of each connection."""
    scheme, _, place = address.partition("://")
    host = place.rpartition(":")[0] if scheme != "inproc" else ""

    async def accept(comm: Comm) -> None:
        Channel(heard, closed).open(comm)

    listener = listen(f"{scheme}://{host}:0" if host else f"{scheme}://", accept, **arguments)
    await listener.start()
    return listener

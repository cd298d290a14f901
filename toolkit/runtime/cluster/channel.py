"""Messages between two processes: told and heard, asked and answered.

A message is a mapping of plain data; arrays travel beside it. Messages keep their order. Processes of one machine share
memory (:mod:`toolkit.runtime.cluster.shared`), others use the connections of Dask
(:mod:`toolkit.runtime.cluster.comms`).
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import pickle
import socket
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import cloudpickle
import numpy as np
from distributed.comm.core import Comm, listen

from toolkit.runtime.cluster.comms import Comms
from toolkit.runtime.cluster.shared import Door, Shared, near

Message: TypeAlias = Mapping[str, Any]
Heard: TypeAlias = Callable[["Channel", Message], Any]


class Way(Protocol):
    """How the messages of a channel travel."""

    copies: bool

    def start(self, heard: Callable[[Any], bool], gone: Callable[[], None]) -> None: ...
    def put(self, message: dict[str, Any], arrays: Sequence[np.ndarray], stamp: Callable[[], float] | None) -> None: ...
    async def close(self) -> None: ...
    def abort(self) -> None: ...


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
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.over = False
        self.sent = self.received = 0  # bytes of arrays

    def open(self, where: str | Comm | socket.socket, arguments: Mapping[str, Any] | None = None) -> Channel:
        """Begin: on a connection that was made, or to an address, which is connected in the background."""
        made = (near(where) or where) if isinstance(where, str) else where
        self._way: Way = Shared(made) if isinstance(made, socket.socket) else Comms(made, arguments or {})
        self._way.start(self._taken, self._gone)
        return self

    @property
    def copies(self) -> bool:
        """Whether arrays may be written into again as soon as they were sent."""
        return self._way.copies

    def send(
        self, op: str, arrays: Sequence[np.ndarray] = (), stamp: Callable[[], float] | None = None, **data: Any
    ) -> None:
        """Queue a message; `stamp` tells the time at which it is handed to the connection, as ``began``."""
        if not self.over:
            self.sent += nbytes(arrays)
            self._way.put({"op": op, **data}, arrays, stamp)

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
            await self._way.close()
        self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        if not self.over:
            self._way.abort()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    # -- within -------------------------------------------------------------------------------------------------------

    def _gone(self) -> None:
        self.over = True
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ConnectionError("The connection was closed before an answer came."))
        self._closed(self)

    def _taken(self, message: Any) -> bool:
        """Take what came; whether it was a message of ours, for else there is nobody to talk to."""
        if not isinstance(message, Mapping) or not isinstance(message.get("op"), str):
            return False
        self.received += nbytes(message.get("arrays", ()))
        if message["op"] == "answer":
            self._answered(message)
            return True
        try:
            answer = self._heard(self, message)
        except Exception as error:
            self._answer(message, error)
            return True
        if inspect.isawaitable(answer):
            task = asyncio.ensure_future(self._later(message, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif "ask" in message:
            self._answer(message, answer)
        return True

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


class Listening:
    """Listens near an address (its protocol and host) and makes a channel of each connection.

    Attributes
    ----------
    address : str
        Where it is reached.
    """

    def __init__(self, heard: Heard, closed: Callable[[Channel], None]) -> None:
        self._accept: Callable[[Any], Channel] = lambda made: Channel(heard, closed).open(made)
        self._door: Door | None = None

    async def start(self, address: str, arguments: Mapping[str, Any]) -> Listening:
        """Begin."""
        scheme, _, place = address.partition("://")
        host = place.rpartition(":")[0] if scheme != "inproc" else ""

        async def accept(comm: Comm) -> None:
            self._accept(comm)

        self._listener = listen(f"{scheme}://{host}:0" if host else f"{scheme}://", accept, **arguments)
        await self._listener.start()
        self.address: str = self._listener.contact_address
        self._door = Door(self.address, self._accept)
        return self

    def stop(self) -> None:
        """Let nobody in any more."""
        self._listener.stop()
        if self._door is not None:
            self._door.close()

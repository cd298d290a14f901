"""Messages between processes of one machine: by a Unix socket, and arrays by memory that both of them map.

The socket bears the address of the agent in the kernel's abstract namespace. So only processes of the same machine and
network namespace find it, only those of the same user are heard, and nothing is left on a disk. Where certificates are
asked for, there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import pickle
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

#: Type, shape and first byte of an array in a segment.
Where: TypeAlias = tuple[str, tuple[int, ...], int]

#: Bytes before the arrays of a segment, of which the first says whether it is in use.
HEAD = 64
#: Arrays begin at multiples of so many bytes, as XLA wants them, and segments have at least so many.
ALIGNED, LEAST = 64, 1 << 12
#: A message with more bytes than `LONG` travels in a segment; none on the socket has more than `MOST`.
LONG, MOST = 1 << 14, 1 << 17
#: Messages taken in one turn of the event loop.
TURN = 16
#: Seconds to send what is queued before an end.
CLOSE = 1.0

KIND = socket.SOCK_SEQPACKET | getattr(socket, "SOCK_NONBLOCK", 0)


class Segment:
    """Memory that two processes map: the sender marks it as in use, whoever reads it sets it free."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.file, self.known = number, os.memfd_create("toolkit"), False
        os.ftruncate(self.file, HEAD + size)
        self.memory = mmap.mmap(self.file, HEAD + size)

    @property
    def free(self) -> bool:
        """Whether nobody reads it any more."""
        return not self.memory[0]

    def fill(self, arrays: Iterable[np.ndarray]) -> list[Where]:
        """Copy arrays into it, and tell where each is."""
        start, found = HEAD, list[Where]()
        self.memory[0] = 1
        for array in arrays:
            np.copyto(np.ndarray(array.shape, array.dtype, self.memory, start), array)
            found.append((array.dtype.str, array.shape, start))
            start += room(array)
        return found


class Lease(np.ndarray):
    """The bytes of a segment while somebody reads them; arrays made of it refer to it."""


def leased(memory: mmap.mmap, where: Iterable[Where]) -> tuple[np.ndarray, ...]:
    """The arrays in a segment; it is set free when the last of them is gone."""
    lease = Lease((len(memory),), np.uint8, memory)
    lease.flags.writeable = False
    weakref.finalize(lease, memory.__setitem__, 0, 0).atexit = False
    return tuple(np.ndarray(shape, np.dtype(kind), lease, start) for kind, shape, start in where)


def room(array: np.ndarray) -> int:
    """The bytes that an array takes, up to where the next may begin."""
    return -(-array.nbytes // ALIGNED) * ALIGNED


class Shared:
    """One such connection.

    Parameters
    ----------
    connected : socket
    """

    copies = True

    def __init__(self, connected: socket.socket) -> None:
        self._socket, self._loop = connected, asyncio.get_running_loop()
        self._segments: dict[int, list[Segment]] = {}  # size -> segments to write into
        self._read: dict[int, mmap.mmap] = {}  # number -> the memory of the other end
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._count = 0

    def start(self, heard: Callable[[Any], bool], gone: Callable[[], None]) -> None:
        """Begin: `heard` takes what comes and says whether it was a message, `gone` is called at the end."""
        self._heard, self._gone = heard, gone
        self._loop.add_reader(self._socket, self._ready)

    def put(self, message: dict[str, Any], arrays: Sequence[np.ndarray], stamp: Callable[[], float] | None) -> None:
        """Send a message, or queue it while the other end is slow; its arrays are copied now."""
        if stamp is not None:
            message["began"] = stamp()
        words = pickle.dumps(message)
        if len(words) > LONG:
            words, arrays = b"", (*arrays, np.frombuffer(words, np.uint8))
        number, where, files = 0, list[Where](), list[int]()
        if arrays:
            segment = self._segment(sum(map(room, arrays)))
            number, where = segment.number, segment.fill(arrays)
            files, segment.known = [] if segment.known else [segment.file], True
        self._waiting.append((pickle.dumps((words, number, where)), files))
        if len(self._waiting) == 1:
            self._flush()

    async def close(self) -> None:
        """Send what is queued."""
        late = self._loop.time() + CLOSE
        while self._waiting and self._loop.time() < late:
            await asyncio.sleep(0.01)

    def abort(self) -> None:
        """End at once."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._waiting.clear()
            for segment in (s for same in self._segments.values() for s in same):
                os.close(segment.file)
            self._segments.clear()
            self._loop.call_soon(self._gone)

    def _segment(self, size: int) -> Segment:
        size = 1 << (max(LEAST, size) - 1).bit_length()
        known = self._segments.setdefault(size, [])
        found = next((segment for segment in known if segment.free), None)
        if found is None:
            self._count += 1
            known.append(found := Segment(self._count, size))
        return found

    def _flush(self) -> None:
        try:
            while self._waiting:
                data, files = self._waiting[0]
                if files:
                    socket.send_fds(self._socket, [data], files)
                else:  # in less time
                    self._socket.send(data)
                self._waiting.popleft()
            self._loop.remove_writer(self._socket)
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._flush)
        except OSError:
            self.abort()

    def _ready(self) -> None:
        for _ in range(TURN):
            try:
                data, files, _, _ = socket.recv_fds(self._socket, MOST, 1)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data or not self._took(data, files):
                self.abort()
            if self._socket.fileno() < 0:
                return

    def _took(self, data: bytes, files: Sequence[int]) -> bool:
        """One message."""
        words, number, where = pickle.loads(data)
        for file in files:
            self._read[number] = mmap.mmap(file, os.fstat(file).st_size)
            os.close(file)
        arrays = leased(self._read[number], where) if number else ()
        if not words:
            words, arrays = arrays[-1].tobytes(), arrays[:-1]
        message = pickle.loads(words)
        return self._heard({**message, "arrays": arrays} if arrays else message)


class Door:
    """Where processes of this machine find another.

    Parameters
    ----------
    address : str
        By which they know it.
    accept : socket -> anything
        Takes each connection.
    """

    def __init__(self, address: str, accept: Callable[[socket.socket], Any]) -> None:
        self._accept, self._loop = accept, asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        if (name := shareable(address)) is not None:
            self._socket = socket.socket(socket.AF_UNIX, KIND)
            self._socket.bind(name)
            self._socket.listen()
            self._loop.add_reader(self._socket, self._knocked)

    def close(self) -> None:
        """Let nobody in any more."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _knocked(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):
            connected, _ = self._socket.accept()
            connected.setblocking(False)
            if user(connected) == os.getuid():
                self._accept(connected)
            else:
                connected.close()


def near(address: str) -> socket.socket | None:
    """A connection to the process at an address, if that is on this machine and of this user."""
    if (name := shareable(address)) is None:
        return None
    connecting = socket.socket(socket.AF_UNIX, KIND)
    try:
        connecting.connect(name)
        if user(connecting) == os.getuid():
            return connecting
    except OSError:
        pass  # it is on another machine
    connecting.close()
    return None


def shareable(address: str) -> str | None:
    """The name of the socket of an address; None where there can be none."""
    can = hasattr(os, "memfd_create") and hasattr(socket, "SO_PEERCRED")
    return f"\0toolkit {address}" if can and address.startswith("tcp://") else None


def user(connected: socket.socket) -> int:
    """The user at the other end of a Unix socket."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])

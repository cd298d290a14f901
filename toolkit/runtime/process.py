"""A process of its own for arithmetic, with the settings of a worker.

The numerics of virtual time and of replay run here, so that their bits do not depend on what the notebook's process has
done with JAX before. The process is started on first use, kept for the next job, and ends with its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

import cloudpickle

from toolkit.core.errors import Lost
from toolkit.runtime.settings import environment

T = TypeVar("T")

_HEADER = struct.Struct("<Q")
_children: dict[tuple[tuple[str, str], ...], Child] = {}
_guard = threading.Lock()


def _put(stream: BinaryIO, message: Any) -> None:
    data = cloudpickle.dumps(message)
    stream.write(_HEADER.pack(len(data)) + data)
    stream.flush()


def _get(stream: BinaryIO) -> Any:
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise EOFError
    return pickle.loads(stream.read(_HEADER.unpack(header)[0]))


class Child:
    """One such process; jobs run one after the other."""

    def __init__(self, variables: dict[str, str]) -> None:
        command = [sys.executable, "-m", "toolkit.runtime.process"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **variables}
        )
        self.busy = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def call(self, function: Callable[..., T], arguments: tuple[Any, ...], heard: Callable[[Any], bool]) -> T:
        """Run ``function(*arguments, say)`` there; `heard` takes what it says and answers False to stop it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with self.busy, self._killed_on_interrupt():
            _put(self.process.stdin, (function, arguments))
            while True:
                try:
                    kind, value = _get(self.process.stdout)
                except EOFError:
                    raise Lost(
                        f"The process that computes ended with code {self.process.wait()} in the middle of a run. It "
                        f"was killed or "
                        f"ran out of memory. Look at its last words above, or give it less to hold."
                    ) from None
                if kind == "said":
                    if not heard(value):
                        _put(self.process.stdin, "stop")
                elif kind == "failed":
                    error, trace = value
                    error.add_note(trace)
                    raise error
                else:
                    result: T = value
                    return result

    @contextlib.contextmanager
    def _killed_on_interrupt(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self.close()
            raise

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def call(function: Callable[..., T], *arguments: Any, heard: Callable[[Any], bool] = lambda said: True) -> T:
    """Run ``function(*arguments, say)`` in a process with the settings of a worker and return what it returns.

    ``say(value)`` there calls ``heard(value)`` here and returns whether to go on.
    """
    variables = environment()
    key = tuple(sorted(variables.items()))
    with _guard:
        child = _children.get(key)
        if child is None or not child.alive:
            child = _children[key] = Child(variables)
    return child.call(function, arguments, heard)


@atexit.register
def close() -> None:
    """End all such processes."""
    for child in _children.values():
        child.close()
    _children.clear()


def main() -> None:
    """Take jobs from standard input until it ends; what jobs print goes to standard error."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    jobs: queue.Queue[Any] = queue.Queue()
    stop = threading.Event()

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = _get(source)
                if message == "stop":
                    stop.set()
                else:
                    jobs.put(message)
        os._exit(0)  # the parent is gone

    def say(value: Any) -> bool:
        _put(sink, ("said", value))
        return not stop.is_set()

    threading.Thread(target=listen, daemon=True).start()
    while True:
        function, arguments = jobs.get()
        stop.clear()
        try:
            answer = ("done", function(*arguments, say))
        except BaseException as error:
            answer = ("failed", (error, "".join(traceback.format_exception(error))))
        try:
            _put(sink, answer)
        except Exception as error:  # what it made cannot be sent
            _put(sink, ("failed", (TypeError(str(error)), "")))


if __name__ == "__main__":
    main()

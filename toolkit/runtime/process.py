"""A process of its own for arithmetic, with the settings of a worker.

The numerics of virtual time and of replay run here, so that their bits do not depend on what the notebook's process has
done with JAX before. Such a process is started on first use, kept for the next job, and ends with its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import IO, Any, TypeVar

import cloudpickle

from toolkit.core.errors import Lost, Refused
from toolkit.runtime.settings import environment

T = TypeVar("T")

#: Seconds between two signs of life, and without any after which a process counts as lost.
SIGN, SILENCE = 2.0, 60.0

_HEADER = struct.Struct("<Q")
_children: list[Child] = []
_guard = threading.Lock()


def dumped(value: Any) -> bytes:
    """A value as bytes, for another process."""
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:  # pickling calls code of all kinds
        raise Refused(
            f"Something in the problem, the optimizer or the strategy cannot be sent: {type(error).__name__}: {error}. "
            f"Another process computes, and locks, open files and generators stay where they are. Make such a thing "
            f"inside the function that needs it."
        ) from error
    return data


def _put(stream: IO[bytes], data: bytes) -> None:
    stream.write(_HEADER.pack(len(data)) + data)
    stream.flush()


def _get(stream: IO[bytes]) -> bytes:
    header = stream.read(_HEADER.size)
    size = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else 0
    data = stream.read(size)
    if not size or len(data) < size:
        raise EOFError
    return data


class Child:
    """One such process; jobs run one after the other."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables, self.busy = variables, False
        command = [sys.executable, "-m", "toolkit.runtime.process"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **variables}
        )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def call(self, function: Callable[..., T], arguments: tuple[Any, ...], heard: Callable[[Any], bool]) -> T:
        """Run ``function(*arguments, say)`` there; `heard` takes what it says and answers False to stop it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        job = cloudpickle.dumps((sys.path, dumped((function, arguments))))
        over, self._silent = threading.Event(), 0
        threading.Thread(target=self._watch, args=(over,), name="toolkit-watch", daemon=True).start()
        try:
            _put(self.process.stdin, job)
            while True:
                kind, value = pickle.loads(_get(self.process.stdout))
                self._silent = 0
                if kind in ("done", "failed"):
                    break
                if kind == "said" and not heard(value):
                    _put(self.process.stdin, b"stop")
        except (EOFError, BrokenPipeError):
            raise Lost(
                f"The process that computes ended with code {self.process.wait()} in the middle of a run. It was "
                f"killed, ran out of memory, or gave no sign for {SILENCE:g} s. Look at its last words above, or give "
                f"it less to hold."
            ) from None
        except BaseException:  # it is still at work, and nobody listens any more
            self.close()
            raise
        finally:
            over.set()
        if kind == "failed":
            error, trace = value
            error.add_note(trace)
            raise error
        result: T = value
        return result

    def _watch(self, over: threading.Event) -> None:
        """End it if it gives no sign for long; time in which this process stood still itself does not count."""
        while not over.wait(1.0):
            self._silent += 1
            if self._silent > SILENCE:
                self.process.kill()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def call(function: Callable[..., T], *arguments: Any, heard: Callable[[Any], bool] = lambda said: True) -> T:
    """Run ``function(*arguments, say)`` in a process with the settings of a worker and return what it returns.

    ``say(value)`` there calls ``heard(value)`` here and returns whether to go on. Jobs that are asked for at the same
    time run side by side, each in a process of its own.
    """
    child = _idle(environment())
    try:
        return child.call(function, arguments, heard)
    finally:
        child.busy = False


def _idle(variables: dict[str, str]) -> Child:
    """A process with nothing to do, from now on busy."""
    with _guard:
        _children[:] = [child for child in _children if child.alive]
        child = next((c for c in _children if not c.busy and c.variables == variables), None)
        if child is None:
            _children.append(child := Child(variables))
        child.busy = True
        return child


@atexit.register
def close() -> None:
    """End all such processes."""
    for child in _children:
        child.close()
    _children.clear()


def main() -> None:
    """Take jobs from standard input until it ends; what jobs print goes to standard error."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, which ends this if need be
    jobs: queue.Queue[bytes] = queue.Queue()
    stop, busy, turn = threading.Event(), threading.Event(), threading.Lock()

    def put(data: bytes) -> None:
        with turn:
            _put(sink, data)

    def live() -> None:
        while busy.wait():
            put(pickle.dumps(("alive", None)))
            time.sleep(SIGN)

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                data = _get(source)
                if data == b"stop":
                    stop.set()
                else:
                    jobs.put(data)
        os._exit(0)  # the parent is gone

    def say(value: Any) -> bool:
        put(cloudpickle.dumps(("said", value)))
        return not stop.is_set()

    threading.Thread(target=listen, daemon=True).start()
    threading.Thread(target=live, daemon=True).start()
    while True:
        data = jobs.get()
        stop.clear()
        busy.set()
        said = answer(data, say)
        busy.clear()
        put(said)


def answer(data: bytes, say: Callable[[Any], bool]) -> bytes:
    """Do a job; what comes of it, ready to be sent."""
    said: bytes
    try:
        path, job = pickle.loads(data)
        sys.path[:] = dict.fromkeys([*path, *sys.path])  # modules beside the notebook are found here too
        function, arguments = pickle.loads(job)
        said = cloudpickle.dumps(("done", function(*arguments, say)))
    except BaseException as error:
        trace, plain = "".join(traceback.format_exception(error)), RuntimeError(f"{type(error).__name__}: {error}")
        try:
            said = cloudpickle.dumps(("failed", (error if isinstance(error, Exception) else plain, trace)))
            pickle.loads(said)
        except Exception:  # an error that does not travel
            said = cloudpickle.dumps(("failed", (plain, trace)))
    return said


if __name__ == "__main__":
    main()

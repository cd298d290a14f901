"""A cluster of Dask on this machine, in a process of its own.

Its processes inherit the settings of a worker and nothing of the user's script, whose own environment and ``__main__``
stay as they are. It ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import dask

from toolkit.core.errors import Lost
from toolkit.runtime.settings import environment

#: Seconds in which it must have ended before it is killed.
END = 10.0


class Local:
    """A LocalCluster of `count` processes, each with one thread.

    Attributes
    ----------
    address : str
        Of its scheduler.
    """

    def __init__(self, count: int) -> None:
        # What the user has set in dask.config travels as Dask itself hands it on.
        config = {"DASK_INTERNAL_INHERIT_CONFIG": dask.config.serialize(dask.config.global_config)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "toolkit.runtime.cluster.local", json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment(), **config},
            start_new_session=True,  # an interrupt from the keyboard is for the user's process
        )
        self._count = 0
        self.scale(count)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            raise Lost(
                f"The process of the cluster on this machine ended with code {self._process.wait()}. Without it there "
                f"is nothing to run on. Look at its last words above."
            )

    def scale(self, count: int) -> None:
        """Let it have at least so many processes; none is taken away."""
        self._count = max(count, self._count)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone, which whoever asks it next is told
            print(self._count, file=self._process.stdin, flush=True)

    def close(self) -> None:
        """End it and its processes."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=END)
        if self._process.poll() is None:
            self._process.kill()


def main() -> None:
    """Keep a cluster of as many processes as the last line says; it ends with the lines."""
    from distributed import LocalCluster

    sys.path[:] = dict.fromkeys([*json.loads(sys.argv[1]), *sys.path])
    count = int(sys.stdin.readline())
    with LocalCluster(
        n_workers=count, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0"
    ) as cluster:
        print(cluster.scheduler_address, flush=True)
        for line in sys.stdin:
            cluster.scale(int(line))


if __name__ == "__main__":
    main()

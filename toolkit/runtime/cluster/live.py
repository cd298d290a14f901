"""A run under way on a cluster: wait for it, watch it, stop it, leave it and find it again."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

import pandas as pd

from toolkit.core.errors import Lost, Refused
from toolkit.core.messages import COORDINATOR, PlaceName
from toolkit.core.tally import Tally
from toolkit.progress import Progress
from toolkit.runtime.cluster import job as jobs
from toolkit.runtime.cluster.channel import Message
from toolkit.runtime.cluster.line import Line

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
    status : str
        ``"starting"``, ``"waiting for the run ..."``, ``"preparing"``, ``"running"`` or ``"ended"``.

    Examples
    --------
    >>> import toolkit as tk
    >>> sorted(name for name in dir(Live) if not name.startswith("_"))
    ['detach', 'hosts', 'metrics', 'progress', 'stop', 'wait']
    """

    def __init__(
        self,
        on: Any,
        job: jobs.Job,
        finish: Callable[..., Any],
        reach: Callable[[], Line],
        stack: contextlib.ExitStack,
        progress: bool = False,
    ) -> None:
        self.name, self.tally, self.status = job.title, Tally(), "starting"
        self._measured: list[tuple[float, int, int, str, float]] = []
        self._on, self._job, self._finish, self._stack = on, job, finish, stack
        self._bar = Progress(job.title, total=100, unit="%") if progress else None
        self._line: futures.Future[Line] = futures.Future()
        threading.Thread(target=self._begin, args=(reach,), name="toolkit-start", daemon=True).start()

    def _begin(self, reach: Callable[[], Line]) -> None:
        """Reach the leader, which may take seconds: processes are started for it."""
        try:
            line = reach()
            line.watch(self._told)
        except BaseException as error:
            self._end()
            self._line.set_exception(error)
        else:
            self._line.set_result(line)

    def __repr__(self) -> str:
        return f"Live({self.name!r}, {self.status}, {self.tally.time:.4g} s, {self.tally.updates} updates)"

    # -- what a user does ---------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> dict[PlaceName, str]:
        """Where the agents of its processes listen: {host: address}; waits until these are known."""
        return self._line.result().hosts

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
        """The run, once it has ended; its error is raised, with the run so far in the error's `run`.

        After `timeout` seconds a TimeoutError says that it goes on.
        """
        late = time.monotonic() + (math.inf if timeout is None else timeout)
        try:
            answer = self._within(late, self._within(late, self._line).outcome)
        except KeyboardInterrupt:
            self.stop()
            raise
        except (ConnectionError, futures.CancelledError):
            self._end()
            raise Lost(
                f"The process that leads the run {self.name!r} is gone. With it went what was not saved. Look at the "
                f"log of that worker, and start the run again."
            ) from None
        self._end()
        return self._finish(jobs.unpack(answer["outcome"]), self._on, self._job.recipe)

    def stop(self) -> None:
        """End it now, or as soon as it begins; what it has achieved is kept, and :meth:`wait` returns it."""
        self._line.add_done_callback(lambda line: None if line.exception() else line.result().stop())

    def detach(self) -> None:
        """Leave the run to itself, on a cluster that goes on without this process; :func:`attach` finds it again."""
        self._line.result()
        self._close(forget=False)

    # -- within -------------------------------------------------------------------------------------------------------

    def _within(self, late: float, future: futures.Future[T]) -> T:
        """The result of a future, while interrupts from the keyboard are heard."""
        while not future.done():
            if (left := late - time.monotonic()) <= 0:
                raise TimeoutError(
                    f"The run {self.name!r} goes on. It was not waited for any longer. Wait again, or stop it."
                )
            futures.wait([future], min(LOOK, left))
        return future.result()

    def _told(self, news: Message) -> None:
        self.status = news["status"]
        if "tally" not in news:
            return
        self._measured.extend(tuple(row) for row in news["metrics"])
        self.tally = tally = Tally(**news["tally"], metrics=Tally().metrics.update(news["last"]))
        if self._bar is not None:
            done = min(1.0, self._job.until.amount(tally))
            self._bar.update(tally.time, tally.updates, tally.samples, dict(tally.metrics), done)

    def _end(self) -> None:
        self.status = "ended"
        self._close(forget=True)

    def _close(self, forget: bool) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._line.done() and not self._line.exception():
            self._line.result().close(forget)
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
    with contextlib.ExitStack() as stack:
        stack.enter_context(on.kept())
        cards = on.client.run(card, on_error="ignore").values()
        found = [
            (c["address"], run, lead["title"])
            for c in cards
            for run, lead in c["leads"].items()
            if name in (None, lead["title"])
        ]
        if len(found) != 1:
            titles = ", ".join(repr(title) for _, _, title in found) or "none"
            raise Refused(
                f"attach found {len(found)} runs ({titles}) on the cluster. It joins exactly one. Give the name of the "
                f"run that is meant."
            )
        address, run, _ = found[0]
        line = Line(on.client, run, {COORDINATOR: address})
        job, finish = line.kept()
        return Live(on, job, finish, lambda: line, stack.pop_all())

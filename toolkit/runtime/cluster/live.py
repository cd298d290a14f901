"""A run under way on a cluster: wait for it, watch it, stop it, leave it and find it again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pandas as pd

from toolkit.core.errors import Lost, Refused
from toolkit.core.messages import COORDINATOR, PlaceName
from toolkit.core.tally import Tally
from toolkit.runtime.cluster import job as jobs
from toolkit.runtime.cluster.channel import Message
from toolkit.runtime.cluster.line import Line
from toolkit.runtime.handle import Handle
from toolkit.runtime.outcome import Outcome

#: How a handle says that it hears no more.
ENDED, LEFT = "ended", "left to itself"


class Live(Handle):
    """A run under way on a cluster.

    Made by :func:`toolkit.start`; :func:`attach` finds one again.

    Attributes
    ----------
    name : str
    tally : Tally
        How far it has come, as last heard.
    status : str
        ``"starting"``, ``"waiting for the run ..."``, ``"preparing"``, ``"running"``, ``"ended"`` or, after
        :meth:`detach`, ``"left to itself"``.

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
        super().__init__(job.title, job.until, progress, "starting")
        self._measured: list[tuple[float, int, int, str, float]] = []
        self._on, self._job, self._finish, self._stack = on, job, finish, stack
        self._line: futures.Future[Line] = futures.Future()
        threading.Thread(target=self._begin, args=(reach,), name="toolkit-start", daemon=True).start()

    def _begin(self, reach: Callable[[], Line]) -> None:
        """Reach the leader, which may take seconds: processes are started for it."""
        try:
            line = reach()
            line.watch(self._told, self._job.deadline)
        except BaseException as error:
            self._close()
            self._line.set_exception(error)
        else:
            self._line.set_result(line)

    def _told(self, news: Message) -> None:
        if "tally" in news:
            self.status = news["status"]
            self._measured.extend(tuple(row) for row in news["metrics"])
            self._show(Tally(**news["tally"], metrics=Tally().metrics.update(news["last"])))
        else:
            self._say(news["status"])

    # -- what a user does ---------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> dict[PlaceName, str]:
        """Where the agents of its processes listen: {host: address}; waits until these are known."""
        return self._line.result().hosts

    @property
    def metrics(self) -> pd.DataFrame:
        """What was measured so far: `time` [s], `round`, `samples`, `name`, `value`."""
        return pd.DataFrame(list(self._measured), columns=["time", "round", "samples", "name", "value"])

    def stop(self) -> None:
        """End it now, or as soon as it begins; what it has achieved is kept, and :meth:`wait` returns it."""
        if self.status not in (ENDED, LEFT):
            self._line.add_done_callback(lambda line: None if line.exception() else line.result().stop())

    def detach(self) -> None:
        """Leave the run to itself, on a cluster that goes on without this process; :func:`attach` finds it again."""
        if self._on.brief:
            raise Refused(
                f"The run {self.name!r} was to be left, on processes that were started for it and end with it here. "
                f"Nobody could find it again. Wait for it, or start it on the address of a scheduler."
            )
        line = self._line.result()
        super()._close()
        self.status = LEFT
        line.close(forget=False)
        self._stack.close()

    # -- within -------------------------------------------------------------------------------------------------------

    def _finished(self, late: float) -> Any:
        if self.status == LEFT:
            raise Refused(
                f"The run {self.name!r} was left to itself. This handle hears of it no more. Find it again by "
                f"attach(cluster, {self.name!r})."
            )
        try:
            answer = self._within(late, self._within(late, self._line).outcome)
        except (ConnectionError, futures.CancelledError) as error:
            if self._line.done() and not self._line.exception():
                self._line.result().close(forget=False)  # should it come back, the run can be found
            self._close()
            raise Lost(
                f"The process that leads the run {self.name!r} is gone: {error}. With it went what was not saved. Look "
                f"at the log of that worker, and start the run again."
            ) from None
        outcome: Outcome = jobs.unpack(answer["outcome"])
        if outcome.error is None:
            self._show(outcome.tally, whole=outcome.status == "finished")
        self._close()
        return self._finish(outcome, self._on, self._job.recipe)

    def _close(self) -> None:
        super()._close()
        if self._line.done() and not self._line.exception():
            self._line.result().close(forget=True)
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
    from toolkit.runtime.cluster.processes import asked

    if client is None:
        raise Refused("attach was given None. There is no cluster on which a run could be found. Give its address.")
    on = client if isinstance(client, Dask) else Dask(client)
    with contextlib.ExitStack() as stack:
        stack.enter_context(on.kept())
        found = [
            (c["address"], run, lead["title"])
            for c in asked(on.client, card)[0].values()
            if c is not None
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

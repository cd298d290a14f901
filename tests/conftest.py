"""Settings of the whole test run: no screen, no accelerator, no luck."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pandas as pd

    from toolkit.runtime.drive import Drive
    from toolkit.trace import Trace

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Examples follow from the test's code alone and may take their time on a busy machine.
settings.register_profile("toolkit", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("toolkit")


class Simulated(NamedTuple):
    """What a simulation leaves: the drive with its tally, and the trace."""

    drive: Drive
    trace: Trace

    @property
    def frame(self) -> pd.DataFrame:
        return self.trace.frame()

    def of(self, *kinds: str) -> pd.DataFrame:
        """The rows of some kinds."""
        frame = self.trace.frame()
        return frame[frame["kind"].isin(kinds)]

    def count(self, kind: str) -> dict[int, int]:
        """The rows of a kind by worker."""
        return {int(worker): int(n) for worker, n in self.of(kind).groupby("worker").size().items()}


@pytest.fixture(scope="session")
def simulate() -> Callable[..., Simulated]:
    """Run a strategy in virtual time: ``simulate(strategy, workers, budget=8, **fields of Simulator)``.

    `budget` is one number or one for each worker; without `until` the run ends when all budgets are used up.
    """
    from toolkit.core.conditions import iterations
    from toolkit.runtime.drive import Drive
    from toolkit.runtime.record import Recorder
    from toolkit.runtime.simulator import Simulator
    from toolkit.trace import Trace

    def run(strategy, workers=4, *, budget=None, until=None, rows=0, layout=None, data=None, **fields) -> Simulated:
        simulator = Simulator(workers, **fields)
        cluster = simulator.describe(layout, rows, None if isinstance(budget, dict) else budget)
        if isinstance(budget, dict):
            cluster = replace(cluster, budget=budget)
        trace = Trace()
        drive = Drive(strategy, cluster, Recorder(trace), until or iterations(1))
        simulator.run(drive, data)
        return Simulated(drive, trace)

    return run

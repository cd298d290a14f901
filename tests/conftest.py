"""Settings of the whole test run: no screen, no accelerator, no luck."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from toolkit.core.messages import PlaceName
    from toolkit.place import Places
    from toolkit.prepare import Recipe
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


class Performed(NamedTuple):
    """What a run with arrays leaves, in this process: the recipe, the drive, the trace, and all places."""

    recipe: Recipe
    drive: Drive
    trace: Trace
    places: Places

    def params(self, place: PlaceName = 0) -> np.ndarray:
        """The parameters at a place."""
        return self.places.places[place].params

    def model(self) -> np.ndarray:
        """The model vector that the places hold together."""
        from toolkit.runtime.numerics import model

        return self.places.assemble(model(self.places, self.drive.log))[0]

    def tasks(self, kind: type) -> list:
        """Every task of a kind that the strategy asked for, in order."""
        from toolkit.runtime.numerics import asked

        found = asked(self.recipe.strategy, self.recipe.setup, self.drive.log)
        return [task for task in found if isinstance(task, kind)]


@pytest.fixture(scope="session")
def perform(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Performed]:
    """Train in this process: ``perform(problem, strategy, workers, until=..., cluster={...}, **options of train)``."""
    import jax

    from toolkit.core.parse import parse
    from toolkit.place import Places
    from toolkit.prepare import prepare
    from toolkit.runtime.drive import Drive
    from toolkit.runtime.record import Recorder
    from toolkit.runtime.simulator import Simulator
    from toolkit.trace import Trace

    # Runs of one problem compile the same kernels. Not by environment variables: processes of their own do it anew.
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    def run(problem, strategy, workers=4, *, until, seed=0, cluster=None, watch=lambda p: p, **options) -> Performed:
        simulator = Simulator(workers, **(cluster or {}))
        described = simulator.describe(budget=until.budget, seed=seed)
        strategy = parse(strategy) if isinstance(strategy, str) else strategy
        recipe = prepare(problem, strategy, described, until, **({"optimizer": "sgd(0.1)"} | options))
        places = Places(recipe.setup, recipe.setup.cluster.homes)
        drive = Drive(recipe.strategy, recipe.setup.cluster, Recorder(trace := Trace()), until)
        simulator.run(drive, watch(places))
        return Performed(recipe, drive, trace, places)

    return run

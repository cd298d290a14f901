"""The work of a strategy for one event does not grow with the number of workers: operations are counted, not timed."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from toolkit.core.strategy import chain
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.policies.asp import asp
from toolkit.policies.backup import backup
from toolkit.policies.bsp import bsp
from toolkit.policies.dssp import dssp
from toolkit.policies.elastic_bsp import elastic_bsp
from toolkit.policies.ssp import ssp
from toolkit.runtime.timing import lognormal


def calls_per_event(simulate, policy, workers: int) -> float:
    """Function calls, C functions included, that the steps of a run make for one event."""
    strategy, calls, events = chain(policy, parameter_server()), 0, 0

    def count(frame, kind, value):
        nonlocal calls
        calls += kind in ("call", "c_call")

    def step(state, message):
        nonlocal events
        events += 1
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            return strategy.step(state, message)
        finally:
            sys.setprofile(before)

    simulate(replace(strategy, step=step), workers, budget=4, step=lognormal(1.0, 0.3), seed=14)
    return calls / events


@pytest.mark.parametrize("policy", [bsp(), backup(2), asp(), ssp(3), dssp(2, 8), elastic_bsp(4)], ids=repr)
def test_sixteen_times_the_workers_cost_the_same_per_event(simulate, policy):
    few, many = (calls_per_event(simulate, policy, workers) for workers in (16, 256))
    assert many < 1.3 * few

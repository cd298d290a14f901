"""Small situations whose outcome is known by hand: four workers, of which one is four times slower."""

from __future__ import annotations

import pytest

from toolkit.core.conditions import updates
from toolkit.core.strategy import chain
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import ring
from toolkit.policies.asp import asp
from toolkit.policies.backup import backup
from toolkit.policies.bsp import bsp
from toolkit.policies.dssp import dssp
from toolkit.policies.elastic_bsp import elastic_bsp
from toolkit.policies.ssp import ssp
from toolkit.runtime.timing import constant, slowed

ONE_SLOW = constant([1.0, 1.0, 1.0, 4.0])


def waiting(run) -> dict[int, float]:
    """Seconds from an update that is ready to the next step of its worker; messages and merges take no time here."""
    waits = {}
    for worker, rows in run.of("compute").groupby("worker"):
        waits[int(worker)] = float((rows["began"].shift(-1) - rows["ended"]).sum())
    return waits


@pytest.mark.parametrize("policy", [bsp(), ssp(0)], ids=repr)
def test_a_lead_of_zero_takes_as_long_as_a_barrier(simulate, policy):
    run = simulate(chain(policy, parameter_server()), 4, step=ONE_SLOW, budget=8)
    assert run.drive.tally.time == 32
    assert waiting(run) == {0: 21, 1: 21, 2: 21, 3: 0}


@pytest.mark.parametrize(("s", "wait"), [(0, 21), (1, 17), (4, 5), (8, 0)])
def test_waiting_of_the_fast_workers_under_ssp(simulate, s, wait):
    """A fast worker starts step 8 once the slow one has completed 7 - s, after 4 (7 - s) s instead of 7 s."""
    run = simulate(chain(ssp(s), parameter_server()), 4, step=ONE_SLOW, budget=8)
    assert waiting(run) == {0: wait, 1: wait, 2: wait, 3: 0}


def test_waiting_under_dssp_lies_between_its_bounds(simulate):
    run = simulate(chain(dssp(1, 4), parameter_server()), 4, step=ONE_SLOW, budget=8)
    waits = waiting(run)
    assert all(5 <= waits[worker] <= 17 for worker in range(3))
    assert waits[3] == 0


def test_backup_workers_finish_eight_rounds_in_eight_seconds(simulate):
    run = simulate(chain(backup(1), parameter_server()), 4, step=ONE_SLOW, until=updates(8))
    assert run.drive.tally.time == 8
    assert run.of("committed")["key"].tolist() == ["committed:0:1:2"] * 8  # each the mean of exactly three


@pytest.mark.parametrize("exchange", [parameter_server(), all_reduce(ring)], ids=repr)
def test_late_updates_are_dropped_and_their_worker_starts_afresh(simulate, ledger, exchange):
    books = ledger()
    run = simulate(chain(backup(1), exchange), 4, step=ONE_SLOW, until=updates(8), data=books)
    slow = run.of("ready").query("worker == 3")
    assert slow["ended"].tolist() == [4.0, 8.0]
    assert slow["stale"].tolist() == [3, 4]  # rounds 1 to 3; it starts afresh before round 4 and misses 4 to 7
    assert not any(worker == 3 for merges in books.merges.values() for _, group, _ in merges for worker in group)


def test_elastic_bsp_lets_the_fast_workers_run_on_to_a_common_end(simulate):
    """Push times 1, 2, ... and 4, 8, 12: all can end at 12 s, after 12 and 3 iterations."""
    run = simulate(chain(elastic_bsp(5), parameter_server()), 4, step=ONE_SLOW, until=updates(40))
    barrier = run.of("committed").query("key == 'committed:0:1:2:3'")
    assert barrier["ended"].tolist()[0] == 12.0
    assert waiting(run) == pytest.approx(dict.fromkeys(range(4), 0.0))


def test_a_worker_that_slows_down_holds_back_a_barrier_only_then(simulate):
    step = slowed(constant(1.0), worker=2, factor=5.0, start=3.0, stop=8.0)
    run = simulate(chain(bsp(), parameter_server()), 3, step=step, budget=6)
    assert run.of("committed")["ended"].tolist() == [1, 2, 3, 8, 9, 10]


def test_without_bounds_nobody_waits(simulate):
    run = simulate(chain(asp(), parameter_server()), 4, step=ONE_SLOW, budget=8)
    assert waiting(run) == dict.fromkeys(range(4), 0.0)
    assert run.of("finished")["ended"].tolist() == [8, 8, 8, 32]

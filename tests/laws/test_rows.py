"""Which rows are read: each once per epoch, whatever the policy and however short the tail."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from toolkit.core.conditions import epochs, updates
from toolkit.core.messages import Compute, Stage
from toolkit.core.strategy import chain
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.gossip import gossip
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import ring
from toolkit.exchanges.topologies import ring_neighbours
from toolkit.policies.asp import asp
from toolkit.policies.backup import backup
from toolkit.policies.bsp import bsp
from toolkit.policies.dssp import dssp
from toolkit.policies.elastic_bsp import elastic_bsp
from toolkit.policies.ssp import ssp
from toolkit.rewrites.deal import deal
from toolkit.rewrites.local_steps import local_steps
from toolkit.rewrites.pipeline import pipeline
from toolkit.runtime.timing import lognormal

ROWS, BATCH, EPOCHS = 103, 8, 3
STEP = lognormal(1.0, 0.5, speeds=[1, 1, 2, 3])
CHAINS = [
    (bsp(), all_reduce(ring)),
    (backup(1), parameter_server()),
    (asp(), parameter_server(2)),
    (ssp(2), parameter_server()),
    (dssp(1, 3), parameter_server()),
    (elastic_bsp(3), parameter_server()),
    (bsp(), gossip(ring_neighbours)),
    (bsp(), all_reduce(ring), local_steps(3)),
    (asp(), parameter_server(), pipeline(2, 3)),
]


def dealt(simulate, layers, dealer, **options):
    """The run, and the tickets of all its iterations in the order in which they were dealt."""
    strategy, tickets = chain(*layers, dealer), {}

    def step(state, message):
        state, replies = strategy.step(state, message)
        for task in replies:
            if isinstance(task, (Compute, Stage)):
                known = tickets.setdefault(task.key[1:3], task.tickets)
                assert known == task.tickets  # all stages and microbatches of an iteration read the same rows
        return state, replies

    run = simulate(replace(strategy, step=step), 4, step=STEP, rows=ROWS, **options)
    return run, [ticket for drawn in tickets.values() for ticket in drawn if ticket.count]


def read(tickets) -> Counter:
    return Counter((t.shard, t.epoch, row) for t in tickets for row in range(t.first, t.first + t.count))


@pytest.mark.parametrize("layers", CHAINS, ids=lambda layers: repr(chain(*layers)))
def test_each_row_is_read_once_per_epoch_under_every_policy(simulate, layers):
    run, tickets = dealt(simulate, layers, deal(ROWS, BATCH, limit=EPOCHS * ROWS), budget=1000)
    assert read(tickets) == Counter((None, epoch, row) for epoch in range(EPOCHS) for row in range(ROWS))
    assert max(ticket.count for ticket in tickets) == BATCH
    assert run.drive.status == "finished"  # a worker that finds no row left is finished
    assert run.count("finished") == dict.fromkeys(range(4), 1)
    if "backup" not in repr(layers):
        assert run.drive.tally.samples == EPOCHS * ROWS


@pytest.mark.parametrize("layers", CHAINS[:7], ids=lambda layers: repr(chain(*layers)))
def test_of_shards_each_row_is_read_once_per_epoch_of_its_worker(simulate, layers):
    sizes = {0: 40, 1: 8, 2: 30, 3: 25}
    run, tickets = dealt(simulate, layers, deal(ROWS, BATCH, sizes), budget=12)
    assert run.count("finished") == dict.fromkeys(range(4), 1)
    for worker, size in sizes.items():
        counts = read(ticket for ticket in tickets if ticket.shard == worker)
        assert set(counts.values()) == {1}
        full, rest = divmod(len(counts), size)
        for epoch in range(full):
            assert {row for _, e, row in counts if e == epoch} == set(range(size))
        assert {row for _, e, row in counts if e == full} == set(range(rest))


def test_a_worker_without_rows_hangs_nobody(simulate):
    run, tickets = dealt(simulate, CHAINS[0], deal(ROWS, BATCH, {0: 60, 1: 43, 2: 0}), budget=5)
    assert {ticket.shard for ticket in tickets} == {0, 1}
    assert run.count("compute") == {0: 5, 1: 5, 2: 1, 3: 1}


def test_the_number_of_workers_does_not_change_which_rows_are_used(simulate):
    few, many = (
        read(dealt(simulate, layers, deal(ROWS, BATCH, limit=ROWS), budget=100)[1]) for layers in (CHAINS[0], CHAINS[2])
    )
    assert few == many


def test_epochs_count_the_samples_of_merges(simulate):
    run, _ = dealt(simulate, CHAINS[2], deal(ROWS, BATCH), until=epochs(2))
    last = run.of("committed").iloc[-1]
    assert 2 * ROWS <= run.drive.tally.samples < 2 * ROWS + BATCH
    assert last["ended"] == run.drive.tally.time


def test_an_empty_step_takes_no_time(simulate):
    run, _ = dealt(simulate, CHAINS[0], deal(8, 8, limit=8), budget=3, until=updates(1))
    spent = run.of("compute").set_index("worker")["ended"]
    assert spent[0] > 0 and (spent[[1, 2, 3]] == 0).all()

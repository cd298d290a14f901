"""Every policy over every exchange under every rewrite: it works to the end, or refuses with a reason."""

from __future__ import annotations

import itertools
import re

import pytest

from toolkit.core.errors import Refused
from toolkit.core.strategy import chain
from toolkit.exchanges.all_gather import all_gather
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
from toolkit.rewrites.codecs import top_k
from toolkit.rewrites.compress import compress
from toolkit.rewrites.local_steps import local_steps
from toolkit.runtime.links import Link
from toolkit.runtime.timing import lognormal

POLICIES = (bsp(), backup(1), asp(), ssp(3), dssp(2, 8), elastic_bsp(4))
EXCHANGES = (parameter_server(2), all_reduce(ring), all_gather(), gossip(ring_neighbours))
REWRITES = ((), (local_steps(4),), (compress(top_k(0.1)),), (local_steps(4), compress(top_k(0.1))))
PRODUCT = [chain(p, e, *r) for p, e, r in itertools.product(POLICIES, EXCHANGES, REWRITES)]
FIELDS = {"step": lognormal(1.0, 0.3), "link": Link(0.01, 1e4), "nbytes": 400, "apply": 0.01}


def impossible(strategy) -> bool:
    """All-reduce cannot take stale updates, nor add codes that are not linear."""
    policy, exchange, *rewrites = strategy.layers
    late = policy not in (bsp(), backup(1))
    return exchange == all_reduce(ring) and (late or compress(top_k(0.1)) in rewrites)


def test_76_of_96_combinations_are_possible():
    assert len(set(PRODUCT)) == 96
    assert sum(map(impossible, PRODUCT)) == 20


@pytest.mark.parametrize("strategy", [s for s in PRODUCT if not impossible(s)], ids=repr)
def test_possible_combinations_keep_every_worker_going_to_the_end(simulate, strategy):
    run = simulate(strategy, 4, budget=8, seed=1, **FIELDS)
    assert run.drive.status == "finished"
    assert run.count("compute") == run.count("ready") == dict.fromkeys(range(4), 8)
    assert run.count("finished") == dict.fromkeys(range(4), 1)


@pytest.mark.parametrize("strategy", list(filter(impossible, PRODUCT)), ids=repr)
def test_impossible_combinations_refuse_in_sentences(simulate, strategy):
    with pytest.raises(Refused, match=r"^(all_reduce|compress).+\. .+\.$") as caught:
        simulate(strategy, 4, budget=8, seed=1, **FIELDS)
    assert len(re.findall(r"[.:](?: |$)", str(caught.value))) == 3


@pytest.mark.parametrize("strategy", [s for s in PRODUCT if len(s.layers) == 2 and not impossible(s)], ids=repr)
def test_unequal_budgets_are_run_exactly_and_the_run_ends(simulate, strategy):
    for budget in ({0: 3, 1: 9, 2: 1, 3: 6}, {0: 8, 1: 8, 2: 8, 3: 1}, {0: 1, 1: 1, 2: 1, 3: 7}):
        run = simulate(strategy, 4, budget=budget, seed=2, **FIELDS)
        assert run.count("compute") == budget
        assert run.count("finished") == dict.fromkeys(range(4), 1)
        assert run.of("finished", "ready")["ended"].min() > 0


@pytest.mark.parametrize("strategy", [s for s in PRODUCT if not impossible(s)][::3], ids=repr)
def test_models_hold_each_merged_update_once_with_its_weight(simulate, ledger, strategy):
    """Servers and replicas end as the same sum of means, weighted by samples, of updates that were really computed."""
    books = ledger(samples={0: 8, 1: 8, 2: 5, 3: 0})
    run = simulate(strategy, 3, budget=5, seed=3, data=books, **FIELDS)
    holders = [place for place, home in strategy.places(run.drive.cluster, {}).items() if home.model]
    merges = [merge for place in holders for merge in books.merges[place]]
    seen = [entry for _, group, clocks in merges for entry in zip(group, clocks, strict=True)]
    copies = 1 if "gossip" in repr(strategy) else len(holders)
    assert set(seen) <= {(worker, clock) for worker in range(3) for clock in range(1, 6)}
    assert len(seen) == len(set(seen)) * copies
    if "backup" not in repr(strategy):
        assert len(set(seen)) == 15
    if copies > 1:
        assert len({frozenset(books.model[place].items()) for place in holders}) == 1
        assert sum(books.model[holders[0]].values()) == run.drive.tally.updates

"""Updates per second against closed forms and against an independent program."""

from __future__ import annotations

import math

import pytest

from toolkit.core.conditions import iterations, seconds
from toolkit.core.strategy import chain
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.gossip import gossip
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import halving_doubling, ring, tree
from toolkit.exchanges.topologies import ring_neighbours
from toolkit.policies.asp import asp
from toolkit.policies.bsp import bsp
from toolkit.policies.dssp import dssp
from toolkit.policies.elastic_bsp import elastic_bsp
from toolkit.policies.ssp import ssp
from toolkit.rewrites.pipeline import pipeline
from toolkit.runtime.links import Link
from toolkit.runtime.timing import constant, exponential, lognormal

ALPHA, BANDWIDTH = 1e-3, 1e6


@pytest.mark.parametrize(
    ("policy", "rate"),
    [
        (bsp(), 2.105),
        (ssp(3), 2.107),
        (ssp(15), 2.116),
        (dssp(3, 15), 2.108),
        (dssp(3, 15, capped=False), 2.580),
        (elastic_bsp(15), 3.157),
        (asp(), 3.174),
    ],
    ids=repr,
)
def test_a_second_opinion_on_updates_per_second(simulate, policy, rate):
    """Speeds 1 : 1.13 : 1.31 : 1.9 without communication, 4000 s, as computed by another program."""
    run = simulate(chain(policy, parameter_server()), 4, step=constant([1, 1.13, 1.31, 1.9]), until=seconds(4000))
    assert run.drive.tally.samples / 4000 == pytest.approx(rate, abs=6e-4)


def exchange_seconds(simulate, exchange, n: int, nbytes: float) -> float:
    """What one round takes beyond its step of one second."""
    run = simulate(
        chain(bsp(), exchange), n, budget=1, step=1.0, nbytes=nbytes, link=Link(ALPHA, BANDWIDTH), until=iterations(1)
    )
    return float(run.of("committed")["ended"].iloc[0]) - 1.0


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13])
def test_ring(simulate, n):
    m = 4000 * n
    assert exchange_seconds(simulate, all_reduce(ring), n, m) == pytest.approx(
        2 * (n - 1) * (ALPHA + m / n / BANDWIDTH), abs=1e-6
    )


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_halving_doubling_of_powers_of_two(simulate, n):
    m = 4000 * n
    assert exchange_seconds(simulate, all_reduce(halving_doubling), n, m) == pytest.approx(
        2 * ALPHA * math.log2(n) + 2 * m * (n - 1) / n / BANDWIDTH, abs=1e-6
    )


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_full_binary_trees(simulate, levels):
    """A parent takes from and gives to its two children one after the other."""
    m = 40_000
    assert exchange_seconds(simulate, all_reduce(tree), 2 ** (levels + 1) - 1, m) == pytest.approx(
        2 * levels * (ALPHA + 2 * m / BANDWIDTH), abs=1e-6
    )


@pytest.mark.parametrize("n", [1, 2, 4, 7])
@pytest.mark.parametrize("place", ["separate", "collocated"])
def test_one_server(simulate, n, place):
    """Its link carries n models out and n updates in; the last pull and the first push are all that does not "
    "overlap."""
    m = 40_000
    remote = n if place == "separate" else n - 1
    wanted = 2 * ALPHA + (remote + 1) * m / BANDWIDTH if remote else 0.0
    assert exchange_seconds(simulate, parameter_server(1, place), n, m) == pytest.approx(wanted, abs=1e-6)


def test_a_server_takes_its_time_to_apply(simulate):
    run = simulate(chain(bsp(), parameter_server(4, "separate")), 3, budget=2, step=1.0, apply=0.2, nbytes=4000)
    assert run.of("committed")["ended"].tolist() == pytest.approx([1.05, 2.1])  # each shard a quarter of the model


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 1), (2, 4), (3, 2), (4, 8)])
def test_the_bubble_of_a_pipeline(simulate, stages, microbatches):
    run = simulate(chain(bsp(), parameter_server(), pipeline(stages, microbatches)), 1, budget=2, step=1.0, nbytes=400)
    work = run.of("stage")
    span = run.of("ready")["ended"].iloc[0]
    assert span == pytest.approx((microbatches + stages - 1) / microbatches / stages)
    busy = (work["ended"] - work["began"]).sum() / 2
    assert 1 - busy / (stages * span) == pytest.approx((stages - 1) / (microbatches + stages - 1))


def test_two_stages_with_four_microbatches_idle_a_fifth_of_the_time(simulate):
    run = simulate(chain(bsp(), parameter_server(), pipeline(2, 4)), 1, budget=1, step=1.0, nbytes=400)
    work = run.of("stage")
    assert 1 - (work["ended"] - work["began"]).sum() / (2 * work["ended"].max()) == pytest.approx(0.2)


@pytest.mark.parametrize("n", [2, 5])
def test_rounds_of_exponential_steps_take_the_harmonic_number(simulate, n):
    """The mean of the largest of n; its standard error over the rounds is at most 0.045, the tolerance four of "
    "these."""
    rounds = 800
    run = simulate(chain(bsp(), parameter_server()), n, budget=rounds, step=exponential(1.0), seed=13)
    assert run.drive.tally.time / rounds == pytest.approx(sum(1 / i for i in range(1, n + 1)), abs=0.18)


def test_asynchronous_updates_arrive_at_the_sum_of_the_rates(simulate):
    run = simulate(chain(asp(), parameter_server()), 3, until=seconds(600), step=lognormal(1.0, 0.0, [1, 2, 4]))
    assert run.drive.tally.updates / 600 == pytest.approx(1 + 1 / 2 + 1 / 4, abs=0.01)


@pytest.mark.parametrize(
    ("exchange", "sent"),
    [
        (all_reduce(ring), 6_000_000),
        (all_reduce(halving_doubling), 6_000_000),
        (parameter_server(1, "separate"), 4_000_000),
        (parameter_server(4, "collocated"), 6_000_000),  # a quarter to its own shard is free, its shard serves three
        (gossip(ring_neighbours), 8_000_000),
    ],
    ids=repr,
)
def test_bytes_of_a_million_parameters_on_four_workers(simulate, exchange, sent):
    moved = simulate(chain(bsp(), exchange), 4, budget=1, nbytes=4e6).of("send", "hop")
    own = {"s0": "server"} if "separate" in repr(exchange) else {f"s{k}": str(k) for k in range(4)}
    moved = moved.replace({"place": own, "peer": own}).query("place != peer")  # what leaves a host
    out, into = (moved.groupby(column)["nbytes"].sum().to_dict() for column in ("place", "peer"))
    assert {host: n for host, n in out.items() if host != "server"} == dict.fromkeys("0123", sent)
    assert out == into
    assert out.get("server", 16_000_000) == 16_000_000

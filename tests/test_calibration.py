"""Calibration: what a described cluster takes is found again in the trace of a run on it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest

import toolkit as tk
from toolkit import calibration
from toolkit.calibration import CHANCES, VISITS, chances, fitted, link, links, probing
from toolkit.core.errors import Refused

BUSY = {"apply": 0.004, "nbytes": 4e6, "control": 0.002}


def found(simulator: tk.Simulator, steps: int = 4 * VISITS, hosts: dict | None = None) -> tk.Simulator:
    """The simulator that a calibration makes of a run on a simulator."""
    count = simulator.workers
    strategy = tk.chain(tk.asp(), probing(count - 1))
    run = tk.simulate(strategy, simulator, until=tk.iterations(steps))
    return tk.Simulator(count, **fitted(run.trace, hosts or {w: w for w in range(count)}))


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("seconds", [0.5, [0.5, 0.75], [0.25, 0.5, 1.0]])
def test_a_described_cluster_is_found_again(workers, seconds):
    link = tk.Link(0.001, 1e9)
    simulator = tk.Simulator(workers, step=tk.constant(seconds), link=link, **BUSY)
    again = found(simulator)
    expected = {w: tuple([tk.constant(seconds)(w, 0, 0.0, 0)] * CHANCES) for w in range(workers)}
    assert again.step == tk.empirical(expected)
    assert (again.apply, again.control, again.nbytes) == (simulator.apply, simulator.control, simulator.nbytes)
    assert isinstance(again.link, tk.Link)
    # Workers of other speeds sometimes write to one host at a time, and then one message waits for the other.
    close = 1e-4 if seconds == 0.5 else 0.1
    assert again.link.latency == pytest.approx(link.latency, rel=close)
    assert again.link.bandwidth == pytest.approx(link.bandwidth, rel=close)


def test_a_link_that_differs_clearly_is_found_by_pair_and_direction():
    slow = {(0, 1): tk.Link(0.02, 1e8), (2, 0): tk.Link(0.001, 1e8)}
    simulator = tk.Simulator(4, step=0.5, link=tk.Links(tk.Link(0.001, 1e9), slow), **BUSY)
    again = found(simulator).link
    assert isinstance(again, tk.Links) and set(again.pairs) == set(slow)
    for pair in itertools.permutations(range(4), 2):
        one, other = again.between(*pair), simulator.link.between(*pair)
        assert one.latency == pytest.approx(other.latency, rel=1e-3)
        assert one.bandwidth == pytest.approx(other.bandwidth, rel=1e-3)


def test_messages_within_a_host_say_nothing_of_links():
    hosts = {0: "a", 1: "a", 2: "b"}
    simulator = tk.Simulator(3, step=0.5, link=tk.Link(0.001, 1e9), hosts=hosts, **BUSY)
    again = found(simulator, hosts=hosts)
    assert again.link.latency == pytest.approx(0.001, rel=1e-3)


def test_the_first_message_of_a_pair_and_the_first_step_are_left_out():
    run = tk.simulate(tk.chain(tk.asp(), probing(1)), tk.Simulator(2, step=0.5, **BUSY), until=tk.iterations(VISITS))
    cold = run.trace.copy()
    cold.loc[(cold["clock"] == 1) & cold["kind"].isin(["compute", "send"]), "ended"] += 100.0
    cold.loc[cold["key"].isin(["apply:0:0", "apply:1:1"]), "ended"] += 100.0
    alike = [fitted(trace, {0: 0, 1: 1}) for trace in (run.trace, cold)]
    assert alike[0] == alike[1]


@pytest.mark.parametrize("count", [1, 3, CHANCES, 29, 30, 64])
def test_a_few_times_of_equal_chance_keep_the_mean_and_the_order(count):
    times = np.random.default_rng(count).lognormal(-2.0, 0.5, count)
    few = chances(times)
    assert len(few) == min(CHANCES, count) and few == sorted(few)
    assert np.mean(few) == pytest.approx(times.mean(), rel=1e-4)
    assert times.min() * (1 - 1e-4) <= few[0] and few[-1] <= times.max() * (1 + 1e-4)


def test_times_of_equal_chance_are_means_of_equal_groups():
    assert chances(np.arange(2.0 * CHANCES, 0.0, -1.0)) == [1.5 + 2 * k for k in range(CHANCES)]


def messages(small: list[float], large: list[float], pair: tuple[int, int] = (0, 1)) -> pd.DataFrame:
    took, big = [*small, *large], [False] * len(small) + [True] * len(large)
    return pd.DataFrame({"pair": [pair] * len(took), "nbytes": np.where(big, 1e6, 4.0), "took": took, "large": big})


def test_large_messages_that_are_no_slower_leave_the_bandwidth_open():
    assert link(messages([0.002, 0.004], [0.001, 0.003])) == tk.Link(0.0025)


def test_the_line_through_two_sizes():
    found = link(messages([0.001 + 4e-9] * 2, [0.002 + 4e-9, 0.002 + 4e-9]))
    assert (found.latency, found.bandwidth) == (0.001, 1e9)


def test_one_slow_message_makes_no_link_of_its_own():
    usual = [messages([0.001] * 3, [0.002] * 3, pair) for pair in ((0, 1), (1, 0), (1, 2), (2, 1), (0, 2))]
    noisy = messages([0.001, 0.1, 0.001], [0.002] * 3, (2, 0))
    slow = messages([0.005] * 3, [0.006] * 3, (2, 0))
    assert isinstance(links(pd.concat([*usual, noisy])), tk.Link)
    assert set(links(pd.concat([*usual, slow])).pairs) == {(2, 0)}


def test_the_text_of_a_description_makes_it_again_and_stays_short():
    simulator = found(tk.Simulator(8, step=tk.lognormal(0.1, 0.2), link=tk.Link(0.001, 1e9), **BUSY))
    text = repr(simulator)
    assert eval(text, {"inf": math.inf, **{name: getattr(tk, name) for name in tk.__all__}}) == simulator
    assert len(text) < 200 * simulator.workers


def test_what_is_predicted_from_a_calibration_is_what_happens():
    """The round trip: predictions from the calibration of a described cluster against runs on that cluster."""
    cluster = tk.Simulator(4, step=tk.lognormal(0.5, 0.1, [1, 1, 1, 2]), link=tk.Link(0.001, 1e9), **BUSY)
    again = found(cluster, steps=32)
    server = tk.parameter_server()
    for policy in (tk.bsp(), tk.asp(), tk.ssp(3), tk.backup(1), tk.elastic_bsp(15)):
        times = [
            tk.simulate(tk.chain(policy, server), on, until=tk.iterations(40)).summary()["seconds"].item()
            for on in (cluster, again)
        ]
        assert times[1] == pytest.approx(times[0], rel=0.05), policy


@pytest.mark.parametrize(
    ("on", "options", "words"),
    [
        (None, {}, "^calibrate was given None"),
        (7, {}, "^Dask was given 7"),
        (tk.Simulator(2), {}, "^Dask was given Simulator"),
        (tk.Dask(workers=1), {}, "1 workers live on one host"),
        (tk.Dask(workers=3, hosts={1: 0, 2: 0}), {}, "3 workers live on one host"),
        (tk.Dask(workers=2), {"steps": 0}, "^steps=0"),
        (tk.Dask(workers=2), {"steps": VISITS - 1}, f"^steps={VISITS - 1}"),
        (tk.Dask(workers=2), {"steps": 4.5}, "^steps=4.5"),
        (tk.Dask(workers=2), {"seconds": 0.0}, "^seconds=0.0"),
        (tk.Dask(workers=2), {"seed": -1}, "^seed=-1"),
        (tk.Dask(workers=2), {"optimizer": "nothing(1)"}, "^The optimizer 'nothing"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_cannot_be_calibrated_is_refused_before_a_process_starts(monkeypatch, on, options, words):
    monkeypatch.setattr(tk.Dask, "client", property(lambda self: pytest.fail("processes were asked for")))
    with pytest.raises(Refused, match=words) as caught:
        tk.calibrate(on, tk.problems.quadratic(), **options)
    assert str(caught.value).count(". ") >= 2


def test_a_problem_is_asked_for():
    with pytest.raises(Refused, match=r"^problem=7"):
        tk.calibrate(tk.Dask(workers=2), 7)


def test_a_run_that_was_too_short_is_refused(monkeypatch):
    def train(problem, strategy, *, on, until, **options):
        return tk.simulate(strategy, tk.Simulator(2, step=tk.constant([0.1, 9.0])), until=tk.seconds(1.0))

    monkeypatch.setattr(calibration, "train", train)
    with pytest.raises(Refused, match=r"^The workers \[1\] came through fewer than two iterations in 1 s"):
        tk.calibrate(tk.Dask(workers=2), tk.problems.quadratic(), seconds=1.0)

"""Strategies, conditions and described clusters that cannot be are refused where they are written."""

from __future__ import annotations

import math
import re

import pytest

import toolkit as tk
from toolkit.core.errors import Refused
from toolkit.core.strategy import NAMES
from toolkit.exchanges.schedules import SCHEDULES

SERVER = tk.chain(tk.bsp(), tk.parameter_server())
HUGE = 10**30
NUMBERLESS = ["3", None, [1], {}, math.nan, True, 1j]


@pytest.fixture(autouse=True)
def forget():
    """What a test names is forgotten after it."""
    before = dict(NAMES), dict(SCHEDULES)
    yield
    for names, old in zip((NAMES, SCHEDULES), before, strict=True):
        names.clear()
        names.update(old)


def refused(says: str, action) -> None:
    """It is refused in exactly three sentences."""
    with pytest.raises(Refused, match=says) as found:
        action()
    message = re.sub(r"\d\.\d", "0", str(found.value))
    assert len(re.findall(r"\.(?= [A-Z]|$)", message)) == 3, message


@pytest.mark.parametrize(
    "make",
    [
        tk.parameter_server,
        tk.local_steps,
        tk.adacomm,
        tk.pipeline,
        lambda n: tk.pipeline(2, n),
        tk.elastic_bsp,
        lambda n: tk.dssp(1, n),
        tk.Simulator,
        tk.ring,
        tk.tree,
        tk.halving_doubling,
    ],
)
@pytest.mark.timeout(5)
def test_what_is_gone_through_one_by_one_has_a_largest(make):
    refused(rf"={HUGE} is not a whole number of \w+ from \d to 100000\. All|to 2000\. The hops", lambda: make(HUGE))


@pytest.mark.parametrize("text", [f"parameter_server({HUGE})", f"pipeline(2, {HUGE})", f"local_steps(adacomm({HUGE}))"])
def test_texts_have_the_same_bounds(text):
    refused("All .+ are gone through one by one", lambda: tk.parse(text))


@pytest.mark.timeout(20)
def test_the_largest_run():
    on = tk.Simulator(2)
    for strategy in (tk.chain(SERVER, tk.local_steps(100_000)), tk.chain(tk.elastic_bsp(100_000), SERVER.layers[1])):
        assert tk.simulate(strategy, on, until=tk.updates(1)).status == "finished"


@pytest.mark.parametrize("value", NUMBERLESS)
@pytest.mark.parametrize("make", [tk.ring, tk.tree, tk.halving_doubling, tk.ssp, tk.pipeline, tk.adacomm, tk.qsgd])
def test_counts_are_numbers(make, value):
    refused("is not a whole number", lambda: make(value))


# -- conditions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [3, None, "updates(3)", tk.bsp(), tk.updates])
def test_only_conditions_stand_beside_each_other(other):
    refused(r"stands beside a \|", lambda: tk.updates(3) | other)
    refused(r"stands beside a \|", lambda: other | tk.updates(3))


@pytest.mark.parametrize(
    "text", ["updates(5) | bsp()", "ssp(3) | ssp(4)", "seconds(3) | 3", "parameter_server(2) | updates(1)", "inf | inf"]
)
def test_texts_of_conditions_that_are_none(text):
    refused(r"stands beside a \|", lambda: tk.parse(text))


@pytest.mark.parametrize("value", [*NUMBERLESS, math.inf, -math.inf, 10**400], ids=lambda value: repr(value)[:9])
def test_a_metric_reaches_a_number(value):
    refused("is not a finite number", lambda: tk.reaches("loss", value))


@pytest.mark.parametrize("metric", ["", None, 3, ["loss"]])
def test_a_metric_has_a_name(metric):
    refused("is not the name of a metric", lambda: tk.reaches(metric, 0.3))


@pytest.mark.parametrize("make", [tk.seconds, tk.epochs])
def test_numbers_beyond_those_of_the_machine(make):
    refused("is not a positive number", lambda: make(10**400))


# -- makers of strategies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: tk.bsp(3),
        lambda: tk.all_gather(3),
        lambda: tk.ssp(),
        lambda: tk.ssp(1, staleness=2),
        lambda: tk.dssp(1),
        lambda: tk.parameter_server(shard=2),
        lambda: tk.forward_only(None),
    ],
)
def test_arguments_that_do_not_fit(call):
    refused(r"^\w+ was called with arguments that do not fit: .+\. .+\. Look at help\(\w+\)\.$", call)


@pytest.mark.parametrize("value", [3, None, "ssp", [1], lambda: True, lambda a, b, c, d, e, f: True])
@pytest.mark.parametrize(
    "make",
    [
        tk.gate,
        tk.barrier,
        tk.rewrite,
        lambda f: tk.rewrite(f, lambda cluster: 0),
        lambda f: tk.rewrite(lambda constant, task: [task], f if f is not None else 3),
        lambda f: tk.exchange(f, lambda cluster, merge: []),
        lambda f: tk.exchange(lambda cluster, worker, clock: [], f),
        lambda f: tk.exchange(lambda cluster, worker, clock: [], lambda cluster, merge: [], f),
        tk.schedule,
        lambda f: tk.slowed(f, 0, 2.0) if f != 3 else tk.slowed("3", 0, 2.0),
        lambda f: tk.Simulator(2, step=f if f != 3 else "3"),
    ],
)
def test_functions_are_functions_of_what_they_are_given(make, value):
    refused(
        r" is no function of \(.+\): .+\. It is called with these\. Define one by `def f\(.+\)`\.$", lambda: make(value)
    )


def test_built_in_functions_that_tell_nobody_what_they_take_are_left_alone():
    assert tk.barrier(max).kind == "policy"


@pytest.mark.parametrize("value", [3, None, "a", [1], lambda worker: ()])
@pytest.mark.parametrize("make", [tk.named, tk.strategy])
def test_names_are_those_of_definitions(make, value):
    refused("has no name of its own", lambda: make(value))


def test_a_schedule_without_a_name_is_refused():
    refused("has no name of its own", lambda: tk.schedule(lambda n: (1, [])))


@pytest.mark.parametrize(
    "made", [3, None, (1,), (1, 3), (1, [tk.Hop(0, 9, 0, 1, True)]), (1, [tk.Hop(0, 1, 0, 2, True)]), (1, [(0, 1)])]
)
def test_schedules_that_lead_nowhere(made):
    @tk.schedule
    def nowhere(n):
        return made

    strategy = tk.chain(tk.bsp(), tk.all_reduce(nowhere))
    refused(
        "^The schedule nowhere made of 2 ranks", lambda: tk.simulate(strategy, tk.Simulator(2), until=tk.updates(1))
    )


def test_a_maker_of_something_else_is_refused():
    @tk.strategy
    def broken(count):
        return count

    refused(r"^broken\(3\) returned 3, which is a int", lambda: broken(3))


@pytest.mark.parametrize("value", [3, None, "bsp()", tk.bsp, {}])
def test_only_strategies_are_explained_cited_and_stacked(value):
    for ask in (tk.explain, tk.cite, tk.chain):
        refused("was given .+ Only strategies can be there", lambda ask=ask: ask(value))


@pytest.mark.parametrize("value", [3, None, 1.5, "ab", {0: 1}, [(0, 1.5)], [(0, "b")], [(0, 1, 2)], [3]])
def test_edges_are_pairs_of_workers(value):
    refused("neither a function nor a list of edges", lambda: tk.gossip(value))


def test_neighbours_are_asked_for_by_four_arguments():
    refused(r"topology=.+ is no function of \(worker, clock, live, seed\)", lambda: tk.gossip(tk.ring))


def test_a_lead_has_a_bound_or_none():
    refused("capped='no' is neither", lambda: tk.dssp(1, 2, "no"))


@pytest.mark.parametrize(
    "given", [3, "ab", None, [1], {0: []}, {0: 1.0}, {0: "12"}, {0: [2, 1]}, {0: [math.inf]}, {0: [True]}]
)
def test_forecasts_are_times_of_workers(given):
    refused("zipline was given|predicted end times", lambda: tk.zipline(given))


# -- described clusters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        *({"seed": value} for value in (-1, "a", 1.5, 2**64, None, True)),
        *({"step": value} for value in (True, [1, 2], {}, 0, math.nan)),
        *({"link": value} for value in ("x", None, 3, tk.Link)),
        *({name: value} for name in ("apply", "nbytes", "control") for value in (*NUMBERLESS, math.inf, -1)),
        *({"hosts": value} for value in ("x", [1], {"s0": 1.5}, {None: 0}, {"s0": [1]}, {(0, 1): 2}, {True: 0})),
        *({name: value} for name in ("joins", "leaves") for value in ("ab", 3, None, [3], [("a", 2)], [(1.0, "b")])),
        *({name: [value]} for name in ("joins", "leaves") for value in ((math.inf, 2), (1.0, 2.5), (1.0, 2, 3))),
        {"joins": [(1.0, 2), (2.0, 2)]},
        {"leaves": [(1.0, 0), (2.0, 0)]},
        {"leaves": [(1.0, 77)]},
        {"leaves": [(1.0, 2)], "joins": [(1.5, 2)]},
    ],
    ids=repr,
)
def test_clusters_that_cannot_be(fields):
    refused(r".", lambda: tk.Simulator(**{"workers": 2, **fields}))


def test_a_worker_may_join_and_leave():
    on = tk.Simulator(2, joins=[(0.5, 2)], leaves=[(1.5, 2)])
    assert tk.simulate(tk.chain(tk.asp(), tk.parameter_server()), on, until=tk.iterations(3)).status == "finished"


@pytest.mark.parametrize("hosts", [{"s9": 1}, {"s1": 0}, {7: 0}, {"coordinator": 0}, {"0.1": 0}])
def test_places_that_a_run_does_not_have_have_no_host(hosts):
    refused(
        r"^hosts names the places \[.+\] of a run that has the places \[0, 1, 's0'\]",
        lambda: tk.simulate(SERVER, tk.Simulator(2, hosts=hosts), until=tk.updates(1)),
    )


@pytest.mark.parametrize("hosts", [{1: 0}, {"1.1": 0, 0: "big"}, {"s0": "server"}])
def test_workers_stages_and_shards_may_be_placed(hosts):
    strategy = tk.chain(SERVER, tk.pipeline(2))
    assert tk.simulate(strategy, tk.Simulator(2, hosts=hosts), until=tk.updates(1)).status == "finished"


@pytest.mark.parametrize(
    "make",
    [
        *(lambda value=value: tk.Link(value, 1) for value in NUMBERLESS),
        *(lambda value=value: tk.Link(1, value) for value in NUMBERLESS),
        *(lambda value=value: tk.Links(tk.Link(), value) for value in (3, "x", None, {0: tk.Link()}, {(0, 1): 3})),
        lambda: tk.Links("x", {}),
        *(lambda value=value: tk.constant(value) for value in ("x", None, [1, "a"], {0: 1}, [])),
        *(lambda value=value: tk.lognormal(value, 1) for value in NUMBERLESS),
        *(lambda value=value: tk.lognormal(1, value) for value in (*NUMBERLESS, 1e6, math.inf)),
        *(lambda value=value: tk.exponential(value) for value in NUMBERLESS),
        *(lambda value=value: tk.recorded(value) for value in ([], "x", None, {}, {0: 0}, {"a": [1]}, {0.5: [1]})),
        *(lambda value=value: tk.empirical(value) for value in ([], "x", None, {}, {0: 0}, {"a": [1]}, {0.5: [1]})),
        *(lambda value=value: tk.slowed(1, value, 2) for value in (-1, 0.5, "a", None, {0: 2})),
        *(lambda value=value: tk.slowed(1, 0, value) for value in NUMBERLESS),
        *(lambda value=value: tk.slowed(1, 0, 2, value) for value in NUMBERLESS),
        *(lambda value=value: tk.slowed(1, 0, 2, 5.0, value) for value in (*NUMBERLESS, 5.0, 4.0)),
    ],
)
def test_times_and_links_that_cannot_be(make):
    refused(r".", make)


def test_the_widest_spread_stays_a_number():
    step = tk.lognormal(1, 50)
    assert all(0 < step(w, i, 0.0, 0) < math.inf for w in range(10) for i in range(1000))

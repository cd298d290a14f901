"""Rewrites of iterations and merges: compression, local steps, forward passes, evaluation."""

from __future__ import annotations

import math

import pytest

from toolkit.core.cluster import Cluster
from toolkit.core.conditions import epochs, iterations, seconds, updates
from toolkit.core.errors import Refused
from toolkit.core.layout import Layout, Piece
from toolkit.core.messages import Apply, Compute, Measured, Send
from toolkit.core.strategy import chain
from toolkit.exchanges.all_gather import all_gather
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.gossip import gossip
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import halving_doubling, ring, tree
from toolkit.exchanges.topologies import ring_neighbours
from toolkit.policies.asp import asp
from toolkit.policies.bsp import bsp
from toolkit.rewrites.codecs import Codec, fp16, power_sgd, qsgd, random_k, sign, top_k
from toolkit.rewrites.compress import compress
from toolkit.rewrites.deal import deal
from toolkit.rewrites.evaluation import evaluation
from toolkit.rewrites.forward_only import forward_only
from toolkit.rewrites.local_steps import adacomm, local_steps
from toolkit.runtime.links import Link
from toolkit.runtime.timing import lognormal
from toolkit.runtime.wire import span_nbytes

LINEAR = [fp16(), random_k(0.1), power_sgd(1, "shared")]
OTHERS = [top_k(0.1), sign(), qsgd(4), power_sgd(1)]
FIELDS = {"step": 1.0, "link": Link(0.001, 1e6), "nbytes": 4000}


def through(layer, task):
    """What a layer makes of a task."""
    return list(layer.step(layer.init(Cluster((0,))), task)[1])


# -- compress ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [ring, tree, halving_doubling], ids=lambda f: f.__name__)
@pytest.mark.parametrize("codec", LINEAR, ids=repr)
def test_codes_that_may_be_added_travel_through_sums(simulate, schedule, codec):
    plain, coded = (
        simulate(chain(bsp(), all_reduce(schedule), *r), 4, budget=2, **FIELDS).of("hop")["nbytes"].sum()
        for r in ((), (compress(codec),))
    )
    assert coded / plain == pytest.approx(codec.nbytes(1000) / 4000)


@pytest.mark.parametrize("codec", OTHERS, ids=repr)
def test_other_codes_are_refused_over_sums(simulate, codec):
    with pytest.raises(Refused, match=r"^compress\(.+\) cannot shrink the updates .+\. A sum .+\. Put .+\.$"):
        simulate(chain(bsp(), all_reduce(ring), compress(codec)), 4, budget=2, **FIELDS)


@pytest.mark.parametrize("codec", LINEAR + OTHERS, ids=repr)
@pytest.mark.parametrize("exchange", [parameter_server(2), all_gather()], ids=repr)
def test_updates_shrink_to_the_formula_of_their_code_and_parameters_do_not(simulate, codec, exchange):
    sends = simulate(chain(bsp(), exchange, compress(codec)), 3, budget=1, **FIELDS).of("send")
    update = sends["key"].str.startswith(("push", "gather"))
    values = 500 if exchange == parameter_server(2) else 1000
    assert set(sends.loc[update, "nbytes"]) == {codec.nbytes(values)}
    assert set(sends.loc[~update, "nbytes"]) <= {4 * values}


def test_model_state_travels_as_it_is(simulate):
    layout = Layout((Piece("w", 80), Piece("mean", 20, trainable=False)))
    assert span_nbytes(layout, (0, 100), "top_k(0.1)") == top_k(0.1).nbytes(80) + 4 * 20
    run = simulate(chain(bsp(), all_gather(), compress(top_k(0.1))), 2, budget=1, layout=layout)
    assert set(run.of("send")["nbytes"]) == {8 * 8 + 80}


def test_gossip_sends_parameters_whatever_the_code(simulate):
    a, b = (
        simulate(chain(bsp(), gossip(ring_neighbours), *r), 4, budget=2, **FIELDS).frame
        for r in ((), (compress(top_k(0.1)),))
    )
    assert a.equals(b)


def test_both_ends_are_told_the_code():
    layer = compress(top_k(0.5))
    compute = Compute(("compute", 0, 1), 0, ((0, 4),))
    send = Send(("push", 0, 1, "s0"), 0, "s0", "update", (0, 4))
    apply = Apply(("apply", 0, "s0"), "s0", (0,), (1,), "inbox", (0, 4), (1.0,), (0,))
    for task in (compute, send, apply):
        assert [t.codec for t in through(layer, task)] == ["top_k(0.5)"]
    for task in (Compute(("compute", 0, 1), 0), Send(("pull", 0, 1, "s0"), "s0", 0, "params", (0, 4))):
        assert [t.codec for t in through(layer, task)] == [None]
    assert Codec.of(through(layer, send)[0].codec) == top_k(0.5)


@pytest.mark.parametrize("given", ["top_k(0.1)", None, top_k, 0.1])
def test_only_codecs_compress(given):
    with pytest.raises(Refused, match=r"^compress was given .+\. .+\. Give one .+\.$"):
        compress(given)


# -- local steps ------------------------------------------------------------------------------------------------


def test_local_steps_take_as_many_steps_and_one_exchange(simulate):
    run = simulate(chain(bsp(), all_reduce(ring), local_steps(4)), 3, budget=2, step=1.0)
    assert run.of("compute")["ended"].tolist() == [4.0] * 3 + [8.0] * 3
    assert run.of("compute")["samples"].tolist() == [4] * 6
    assert run.drive.tally.updates == 2


def test_each_local_step_has_a_ticket_and_draws_its_own_time(simulate):
    layers = (bsp(), parameter_server(), local_steps(3))
    run = simulate(chain(*layers, deal(100, 4)), 1, budget=2, step=lognormal(1.0, 0.5), rows=100)
    single = simulate(chain(*layers[:2]), 1, budget=6, step=lognormal(1.0, 0.5)).of("compute")["ended"]
    assert run.of("compute")["ended"].tolist() == pytest.approx(single.tolist()[2::3])
    assert run.of("compute")["samples"].tolist() == [12, 12]


def test_adacomm_takes_fewer_steps_as_the_loss_falls():
    layer = local_steps(adacomm(16))
    state, steps = layer.init(None), []
    for loss in (None, 4.0, 1.0, 0.25, 0.0, math.nan):
        if loss is not None:
            state, _ = layer.step(state, Measured("loss", loss, 0, 0.0))
        state, _ = layer.step(state, Measured("accuracy", 0.5, 0, 0.0))
        steps.append(layer.step(state, Compute(("compute", 0, 1), 0))[1][0].steps)
    assert steps == [16, 16, 8, 4, 1, 16]


@pytest.mark.parametrize(
    "make", [lambda: local_steps(0), lambda: local_steps(-1), lambda: local_steps(1.5), lambda: adacomm(0)]
)
def test_steps_are_whole(make):
    with pytest.raises(Refused, match=r"\. .+\. .+\.$"):
        make()


# -- forward passes only ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "exchange", [parameter_server(2), all_reduce(ring), all_gather(), gossip(ring_neighbours)], ids=repr
)
def test_forward_passes_send_and_apply_no_update(simulate, exchange):
    run = simulate(chain(bsp(), exchange, forward_only()), 3, budget=4, **FIELDS)
    assert run.of("apply", "mix", "reduce", "hop").empty
    assert run.of("send")["key"].str.startswith("pull").all()
    assert run.count("compute") == dict.fromkeys(range(3), 4)
    spent = run.of("compute")["ended"] - run.of("compute")["began"]
    assert spent.tolist() == pytest.approx([1 / 3] * 12)  # forward is a third of a step


class Constant:
    """A model without arrays, whose loss is the number of places it was read from."""

    def read(self, place, task):
        return None

    def write(self, place, task, value):
        pass

    def facts(self, task, value):
        return {}

    def measure(self, task, values):
        return {"loss": float(len(values))}


# -- evaluation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [bsp(), asp()], ids=repr)
def test_evaluation_reads_all_places_at_one_version_and_takes_no_time(simulate, policy):
    layers, fields = (policy, parameter_server(3)), {**FIELDS, "step": lognormal(1.0, 0.3), "apply": 0.1}
    plain = simulate(chain(*layers), 3, budget=6, **fields)
    run = simulate(chain(*layers, evaluation(updates(2))), 3, budget=6, data=Constant(), **fields)
    frame = run.frame[run.frame["kind"] != "measured"]
    looks = frame[
        (frame["kind"] == "evaluate") & (frame["round"] < frame["round"].max())
    ]  # the run ends within the last
    assert len(looks) >= 6
    for number, rows in looks.groupby("round"):
        assert set(rows["place"]) == {"s0", "s1", "s2"}
        for place, row in rows.set_index("place").iterrows():
            merges = frame[(frame["kind"] == "apply") & (frame["place"] == place)].set_index("round")["dst_seq"]
            assert merges[number] < row["src_seq"]
            assert not ((merges > merges[number]) & (merges < row["src_seq"])).any()
    others = frame[frame["kind"] != "evaluate"]
    assert others["ended"].tolist() == plain.frame["ended"].tolist()
    assert others["key"].tolist() == plain.frame["key"].tolist()


def test_evaluations_follow_the_merge_that_makes_the_interval_full(simulate):
    def rounds(every):
        strategy = chain(bsp(), all_reduce(ring), evaluation(every))
        run = simulate(strategy, 2, budget=10, step=1.0, rows=12, data=Constant())
        return [int(number) for number in run.of("measured")["round"]]

    assert rounds(updates(3)) == [2, 5, 8]
    assert rounds(updates(1)) == list(range(9))  # the run is over with the tenth
    assert rounds(seconds(2.5)) == [2, 4, 7]  # at 3, 5 and 8 s
    assert rounds(epochs(0.5)) == [2, 5, 8]  # two rows a merge
    assert rounds(iterations(4)) == [3, 7]


def test_measurements_rise_with_the_merge_they_belong_to(simulate):
    run = simulate(chain(bsp(), parameter_server(2), evaluation(updates(2))), 2, budget=6, data=Constant())
    measured = [event for event in run.drive.log if isinstance(event, Measured)]
    assert [event.value for event in measured] == [2.0] * len(measured) != []
    assert [event.round for event in measured] == sorted(set(run.of("evaluate")["round"]))
    assert run.drive.tally.metrics["loss"] == 2.0


@pytest.mark.parametrize("moment", [0.5, 1.02, 1.1, 1.17, 2.5])
def test_evaluation_goes_on_without_those_who_left(simulate, moment):
    strategy = chain(bsp(), all_reduce(ring), evaluation(updates(1)))
    fields = {"step": 1.0, "link": Link(0.01, 1e5), "nbytes": 4000, "apply": 0.1, "data": Constant()}
    run = simulate(strategy, 3, budget=5, leaves=[(moment, 1)], **fields)
    looks, measured = run.of("evaluate"), [event for event in run.drive.log if isinstance(event, Measured)]
    assert set(looks.loc[looks["ended"] > moment + 1, "place"]) == {"0", "2"}
    assert len(measured) >= 4 and measured[-1].value == 2.0

"""Chains and rewrites: who hears what, and what falls out."""

from __future__ import annotations

from fractions import Fraction

import pytest

from toolkit.core import strategy as module
from toolkit.core.cluster import Cluster
from toolkit.core.errors import ChainError, Livelock, Refused
from toolkit.core.explain import explain
from toolkit.core.messages import Commit, Compute, Join, Joined, Left, Ready, Release, Send
from toolkit.core.strategy import Strategy, chain, strategy, text
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import ring
from toolkit.exchanges.topologies import ring_neighbours
from toolkit.policies.bsp import bsp
from toolkit.policies.ssp import ssp
from toolkit.rewrites.local_steps import local_steps
from toolkit.rewrites.makers import rewrite

CLUSTER = Cluster((0, 1))


def listener(heard: list, replies=lambda message: ()) -> Strategy:
    """A layer that writes down what it hears and lets everything through."""

    def step(state, message):
        heard.append(message)
        passed = (message,) if isinstance(message, (Commit, Release, Compute, Join, Send)) else ()
        return state, (*passed, *replies(message))

    return Strategy(lambda cluster: None, step)


def run(layers: Strategy, *messages):
    state, out = layers.init(CLUSTER), []
    for message in messages:
        state, replies = layers.step(state, message)
        out.append(list(replies))
    return out


def test_events_rise_through_all_layers_though_none_passes_them_on():
    high, low = [], []
    event = Joined(0, 0.0)
    assert run(chain(listener(high), listener(low)), event) == [[event]]
    assert high == low == [event]


def test_a_fact_added_by_a_layer_rises_from_there():
    high, low = [], []
    ready = Ready(0, 1.0, 0)
    stack = chain(listener(high), listener(low, lambda m: [ready] if isinstance(m, Left) else []))
    assert run(stack, Left(0, 1.0)) == [[Left(0, 1.0), ready]]
    assert high == [Left(0, 1.0), ready] and low == [Left(0, 1.0)]


def test_actions_fall_through_layers_that_do_not_know_them():
    task = Compute(("compute", 0, 1), 0)
    heard: list = []
    stack = chain(listener([], lambda m: [task] if isinstance(m, Joined) else []), listener(heard), listener(heard))
    assert run(stack, Joined(0, 0.0)) == [[Joined(0, 0.0), task]]
    assert heard == [Joined(0, 0.0), Joined(0, 0.0), task, task]


def test_an_action_that_falls_out_names_the_missing_layer():
    with pytest.raises(ChainError, match=r"^Release.* fell out of bsp\(\)\. No layer .+ tasks\. Put an exchange .+\.$"):
        run(chain(bsp()), Joined(0, 0.0))


def test_layers_that_answer_each_other_without_end_are_stopped(monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 100)
    ask = listener([], lambda m: [Release(frozenset())] if isinstance(m, (Joined, Left)) else [])
    answer = Strategy(lambda cluster: None, lambda state, m: (state, [Left(0, 0.0)] if isinstance(m, Release) else []))
    with pytest.raises(Livelock, match="100 messages"):
        run(chain(ask, answer), Joined(0, 0.0))


def test_chain_flattens_and_equality_is_that_of_the_text():
    a, b, c = ssp(3), parameter_server(2), local_steps(4)
    assert chain(chain(a, b), c) == chain(a, chain(b, c)) == chain(a, b, c)
    assert chain(a, b, c).layers == (a, b, c)
    assert hash(chain(a, b)) == hash(chain(ssp(3), parameter_server(2)))
    assert ssp(3) != ssp(4) and ssp(3) != "ssp(3)"


@pytest.mark.parametrize("given", [bsp, "bsp()", None, 3, Release])
def test_only_strategies_can_be_stacked(given):
    with pytest.raises(Refused, match=r"chain was given .+\. Only strategies .+\. Call .+\.$"):
        chain(given, parameter_server())


def test_a_chain_of_nothing_is_refused():
    with pytest.raises(Refused, match="given no strategy"):
        chain()


# -- rewrites ---------------------------------------------------------------------------------------------------


def three(key: str) -> list:
    first = Compute((key, 1), 0)
    second = Send((key, 2), 0, 1, "update", (0, 1), after=(first.key,))
    return [first, second, Join((key, 3), after=(second.key,))]


def replaced(change, *tasks):
    layer = rewrite(change)
    state, out = layer.init(CLUSTER), []
    for task in tasks:
        state, replies = layer.step(state, task)
        out.extend(replies)
    return layer, state, out


def test_what_waited_for_a_replaced_task_waits_for_all_that_stand_in_its_place():
    def doubled(task):
        if isinstance(task, Send):
            return [Send((*task.key, half), 0, 1, "update", (half, half + 1), after=task.after) for half in (0, 1)]
        return [task]

    _, _, out = replaced(doubled, *three("a"))
    assert [task.after for task in out] == [(), (("a", 1),), (("a", 1),), (("a", 2, 0), ("a", 2, 1))]


def test_what_waited_for_a_removed_task_waits_for_what_that_waited_for():
    _, _, out = replaced(lambda task: [] if isinstance(task, Send) else [task], *three("a"))
    assert [(task.key, task.after) for task in out] == [(("a", 1), ()), (("a", 3), (("a", 1),))]
    _, _, out = replaced(lambda task: [task] if isinstance(task, Join) else [], *three("a"))
    assert [(task.key, task.after) for task in out] == [(("a", 3), ())]


def test_names_are_forgotten_at_the_next_event():
    layer, state, _ = replaced(lambda task: [] if isinstance(task, Send) else [task], *three("a"))
    assert layer.step(state, Joined(0, 0.0))[0] == layer.init(CLUSTER)


def test_a_rewrite_may_know_the_cluster():
    layer = rewrite(lambda workers, task: [task] * len(workers), lambda cluster: cluster.workers)
    task = Compute(("compute", 0, 1), 0)
    assert layer.step(layer.init(CLUSTER), task)[1] == [task, task]


# -- texts ------------------------------------------------------------------------------------------------------


def test_the_text_of_a_strategy_is_its_call_without_defaults():
    assert repr(parameter_server()) == repr(parameter_server(1)) == "parameter_server()"
    assert repr(parameter_server(place="separate")) == "parameter_server(place='separate')"
    assert repr(parameter_server(2, "separate")) == "parameter_server(2, 'separate')"
    assert repr(ssp(staleness=float("inf"))) == "ssp(inf)"


def test_text_of_arguments():
    assert text([(0, 1), (1, 2)]) == "[[0, 1], [1, 2]]"
    assert text(float("-inf")) == "-inf"
    assert text((True, None, "a", Fraction(1, 4))) == "[True, None, 'a', 0.25]"
    assert text(ring_neighbours) == "ring_neighbours"
    with pytest.raises(Refused, match=r"The function '?<lambda>'? .+\. A strategy is saved .+\. Define .+\.$"):
        text(lambda worker: ())


def test_a_strategy_of_ones_own_keeps_its_call_and_its_first_line():
    @strategy
    def patient(slack: int, *more: int, loud: bool = False) -> Strategy:
        """Wait a little.

        And then some.
        """
        return bsp()

    assert repr(patient(2)) == "patient(2)"
    assert repr(patient(2, 5, 6, loud=True)) == "patient(2, 5, 6, loud=True)"
    assert patient(1).doc == "Wait a little." and patient.__name__ == "patient"
    assert patient(1).kind == "policy"


def test_explain_says_what_each_layer_is_hears_and_answers():
    lines = explain(chain(bsp(), all_reduce(ring), local_steps(2))).splitlines()
    assert len(lines) == 6
    assert [line.split()[1] for line in lines[::2]] == ["policy", "exchange", "rewrite"]
    assert "Ready" in lines[1] and "Commit" in lines[3] and "tasks" in lines[5]
    assert all(line == line.rstrip() for line in lines)
    assert explain(bsp()).startswith("bsp()  ")

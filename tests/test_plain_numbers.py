"""Numbers of NumPy are as good as those of Python: equal strategies, conditions and clusters with plain texts."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import toolkit as tk
from toolkit.core import strategy
from toolkit.core.checks import bound, native

SERVER = tk.chain(tk.bsp(), tk.parameter_server())
WHOLE, F = np.int64, np.float32

PAIRS = [
    (lambda i, f: tk.ssp(i(3)), "ssp(3)"),
    (lambda i, f: tk.dssp(i(1), i(3), True), "dssp(1, 3)"),
    (lambda i, f: tk.elastic_bsp(i(4)), "elastic_bsp(4)"),
    (lambda i, f: tk.backup(spares=i(1)), "backup(1)"),
    (lambda i, f: tk.switch(i(9), tk.bsp(), tk.asp()), "switch(9, bsp(), asp())"),
    (lambda i, f: tk.parameter_server(i(2)), "parameter_server(2)"),
    (lambda i, f: tk.parameter_server(i(1)), "parameter_server()"),  # the default, whoever wrote it
    (lambda i, f: tk.gossip([(i(0), i(1)), (i(1), i(2))]), "gossip([[0, 1], [1, 2]])"),
    (lambda i, f: tk.local_steps(i(3)), "local_steps(3)"),
    (lambda i, f: tk.local_steps(tk.adacomm(i(16))), "local_steps(adacomm(16))"),
    (lambda i, f: tk.pipeline(i(2), i(3)), "pipeline(2, 3)"),
    (lambda i, f: tk.compress(tk.top_k(f(0.25))), "compress(top_k(0.25))"),
    (lambda i, f: tk.random_k(f(0.25), i(7)), "random_k(0.25, 7)"),
    (lambda i, f: tk.qsgd(i(15)), "qsgd(15)"),
    (lambda i, f: tk.power_sgd(i(2)), "power_sgd(2, 'own')"),
    (lambda i, f: tk.seconds(f(1.5)), "seconds(1.5)"),
    (lambda i, f: tk.seconds(i(2)), "seconds(2)"),
    (lambda i, f: tk.updates(i(3)) | tk.iterations(i(4)), "updates(3) | iterations(4)"),
    (lambda i, f: tk.epochs(f(0.5)), "epochs(0.5)"),
    (lambda i, f: tk.reaches("loss", f(0.25)), "reaches('loss', 0.25)"),
]


@pytest.mark.parametrize(("make", "text"), PAIRS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_numpy_describes_equals_what_python_describes(make, text):
    assert repr(make(WHOLE, F)) == repr(make(int, float)) == text
    assert make(WHOLE, F) == make(int, float) == tk.parse(text)


def test_lists_and_truth_of_numpy():
    assert tk.gossip(np.array([[0, 1], [1, 2]])) == tk.gossip([(0, 1), (1, 2)])
    assert tk.dssp(1, 3, np.True_) == tk.dssp(1, 3)
    assert repr(tk.parameter_server(2, np.str_("separate"))) == "parameter_server(2, 'separate')"
    assert tk.constant(np.array([1.0, 2.0])) == tk.constant([1, 2])
    assert tk.zipline({"a": np.array([1.0, 2.0]), "b": [F(2.0)]}) == {"a": 2, "b": 1}


def test_native_reaches_into_lists_and_leaves_the_rest_alone():
    assert repr(native([WHOLE(1), (F(0.5), np.True_), "a", None])) == "[1, (0.5, True), 'a', None]"
    assert native(np.ndarray) is np.ndarray and native(SERVER) is SERVER
    assert isinstance(native(tk.Hop(0, 1, 0, 1, True)), tk.Hop)


def test_a_strategy_of_ones_own_receives_plain_numbers(monkeypatch):
    monkeypatch.setattr(strategy, "NAMES", {})
    received = []

    @tk.strategy
    def patient(slack, *more, share=0.5):
        received.extend([slack, *more, share])
        return tk.bsp()

    assert patient(WHOLE(2), WHOLE(3), share=F(0.25)) == patient(2, 3, share=0.25)
    assert repr(received) == repr([2, 3, 0.25] * 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda i, f: tk.Simulator(i(2), step=i(1)),
        lambda i, f: tk.Simulator(2, step=f(1.5), apply=f(0.5), nbytes=i(400), link=tk.Link(f(0.5), i(1000))),
        lambda i, f: tk.Simulator(2, leaves=[(f(1.0), i(1))], joins=[(f(0.5), i(2))], seed=i(5)),
        lambda i, f: tk.Simulator(
            3, hosts={"s0": i(1), i(2): i(0)}, link=tk.Links(tk.Link(), {(i(0), i(1)): tk.Link()})
        ),
        lambda i, f: tk.Simulator(2, step=tk.slowed(i(1), i(1), f(2.0), f(0.5), f(4.5))),
        lambda i, f: tk.Simulator(2, step=tk.recorded({i(0): [f(0.5)], i(1): [i(1)]})),
        lambda i, f: tk.Simulator(2, step=tk.empirical({i(0): [f(0.5)], i(1): [i(1)]}), control=f(0.25)),
        lambda i, f: tk.Simulator(2, step=tk.lognormal(f(0.5), f(0.25), [i(1), i(2)])),
        lambda i, f: tk.Simulator(2, step=tk.exponential(f(0.5), np.array([1, 2]) if i is WHOLE else [1, 2])),
    ],
)
def test_clusters_of_numpy_run_as_those_of_python(make):
    ours, theirs = make(int, float), make(WHOLE, F)
    assert ours == theirs and repr(ours) == repr(theirs)
    first, second = (tk.simulate(SERVER, on, until=tk.updates(3)) for on in (ours, theirs))
    assert first.trace.equals(second.trace)


@pytest.mark.parametrize("schedule", [tk.ring, tk.tree, tk.halving_doubling])
def test_hops_are_plain(schedule):
    assert repr(schedule(WHOLE(5))) == repr(schedule(5))


def test_the_arguments_of_a_call_are_plain():
    call = bound("f", inspect.signature(lambda a, *, b: 0), [WHOLE(1)], {"b": F(0.5)})
    assert repr(dict(call.arguments)) == "{'a': 1, 'b': 0.5}"

"""The text of a strategy rebuilds it, and nothing else is read."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.core.conditions import epochs, iterations, reaches, seconds, updates
from toolkit.core.errors import Refused
from toolkit.core.parse import parse
from toolkit.core.strategy import chain
from toolkit.exchanges.all_gather import all_gather
from toolkit.exchanges.all_reduce import all_reduce
from toolkit.exchanges.gossip import gossip
from toolkit.exchanges.parameter_server import parameter_server
from toolkit.exchanges.schedules import halving_doubling, ring, tree
from toolkit.exchanges.topologies import complete_neighbours, random_peer, ring_neighbours, torus_neighbours
from toolkit.policies.asp import asp
from toolkit.policies.backup import backup
from toolkit.policies.bsp import bsp
from toolkit.policies.dssp import dssp
from toolkit.policies.elastic_bsp import elastic_bsp
from toolkit.policies.ssp import ssp
from toolkit.policies.switch import switch
from toolkit.rewrites.codecs import fp16, power_sgd, qsgd, random_k, sign, top_k
from toolkit.rewrites.compress import compress
from toolkit.rewrites.forward_only import forward_only
from toolkit.rewrites.local_steps import adacomm, local_steps
from toolkit.rewrites.pipeline import pipeline

count = st.integers(1, 50)
share = st.floats(1e-6, 1.0)
simple = st.one_of(
    st.builds(bsp),
    st.builds(asp),
    st.builds(backup, st.integers(0, 9)),
    st.builds(ssp, st.one_of(st.integers(0, 99), st.just(math.inf))),
    st.builds(
        lambda low, more, capped: dssp(low, low + more, capped), st.integers(0, 9), st.integers(0, 9), st.booleans()
    ),
    st.builds(elastic_bsp, count),
)
conditions = st.recursive(
    st.one_of(
        st.builds(seconds, st.floats(0.1, 1e6)),
        st.builds(updates, count),
        st.builds(iterations, count),
        st.builds(epochs, st.floats(0.1, 100)),
        st.builds(reaches, st.sampled_from(["loss", "accuracy", "it's"]), st.floats(-10, 10)),
    ),
    lambda inner: st.builds(lambda a, b: a | b, inner, inner),
    max_leaves=4,
)
moments = conditions.filter(lambda condition: condition.budget is None)  # the others hold only at the end of a run
policies = st.recursive(simple, lambda inner: st.builds(switch, st.one_of(count, moments), inner, inner), max_leaves=3)
edges = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5)
exchanges = st.one_of(
    st.builds(parameter_server, count, st.sampled_from(["collocated", "separate"])),
    st.builds(all_reduce, st.sampled_from([ring, tree, halving_doubling])),
    st.builds(all_gather),
    st.builds(gossip, st.sampled_from([ring_neighbours, torus_neighbours, complete_neighbours, random_peer])),
    st.builds(gossip, edges),
)
codecs = st.one_of(
    st.builds(top_k, share),
    st.builds(random_k, share, st.integers(0, 9)),
    st.builds(sign),
    st.builds(qsgd, st.integers(1, 127)),
    st.builds(power_sgd, count, st.sampled_from(["own", "shared"])),
    st.builds(fp16),
)
rewrites = st.one_of(
    st.builds(local_steps, count),
    st.builds(local_steps, st.builds(adacomm, count)),
    st.builds(compress, codecs),
    st.builds(pipeline, count, count),
    st.builds(forward_only),
)


@given(policies, exchanges, st.lists(rewrites, max_size=3))
def test_parsing_the_text_of_any_chain_gives_an_equal_chain(policy, exchange, more):
    strategy = chain(policy, exchange, *more)
    again = parse(repr(strategy))
    assert again == strategy
    assert [layer.spec for layer in again.layers] == [layer.spec for layer in strategy.layers]
    assert [layer.kind for layer in again.layers] == [layer.kind for layer in strategy.layers]


@given(conditions)
def test_parsing_the_text_of_any_condition_gives_an_equal_condition(condition):
    again = parse(repr(condition))
    assert repr(again) == repr(condition)
    assert again.budget == condition.budget


def test_other_spellings_give_the_same_strategy():
    wanted = chain(dssp(3, 15), parameter_server(2))
    assert parse(" chain(dssp(lower=3, upper=15), parameter_server(shards=2)) ") == wanted
    assert parse("chain(dssp(3, 15, capped=True),\n      parameter_server(2, 'collocated'))") == wanted
    assert parse("chain(chain(dssp(3, 15)), parameter_server(2))") == wanted
    assert parse("gossip([[0, 1], [1, 2]])") == gossip([(0, 1), (1, 2)])


@pytest.mark.parametrize(
    "source",
    [
        "",
        "bsp",
        "3",
        "'bsp()'",
        "[bsp()]",
        "chain(bsp(), nonsense())",
        "nonsense()",
        "nonsense",
        "chain(bsp(), all_reduce(star_of_nothing))",
        "ssp(1 + 2)",
        "ssp(2 ** 99)",
        "ssp(len('abc'))",
        "chain(*[bsp()])",
        "dssp(**{'lower': 1, 'upper': 2})",
        "ssp(staleness=1, **{})",
        "(lambda: bsp())()",
        "tk.bsp()",
        "bsp().layers",
        "bsp() if True else asp()",
        "[bsp() for x in [1]]",
        "__import__('os').getcwd()",
        "eval('bsp()')",
        "bsp(); asp()",
        "bsp(",
        "ssp(b'3')",
        "ssp(...)",
        "ssp({1})",
        "ssp(not 3)",
        "ssp(f'{3}')",
        "bsp(\x00)",
        "ssp(" * 500 + "3",
    ],
)
def test_anything_but_a_call_of_known_names_with_literals_is_refused(source):
    with pytest.raises(Refused) as caught:
        parse(source)
    assert len(re.findall(r"\.(?: |$)", str(caught.value))) >= 2


@pytest.mark.parametrize("source", ["ssp()", "bsp(3)", "ssp(1, staleness=2)", "dssp(1)"])
def test_arguments_that_do_not_fit_are_refused(source):
    with pytest.raises(Refused, match=r"^\w+ was called with arguments that do not fit: .+\. .+\. Look at help.+\.$"):
        parse(source)


@pytest.mark.parametrize(
    "source", ["ssp(-1)", "dssp(4, 2)", "compress(top_k(2.0))", "parameter_server(0)", "seconds(-3)"]
)
def test_values_are_checked_as_in_a_call(source):
    with pytest.raises(ValueError):
        parse(source)

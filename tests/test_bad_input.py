"""What cannot work is refused, in three sentences, before anything is trained."""

from __future__ import annotations

import re

import numpy as np
import optax
import pytest
from flax import nnx

import toolkit as tk
from toolkit.problems.measures import cross_entropy

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.arange(12, dtype=np.int32) % 3
POINTS = tk.problems.quadratic(dim=6, rows=64, batch=4)
RING = "chain(bsp(), all_reduce(ring))"
SERVER = "chain(asp(), parameter_server())"


def linear(rngs: nnx.Rngs) -> nnx.Module:
    return nnx.Linear(4, 3, rngs=rngs)


def own(**changes):
    given = {"model": linear, "loss": cross_entropy, "train": (X, Y), "test": (X, Y), "batch": 4}
    return tk.problem(**(given | changes))


def own_optimizer(update):
    return optax.GradientTransformation(lambda params: (), update)


def refused(says: str, action) -> None:
    """It is an error of type or value whose message is three sentences."""
    with pytest.raises((ValueError, TypeError), match=says) as found:
        action()
    message = str(found.value)
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z'\"(])", message.strip())
    assert len(sentences) >= 3, message
    assert message.rstrip().endswith((".", ").", "`")), message


def train(strategy=RING, problem=POINTS, **options):
    given = {"optimizer": "sgd(0.1)", "on": tk.Simulator(4), "until": tk.updates(2), "progress": False}
    text = tk.parse(strategy) if isinstance(strategy, str) else strategy
    return tk.train(problem, text, **(given | options))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": 0}, "The batch is 0"),
        ({"batch": 13}, "13 and there are 12 rows"),
        ({"train": (X, Y + 1)}, "labels go from 1 to 3"),
        ({"train": (X, Y - 1)}, "labels go from -1 to 1"),
        ({"train": (np.where(X > 1, np.nan, X), Y)}, "NaN or infinite"),
        ({"train": (X, Y[:5])}, "equal length"),
        ({"train": (X[:0], Y[:0])}, "0 rows"),
        ({"train": (X[:, :3], Y)}, "does not accept training inputs"),
        ({"train": (X, X)}, "loss fails on outputs"),
        ({"train": X}, "Pass a pair"),
        ({"loss": lambda o, t: o}, "one value per row"),
        ({"blocks": ("body",)}, "not modules"),
    ],
)
def test_problems_that_do_not_fit(changes, says):
    refused(says, lambda: own(**changes))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"clock": "rounds"}, "clock='rounds'"),
        ({"scaling": "sum"}, "scaling='sum'"),
        ({"state": "global"}, "state='global'"),
        ({"on_loss": "ignore"}, "on_loss='ignore'"),
        ({"deal": "rows"}, "deal='rows'"),
        ({"deal": 3}, "deal=3"),
        ({"evaluate": 5}, "evaluate=5"),
        ({"evaluate": 0}, "evaluate=0"),
        ({"evaluate": False}, "evaluate=False"),
        ({"evaluate": ""}, "evaluate=''"),
        ({"evaluate": []}, r"evaluate=\[\]"),
        ({"evaluate": tk.reaches("loss", 0.1)}, "no interval"),
        ({"evaluate": tk.updates(2) | tk.reaches("loss", 0.1)}, "no interval"),
        ({"until": 5}, "until=5"),
        ({"until": tk.reaches("acuracy", 0.9)}, "does not measure"),
        ({"until": tk.updates(2) | tk.reaches("accuracy", 0.9)}, "does not measure"),
        ({"on": 4}, "on=4"),
        ({"on": tk.Simulator}, "no cluster"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"optimizer": "sdg(0.1)"}, "sdg"),
        ({"optimizer": "sgd"}, "cannot be used"),
        ({"optimizer": "sgd("}, "cannot be used"),
        ({"optimizer": "exponential_decay(0.1, 10, 0.5)"}, "cannot be used"),
        ({"optimizer": "__import__('os').getcwd()"}, "cannot be used"),
        ({"optimizer": 0.1}, "it is a float"),
        ({"outer": "momentum(0.9)"}, "momentum"),
        ({"optimizer": "lbfgs()"}, "cannot make a step"),
        ({"optimizer": "polyak_sgd()"}, "cannot make a step"),
        ({"optimizer": "lookahead(sgd(0.1), 3, 0.5)"}, "cannot make a step"),
        ({"optimizer": "sgd('a')"}, "cannot make a step"),
        ({"outer": "lbfgs()"}, "outer optimizer 'lbfgs"),
        ({"optimizer": own_optimizer(lambda u, s, p: None)}, "cannot make a step"),
        ({"optimizer": own_optimizer(lambda u, s, p: (u[:1], s))}, r"float32\[1\] for parameters float32\[6\]"),
        ({"optimizer": own_optimizer(lambda u, s, p: (u.astype(int), s))}, "int32"),
        ({"optimizer": own_optimizer(lambda u, s: (u, s))}, "cannot make a step"),
        ({"optimizer": own_optimizer(lambda u, s, p: {}["k"])}, "cannot make a step"),
        ({"optimizer": optax.GradientTransformation(lambda p: 1 / 0, lambda u, s, p: (u, s))}, "cannot make a step"),
        ({"correction": "elastic(0.5)"}, "correction='elastic"),
        ({"correction": tk.delay_compensation()}, "without servers"),
        ({"correction": tk.scale_by_staleness()}, "without servers"),
        ({"correction": tk.elastic(0.5)}, "without servers"),
        ({"strategy": SERVER, "correction": tk.elastic(0.5)}, "without local steps"),
        ({"problem": (X, Y)}, "no problem"),
        ({"problem": own(batch=4), "deal": "shards", "on": tk.Simulator(6)}, "no worker owns more than 2"),
        ({"strategy": "chain(bsp(), all_reduce(ring), pipeline(2))"}, "2 stages were asked for a model of 1 block"),
        ({"strategy": "chain(bsp(), parameter_server(7))"}, "7 shards"),
        ({"strategy": tk.chain(tk.bsp(), tk.local_steps(2))}, "one policy above one exchange"),
        ({"strategy": tk.bsp()}, "one policy above one exchange"),
        ({"strategy": tk.all_reduce(tk.ring)}, "one policy above one exchange"),
        ({"strategy": 3}, "3 is not a strategy"),
        ({"strategy": "chain(bsp(), gossip([(0, 1), (2, 3)]))"}, "reaches the workers"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_training_that_cannot_work(options, says):
    refused(says, lambda: train(**options))


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        ("chain(bsp(), all_reduce(ring), compress(top_k(0.1)))", "cannot shrink the updates of an all_reduce"),
        ("chain(asp(), all_reduce(ring))", "cannot merge stale updates"),
    ],
)
def test_what_is_refused_at_the_first_merge_ends_the_run(strategy, says):
    with pytest.raises(ValueError, match=says) as found:
        train(strategy, on=tk.Simulator(3, step=tk.constant([1.0, 2.0, 3.0])), until=tk.updates(9))
    assert len(found.value.run.trace) > 0


def test_an_unknown_option_is_refused():
    refused("scalling is no option of training", lambda: train(scalling="one"))


@pytest.mark.parametrize(
    "text", ["chain(bsp(), all_reduce(rign))", "bsp", "chain(bsp(), open('x'))", "chain(bsp(", "1 + 1", ""]
)
def test_texts_of_no_strategy(text):
    with pytest.raises(ValueError, match=r"cannot be read|is not"):
        tk.parse(text)


def test_nothing_to_compare():
    refused(
        "no mapping with a strategy",
        lambda: tk.compare({}, POINTS, optimizer="sgd(0.1)", on=tk.Simulator(2), until=tk.updates(1)),
    )


def test_an_update_that_is_not_finite_names_worker_iteration_and_staleness():
    action = lambda: train(SERVER, optimizer=optax.sgd(float("inf")), until=tk.updates(20))  # noqa: E731
    refused(r"update of worker \d in its iteration \d+ is not finite: loss .*, norm .*, staleness \d", action)


def test_workers_that_all_leave_end_the_run_with_an_error():
    on = tk.Simulator(2, leaves=[(1.5, 0), (1.6, 1)])
    with pytest.raises(TimeoutError, match="Nothing more happens"):
        train(on=on, until=tk.updates(50))


def test_folders(tmp_path):
    run = train()
    run.save(tmp_path / "run")
    refused("never overwritten silently", lambda: run.save(tmp_path / "run"))
    refused("has no run.json", lambda: tk.load(tmp_path / "nothing"))
    for name in ("trace.parquet", "params.npz", "run.json"):
        copy = tmp_path / f"damaged {name}"
        run.save(copy)
        data = (copy / name).read_bytes()
        (copy / name).write_bytes(data[: len(data) // 2])
        refused(re.escape(name), lambda copy=copy: tk.load(copy))
        (copy / name).unlink()
        refused(re.escape(name), lambda copy=copy: tk.load(copy))

"""Messages are immutable plain data, and survive the way through text and back."""

from __future__ import annotations

import inspect
import json
import pickle
from dataclasses import fields

import pytest

from toolkit.core import messages
from toolkit.core.errors import Refused
from toolkit.core.messages import Action, Compute, Done, Event, Join, Release, Send, Stage, Ticket
from toolkit.core.plain import plain, restore

TICKET = Ticket(2, 16, 8, shard=None)
VALUES = {
    "worker": 3,
    "time": 1.5,
    "facts": {"samples": 8, "loss": 0.25, "applied": (1, 2)},
    "name": "loss",
    "value": 0.5,
    "round": 7,
    "stale": 2,
    "group": frozenset({1, 11, 2}),
    "workers": frozenset({0}),
    "key": ("push", 3, 17, "s0"),
    "after": (("compute", 3, 17), ("x", 1)),
    "parts": ((0, 5), (5, 9)),
    "codec": "top_k(0.1)",
    "tickets": (TICKET, Ticket(2, 24, 1, 4)),
    "weights": (8.0, 5.0),
    "clocks": (17, 17),
    "staleness": (0, 1),
    "sources": (0, "s1", "3.1"),
    "task": Join(("ready", 3, 17), about=(3,), after=(("compute", 3, 17),)),
}
CLASSES = [
    cls
    for _, cls in inspect.getmembers(messages, inspect.isclass)
    if issubclass(cls, (Event, Action, Ticket)) and cls.__module__ == messages.__name__
]


def sample(cls: type):
    """A message whose every field differs from its default where a value is known."""
    given = {f.name: VALUES[f.name] for f in fields(cls) if f.name in VALUES}
    if "group" in given and cls.__name__ in ("Reduce", "Apply"):
        given["group"] = (3, "s0")
    simple = {"str": "word", "int": 4, "float": 2.5, "bool": True, "Span": (2, 6), "PlaceName": "3.1", "Worker": 5}
    for f in fields(cls):
        if f.name not in given:
            given[f.name] = simple.get(str(f.type), (1, 2))
    return cls(**given)


def test_the_vocabulary_is_complete():
    assert {"Joined", "Done", "Ready", "Release", "Compute", "Stage", "Chunk", "Join", "Ticket"} <= {
        c.__name__ for c in CLASSES
    }


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_plain_and_restore_are_inverse_also_through_text_and_pickle(cls):
    message = sample(cls)
    data = plain(message)
    assert restore(data) == message
    assert restore(json.loads(json.dumps(data))) == message
    assert pickle.loads(pickle.dumps(message)) == message
    assert type(restore(data)) is cls


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_messages_cannot_be_changed_and_have_no_room_for_more(cls):
    message = sample(cls)
    assert not hasattr(message, "__dict__")
    for f in fields(cls):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(message, f.name, None)


def test_collections_of_messages_survive_with_their_nesting():
    several = (Release(frozenset({2, 10, 1})), Done(VALUES["task"], 2.0, {"samples": 3}), (TICKET,), "text", None, 1.5)
    assert restore(json.loads(json.dumps(plain(several)))) == several


def test_text_is_never_taken_for_a_message():
    for text in ("Ticket", "", "Release"):
        assert restore(plain((text, 0, 0, 0, None))) == (text, 0, 0, 0, None)
    assert restore(plain({"Ticket": ("Ticket",)})) == {"Ticket": ("Ticket",)}


@pytest.mark.parametrize("data", [["\x00Exec", 1], ["\x00Ticket", 0, 0], ["\x00Ticket"], ["\x00Piece", "a", 1]])
def test_messages_of_another_version_are_refused(data):
    with pytest.raises(Refused, match="vocabulary has no such message"):
        restore(data)


def test_order_in_plain_data_does_not_depend_on_hashes():
    assert plain(frozenset({11, 2, 1})) == ["\x00", 1, 2, 11]


def test_what_a_task_waits_for_and_its_merge_are_named():
    with pytest.raises(TypeError):
        Compute(("compute", 0, 1), 0, (), 1, None, (), False, False, (("x",),))  # type: ignore[call-arg, arg-type]
    assert Send(("k",), 0, 1, "params", (0, 1)).after == ()
    assert Stage(("k",), "0.1", 0, "forward", (1, 2), (0, 1)).round is None

"""The control side of codecs: text, equality, ranges and the formulas of their bytes."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from toolkit.rewrites.codecs import Codec, fp16, power_sgd, qsgd, random_k, sign, top_k

CODECS = [
    top_k(0.01),
    top_k(1),
    random_k(1e-05),
    random_k(0.5, seed=7),
    sign(),
    qsgd(1),
    qsgd(127),
    power_sgd(2),
    power_sgd(1, basis="shared"),
    fp16(),
]


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_text_pickle_and_copy_give_an_equal_codec(codec: Codec) -> None:
    for other in (Codec.of(repr(codec)), pickle.loads(pickle.dumps(codec)), copy.deepcopy(codec)):
        assert other == codec
        assert hash(other) == hash(codec)
        assert repr(other) == repr(codec)


def test_codecs_differ_as_their_texts_do() -> None:
    assert len(set(CODECS)) == len(CODECS) == len({repr(codec) for codec in CODECS})


def test_the_text_is_complete_and_what_one_would_type() -> None:
    assert repr(top_k(0.01)) == "top_k(0.01)"
    assert Codec.of("random_k(0.1)") == random_k(0.1, 0)
    assert Codec.of("power_sgd(rank=2, basis='shared')") == power_sgd(2, "shared")
    assert Codec.of("top_k(1)") == top_k(1.0)


def test_which_codecs_may_be_summed() -> None:
    assert {codec for codec in CODECS if codec.linear} == {
        random_k(1e-05),
        random_k(0.5, 7),
        power_sgd(1, "shared"),
        fp16(),
    }


@pytest.mark.parametrize(
    ("codec", "nbytes"),
    [
        (top_k(0.01), 10_000 * 8),
        (random_k(0.01), 10_000 * 4),
        (sign(), 125_000 + 4),
        (qsgd(15), 1_000_000 + 4),
        (power_sgd(4), 4 * (1000 + 1000) * 4),
        (power_sgd(4, "shared"), 4 * 1000 * 4),
        (fp16(), 2_000_000),
    ],
    ids=str,
)
def test_bytes_of_a_million_single_precision_values(codec: Codec, nbytes: int) -> None:
    assert codec.nbytes(1_000_000) == nbytes


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_bytes_are_none_for_nothing_and_never_fall_with_the_fraction_of_the_span(codec: Codec) -> None:
    assert codec.nbytes(0) == 0
    assert codec.nbytes(1) > 0
    assert codec.nbytes(100, itemsize=8) <= codec.nbytes(10_000, itemsize=8)


def test_the_share_kept_is_that_of_the_decimal_number() -> None:
    """In binary, 0.07 * 100 is a little more than 7, and its ceiling is 8."""
    for percent in range(1, 101):
        assert top_k(float(f"{percent}e-2")).nbytes(100, itemsize=4) == percent * 8
    assert top_k(0.01).nbytes(101, itemsize=4) == 2 * 8


@pytest.mark.parametrize(
    "make",
    [
        lambda: top_k(0.0),
        lambda: top_k(-0.5),
        lambda: top_k(1.01),
        lambda: top_k(float("nan")),
        lambda: top_k(True),
        lambda: top_k("0.1"),  # type: ignore[arg-type]
        lambda: random_k(0),
        lambda: random_k(0.1, seed=-1),
        lambda: random_k(0.1, seed=0.5),  # type: ignore[arg-type]
        lambda: qsgd(0),
        lambda: qsgd(128),
        lambda: qsgd(3.0),  # type: ignore[arg-type]
        lambda: power_sgd(0),
        lambda: power_sgd(1, basis="mine"),
        lambda: Codec("zip").nbytes(10),
        lambda: Codec.of("top_k(2.0)"),
    ],
)
def test_what_is_out_of_range_is_refused_in_three_sentences(make: object) -> None:
    with pytest.raises(ValueError, match=r"\. .+\. .+\.$") as caught:
        make()  # type: ignore[operator]
    assert len(re.findall(r"\.(?: |$)", str(caught.value))) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "top_k",
        "top_k()",
        "top_k(0.1, 2)",
        "top_k(0.1",
        "top_k(0.1) + 1",
        "top_k(0.05 * 2)",
        "top_k(fraction)",
        "top_k(*[0.1])",
        "top_k(**{'fraction': 0.1})",
        "codecs.top_k(0.1)",
        "Codec('top_k', (0.1,))",
        "__import__('os').getcwd()",
        "bsp()",
        "top_k(" + "(" * 300 + "0.1",
    ],
)
def test_only_a_call_of_a_known_name_with_literals_is_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"^.+ (is not|cannot be read|was called with|lies outside).*\. .+\. .+$"):
        Codec.of(text)

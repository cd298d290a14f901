"""Arrays in memory, and what becomes of a user's pair of arrays."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.data.cache import Cache
from toolkit.data.sources import Arrays, Source, source, targets


def test_rows_are_taken_in_the_order_asked_for() -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    inputs, outputs = Arrays(x, y).take(np.array([5, 0, 5, 3]))
    np.testing.assert_array_equal(inputs, x[[5, 0, 5, 3]])
    np.testing.assert_array_equal(outputs, [5, 0, 5, 3])


def test_scale_turns_bytes_into_float32() -> None:
    inputs, _ = Arrays(np.array([[0], [255]], np.uint8), np.arange(2), scale=1 / 255).take(np.arange(2))
    assert inputs.dtype == np.float32
    np.testing.assert_allclose(inputs, [[0], [1]])


def test_taken_rows_are_copies() -> None:
    data = Arrays(np.zeros((2, 1)), np.zeros(2))
    data.take(np.arange(2))[0][:] = 1
    assert not data.x.any()


def test_not_a_number_is_named_by_count_and_first_row() -> None:
    x = np.zeros((5, 2, 2))
    x[3, 1, 0], x[4] = np.nan, np.inf
    with pytest.raises(ValueError, match="inputs hold 5 values that are NaN or infinite, the first in row 3"):
        Arrays(x, np.zeros(5))
    with pytest.raises(ValueError, match=r"targets hold 1 values .* row 0"):
        Arrays(np.zeros((1, 2)), np.array([np.nan]))


@pytest.mark.parametrize(
    "x, y", [(np.zeros((3, 1)), np.zeros(2)), (np.zeros((0, 1)), np.zeros(0)), (np.zeros(()), np.zeros(()))]
)
def test_lengths_must_agree_and_not_be_zero(x: np.ndarray, y: np.ndarray) -> None:
    with pytest.raises(ValueError):
        Arrays(x, y)


def test_words_are_refused() -> None:
    with pytest.raises(TypeError, match="Only numbers"):
        Arrays(np.zeros((2, 1)), np.array(["cat", "dog"]))


def test_source_accepts_pairs_and_sources_and_nothing_else() -> None:
    data = source(([[1.0], [2.0]], [0, 1]))
    assert isinstance(data, Source) and data.chunks == (2,)
    assert source(data) is data
    for wrong in np.zeros((2, 2)), (np.zeros(2),), None:
        with pytest.raises(TypeError, match="pair"):
            source(wrong)


def test_targets_of_a_source_that_only_takes_rows() -> None:
    class Squares:
        rows, chunks = 5, (2, 0, 3)

        def take(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return positions[:, None], positions**2

    np.testing.assert_array_equal(targets(Squares()), [0, 1, 4, 9, 16])


def test_cache_keeps_what_was_used_last_within_its_limit() -> None:
    cache: Cache[int] = Cache(limit=10)
    loads: list[int] = []

    def use(key: int, nbytes: int = 4) -> int:
        return cache.get(key, nbytes, lambda: loads.append(key) or key)  # type: ignore[func-returns-value]

    assert [use(k) for k in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert loads == [1, 2, 3, 2] and cache.held == 8
    use(9, nbytes=100)
    assert cache.held == 100 and 2 not in cache, "one value is always kept"


def test_a_load_that_fails_leaves_nothing_behind() -> None:
    cache: Cache[int] = Cache(limit=10)
    with pytest.raises(ZeroDivisionError):
        cache.get(1, 4, lambda: 1 // 0)
    assert cache.held == 0 and cache.get(1, 4, lambda: 5) == 5

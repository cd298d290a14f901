"""A cache bounded by bytes: what was used last stays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Cache(Generic[T]):
    r"""Values by key; the least recently used go first once more than `limit` bytes are held.

    Room is made *before* a value is loaded, so at most :math:`\max(\text{limit}, \text{largest value})` bytes are
    held at any time; `held` says how many. A pickled cache arrives empty.

    Examples
    --------
    >>> cache = Cache(limit=2)
    >>> [cache.get(key, 1, lambda key=key: key.upper()) for key in "abc"]
    ['A', 'B', 'C']
    >>> "a" in cache, "c" in cache, cache.held
    (False, True, 2)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._values: OrderedDict[Hashable, tuple[int, T]] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Cache[T]], tuple[int]]:
        return type(self), (self.limit,)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable, nbytes: int, load: Callable[[], T]) -> T:
        """The value of `key`, loaded if it is not held; `nbytes` is what it takes."""
        with self._lock:
            if key not in self._values:
                while self._values and self.held + nbytes > self.limit:
                    self.held -= self._values.popitem(last=False)[1][0]
                self._values[key] = (nbytes, load())
                self.held += nbytes
            self._values.move_to_end(key)
            return self._values[key][1]

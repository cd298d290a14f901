"""What an engine asks of the arrays of a run."""

from __future__ import annotations

from typing import Any, Protocol

from toolkit.core.messages import Evaluate, Facts, PlaceName, Task


class Data(Protocol):
    """The arrays of all places, where a run has any."""

    def read(self, place: PlaceName, task: Task) -> Any:
        """What a task takes from a place."""
        ...

    def write(self, place: PlaceName, task: Task, value: Any) -> None:
        """Leave what a task produced at a place."""
        ...

    def facts(self, task: Task, value: Any) -> Facts:
        """What is reported of a task."""
        ...

    def measure(self, task: Evaluate, values: dict[PlaceName, Any]) -> dict[str, float]:
        """The metrics of the model read at some places."""
        ...

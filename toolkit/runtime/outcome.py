"""What a run leaves, whichever runtime performed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from toolkit.core.messages import Event, PlaceName
from toolkit.core.tally import Tally


@dataclass
class Outcome:
    """The rows, events, metrics and parameters of a run.

    `metrics` are (time [s], round, samples, name, value); `resources` one row per second and host; `settings` describe
    the processes; `error` is the exception that ended the run, whose rows up to then are here all the same.
    """

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    metrics: list[tuple[float, int, int, str, float]] = field(default_factory=list)
    resources: list[Mapping[str, Any]] = field(default_factory=list)
    params: np.ndarray | None = None
    local: np.ndarray | None = None
    tally: Tally = field(default_factory=Tally)
    status: str = "finished"
    settings: Mapping[str, Any] = field(default_factory=dict)
    compile_seconds: Mapping[PlaceName, float] = field(default_factory=dict)
    hosts: Mapping[PlaceName, str] = field(default_factory=dict)
    error: BaseException | None = None

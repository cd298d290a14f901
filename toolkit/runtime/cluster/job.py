"""What travels to the agents of a run, as one blob, and how the code of a notebook travels with it."""

from __future__ import annotations

import contextlib
import pickle
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from toolkit.core.conditions import Condition
from toolkit.core.messages import PlaceName, Worker
from toolkit.core.strategy import NAMES, Strategy
from toolkit.exchanges.schedules import SCHEDULES
from toolkit.place import Setup
from toolkit.runtime.process import dumped


@dataclass(frozen=True)
class Job:
    """A run as its agents are told of it.

    `hosts` maps places to hosts; `slowdown` and `pace` [s] pad steps; `deadline` [s] bounds every wait; `named` and
    `schedules` are the user's own functions that tasks speak of by name; `recipe` is kept for the client.
    """

    title: str
    strategy: Strategy
    setup: Setup
    until: Condition
    hosts: Mapping[PlaceName, PlaceName]
    on_loss: str = "stop"
    slowdown: Mapping[Worker, float] = field(default_factory=dict)
    pace: float | None = None
    deadline: float = 60.0
    named: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    schedules: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    recipe: Any = None


def own(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Those that do not come with the toolkit."""
    return {n: f for n, f in functions.items() if not getattr(f, "__module__", "").startswith("toolkit.")}


def pack(value: Any) -> bytes:
    """A value as bytes; code that is not installed travels with it."""
    with by_value(loose()):
        return dumped(value)


def unpack(data: bytes | memoryview) -> Any:
    """What :func:`pack` made; the user's named functions of a job are known from then on."""
    value = pickle.loads(data)
    if isinstance(value, Job):
        NAMES.update(value.named)
        SCHEDULES.update(value.schedules)
    return value


def loose() -> list[ModuleType]:
    """Modules that other machines may not have: not installed, not of Python, not of the toolkit."""
    paths = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    known = [Path(path).resolve() for path in paths] + [Path(__file__).resolve().parents[2]]
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in ("__main__", "__mp_main__") or not file or not file.endswith(".py") or module.__name__ != name:
            continue
        path = Path(file).resolve()
        if not any(path.is_relative_to(place) for place in known):
            found.append(module)
    return found


@contextlib.contextmanager
def by_value(modules: list[ModuleType]) -> Iterator[None]:
    """Pickle what these modules define by value and not by name."""
    registered = cloudpickle.list_registry_pickle_by_value()
    fresh = [module for module in modules if module.__name__ not in registered]
    for module in fresh:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in fresh:
            cloudpickle.unregister_pickle_by_value(module)

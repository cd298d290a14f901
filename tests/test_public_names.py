"""Every public name is documented, and every example in a docstring runs as printed."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flax import nnx

ROOT = Path(__file__).parents[1]

# Their examples need a cluster; they are run by the tests of the runtime.
NEED_A_CLUSTER = {"attach", "calibrate"}


def public() -> Iterator[tuple[str, Any]]:
    """The names of the toolkit, and those of its public modules, with what they stand for."""
    tk = importlib.import_module("toolkit")
    for name in tk.__all__:
        value = getattr(tk, name)
        if isinstance(value, ModuleType):
            for inner in value.__all__:
                yield f"{name}.{inner}", getattr(value, inner)
        elif not name.startswith("__"):
            yield name, value


def docstrings() -> Iterator[tuple[str, str, str]]:
    """Module, qualified name and text of every docstring that holds an example, without importing anything."""

    def visit(module: str, name: str, node: ast.AST) -> Iterator[tuple[str, str, str]]:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ">>>" in (text := ast.get_docstring(node) or ""):
                yield module, name or module, text
            for child in node.body:
                yield from visit(module, f"{name}.{getattr(child, 'name', '')}".strip("."), child)

    for path in sorted((ROOT / "toolkit").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        yield from visit(module, "", ast.parse(path.read_text()))


EXAMPLES = list(docstrings())


@cache
def homes() -> frozenset[tuple[str, str]]:
    """Module and qualified name of what the public names stand for."""
    return frozenset((thing.__module__, thing.__qualname__) for _, thing in public())


def session(module: str, name: str) -> dict[str, Any]:
    """What an example may use: of a public name, or a part of it, nothing; within the package, its module and tk."""
    parts = name.split(".")
    if any((module, ".".join(parts[:end])) in homes() for end in range(1, len(parts) + 1)):
        return {"__name__": "__main__"}
    return {**vars(importlib.import_module(module)), "tk": importlib.import_module("toolkit")}


def parameters(thing: Any) -> set[str]:
    """What a caller gives; the metaclass of flax modules hides it, so that theirs is read from ``__init__``."""
    module = inspect.isclass(thing) and issubclass(thing, nnx.Module)
    names = inspect.signature(thing.__init__ if module else thing).parameters
    return {name for name in names if not name.startswith("_")} - ({"self"} if module else set())


def faults(name: str, thing: Any) -> list[str]:
    """What a public docstring lacks."""
    text = inspect.getdoc(thing) or ""
    summary, _, rest = text.partition("\n")
    found = []
    if not summary.endswith(".") or len(summary) > 88 or rest[:1].strip():
        found.append("does not begin with one sentence of at most 88 characters")
    if not re.search(r"^Examples\n-{8}\n(.*\n)*?>>> ", text, re.MULTILINE):
        found.append("has no Examples section with an example")
    if inspect.isfunction(thing) or inspect.isclass(thing):
        section = re.search(r"^Parameters\n-{10}\n((?:.*\n?)*?)(?=^\w+\n-{3,}$|\Z)", text, re.MULTILINE)
        entries = re.findall(r"^([\w*, ]+?)(?: *:.*)?$", section[1] if section else "", re.MULTILINE)
        listed = {word.strip(" *") for entry in entries for word in entry.split(",")}
        if missing := parameters(thing) - listed:
            found.append(f"does not list the parameters {sorted(missing)}")
    own = [key for key in vars(thing) if not key.startswith("_")] if inspect.isclass(thing) else []
    methods = [key for key in own if inspect.isroutine(vars(thing)[key]) or isinstance(vars(thing)[key], property)]
    if silent := [key for key in methods if not inspect.getdoc(getattr(thing, key))]:
        found.append(f"does not say what these do: {silent}")
    return [f"{name} {fault}" for fault in found]


def test_public_names_are_said_once_and_exist():
    tk = importlib.import_module("toolkit")
    assert len(tk.__all__) == len(set(tk.__all__)), "a name stands twice in __all__"
    assert [name for name in tk.__all__ if not hasattr(tk, name)] == []


def test_public_names_have_complete_docstrings():
    assert [fault for name, thing in public() for fault in faults(name, thing)] == []


def test_what_a_docstring_lacks_is_found():
    def bare(depth: int) -> None: ...

    def whole(depth: int, *rest: int) -> None:
        """Something that is deep.

        Parameters
        ----------
        depth, *rest : int [m], >= 0
            How deep.

        Examples
        --------
        >>> 1
        1
        """

    class Silent:
        def method(self) -> None: ...

        @property
        def size(self) -> int: ...

    class Network(nnx.Module):
        """A flax module."""

        def __init__(self, rngs: nnx.Rngs, *, width: int) -> None: ...

    assert len(faults("bare", bare)) == 3
    assert "['rngs', 'width']" in faults("Network", Network)[-1]
    assert "['method', 'size']" in faults("Silent", Silent)[-1]
    assert faults("whole", whole) == []


def test_examples_of_public_names_are_run_as_in_a_fresh_session():
    assert homes() - {(module, name) for module, name, _ in EXAMPLES} == set()
    assert session("toolkit.policies.ssp", "ssp") == session("toolkit.run", "Run.summary") == {"__name__": "__main__"}
    assert "Progress" in session("toolkit.core.progress", "Progress")


def test_only_examples_that_need_a_cluster_are_skipped():
    assert {name for _, name, text in EXAMPLES if "+SKIP" in text} == NEED_A_CLUSTER


@pytest.mark.parametrize(("module", "name", "text"), EXAMPLES, ids=[f"{module}:{name}" for module, name, _ in EXAMPLES])
def test_examples_run_as_printed(module: str, name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    example = doctest.DocTestParser().get_doctest(text, session(module, name), name, module, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(example, out=report.append).failed == 0, "".join(report)

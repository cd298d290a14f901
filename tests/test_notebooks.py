"""Notebooks are thin, stored without outputs, and run."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(
    str(path.relative_to(ROOT))
    for folder in ("notebooks", "case_studies")
    for path in (ROOT / folder).rglob("*.ipynb")
    if ".ipynb_checkpoints" not in path.parts
)

# Parameters with which each notebook runs in seconds. A parameter `folder` is set to a temporary one.
NOTEBOOK_PARAMETERS: dict[str, dict[str, Any]] = {
    "notebooks/00_first_run.ipynb": {"seconds": 3.0, "workers": 2, "batch": 8},
    "notebooks/01_stragglers.ipynb": {"seconds": 40.0, "seeds": 2},
    "notebooks/09_from_simulator_to_cluster.ipynb": {"workers": 4, "epochs": 0.25},
}
NEED_A_CLUSTER = {"notebooks/00_first_run.ipynb", "notebooks/09_from_simulator_to_cluster.ipynb"}


def code(cell: nbformat.NotebookNode) -> ast.Module:
    """The cell without its line magics."""
    return ast.parse(re.sub(r"(?m)^[%!].*$", "pass", cell.source))


def is_literal(statement: ast.stmt) -> bool:
    """An assignment of a value that papermill can replace."""
    if not isinstance(statement, ast.Assign):
        return False
    try:
        ast.literal_eval(statement.value)
    except ValueError:
        return False
    return True


def reaches_inside(node: ast.AST) -> bool:
    """An import of a submodule of the toolkit."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(name.startswith("toolkit.") for name in names)


def faults(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """What is wrong with a notebook, in words."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    nodes = [node for cell in cells for node in ast.walk(code(cell))]
    if any(cell.outputs for cell in cells):
        yield "stores outputs"
    if any(cell.execution_count is not None for cell in cells):
        yield "stores execution counts"
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        yield f"has {len(tagged)} cells tagged parameters"
    if not all(is_literal(statement) for cell in tagged for statement in code(cell).body):
        yield "has a parameter that is no literal"
    if sum(bool(re.match(r"\s*[^#\s]", line)) for cell in cells for line in cell.source.splitlines()) >= 60:
        yield "has 60 lines of code or more"
    definitions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    if long := [node.name for node in definitions if (node.end_lineno or 0) - node.lineno >= 5]:
        yield f"defines over more than five lines {long}"
    if any(reaches_inside(node) for node in nodes):
        yield "imports a submodule of the toolkit"
    last = notebook.cells[-1] if notebook.cells else None
    if (
        last is None
        or last.cell_type != "code"
        or not any(isinstance(node, ast.Assert) for node in ast.walk(code(last)))
    ):
        yield "does not end by asserting its finding"
    kernel = notebook.metadata.get("kernelspec", {})
    if (kernel.get("name"), kernel.get("language")) != ("python3", "python"):  # papermill asks for the language too
        yield "is not for the kernel python3"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_is_thin(name: str):
    assert list(faults(nbformat.read(ROOT / name, as_version=4))) == []


def good() -> nbformat.NotebookNode:
    cells = [
        new_code_cell("%matplotlib inline\nimport toolkit as tk"),
        new_code_cell("workers = 4  # count\nname = 'a'", metadata={"tags": ["parameters"]}),
        new_code_cell("def f(x):\n    return x"),
        new_code_cell("assert f(workers) == 4"),
    ]
    return new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )


SPOILED: dict[str, Callable[[nbformat.NotebookNode], Any]] = {
    "stores outputs": lambda nb: nb.cells[2].outputs.append(nbformat.v4.new_output("stream", text="x")),
    "stores execution counts": lambda nb: nb.cells[2].update(execution_count=3),
    "has 0 cells tagged parameters": lambda nb: nb.cells[1].update(metadata={}),
    "has a parameter that is no literal": lambda nb: nb.cells[1].update(source="workers = len('abcd')"),
    "has 60 lines of code or more": lambda nb: nb.cells[2].update(source="x = 1\n" * 60),
    "defines over more than five lines ['f']": lambda nb: nb.cells[2].update(source="def f(x):\n" + "    x\n" * 5),
    "imports a submodule of the toolkit": lambda nb: nb.cells[2].update(source="from toolkit.core import layout"),
    "does not end by asserting its finding": lambda nb: nb.cells.pop(),
    "is not for the kernel python3": lambda nb: nb.metadata.kernelspec.pop("language"),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_a_fault_is_found(fault: str):
    notebook = good()
    assert list(faults(notebook)) == []
    spoiled = copy.deepcopy(notebook)
    SPOILED[fault](spoiled)
    assert list(faults(spoiled)) == [fault]


def test_every_notebook_has_small_parameters():
    assert sorted(NOTEBOOK_PARAMETERS) == NOTEBOOKS


def runs() -> list[Any]:
    marks = {name: pytest.mark.cluster if name in NEED_A_CLUSTER else pytest.mark.slow for name in NOTEBOOKS}
    return [pytest.param(name, marks=marks[name]) for name in NOTEBOOKS]


@pytest.mark.parametrize("name", runs())
def test_notebook_runs(name: str, tmp_path: Path):
    declared = papermill.inspect_notebook(str(ROOT / name))
    chosen = NOTEBOOK_PARAMETERS[name] | ({"folder": str(tmp_path / "results")} if "folder" in declared else {})
    assert chosen.keys() <= declared.keys(), "papermill would only warn of a parameter that does not exist"
    papermill.execute_notebook(
        str(ROOT / name),
        str(tmp_path / "run.ipynb"),
        chosen,
        kernel_name="python3",
        cwd=str((ROOT / name).parent),
        progress_bar=False,
    )

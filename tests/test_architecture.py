"""Arrows point down: each layer imports only what the table allows it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# layer -> (what it may import of the toolkit, what else beside the standard library); "+" is the layer itself.
# The longest name that fits a module is its layer.
LAYERS: dict[str, tuple[str, str]] = {
    "core": ("+", "immutables msgspec"),
    "policies": ("+ core", "immutables"),
    "exchanges": ("+ core", "immutables"),
    "rewrites": ("+ core", "immutables"),
    "kernels": ("+ core.messages core.layout core.errors core.checks", "jax flax optax numpy"),
    "models": ("+ kernels.convolution kernels.normalization kernels.pooling", "jax flax"),
    "data": ("+ core.messages core.errors core.checks", "numpy"),
    "data.dask": ("data core.messages core.errors", "numpy dask distributed xarray zarr"),
    "problems": ("+ core.errors kernels models data", "jax flax optax numpy sklearn"),
    "place": ("core kernels problems data work", "jax optax numpy"),
    "work": ("+ core kernels data place", "jax numpy cloudpickle"),
    "runtime": ("+ core place trace exchanges.schedules rewrites.codecs", "numpy cloudpickle"),
    "runtime.handle": ("core progress", ""),
    "runtime.cluster": (
        "runtime runtime.handle core place trace exchanges.schedules",
        "numpy pandas dask distributed cloudpickle psutil tornado",
    ),
    "trace": ("core", "pandas numpy pyarrow"),
    "folder": ("core.errors trace", "pandas numpy"),
    "intervals": ("core trace", "pandas numpy"),
    "activity": ("core intervals", "pandas numpy"),
    "metrics": ("core intervals activity", "pandas numpy"),
    "run": ("core trace folder intervals metrics", "pandas numpy"),
    "runs": ("core.errors folder run", "pandas"),
    "progress": ("", "tqdm"),
    "checks": ("core kernels problems place runtime", ""),
    "prepare": ("core checks rewrites kernels data problems place", "jax optax numpy"),
    "recording": ("core kernels problems place prepare runtime trace run", "jax flax numpy pandas"),
    "replaying": ("core kernels problems prepare recording runtime trace run", "jax numpy pandas"),
    "started": ("prepare recording runtime runtime.handle run", ""),
    "training": ("core checks problems prepare recording replaying started runtime runtime.handle trace run runs", ""),
    "calibration": (
        "core checks exchanges policies prepare problems runtime runtime.cluster training",
        "numpy pandas",
    ),
    "sweeping": (
        "core checks place prepare problems progress recording run runs runtime trace training work",
        "numpy pandas immutables",
    ),
    "plots": ("+ intervals metrics run runs", "seaborn matplotlib pandas numpy"),
}
# Packages that are shown as ``tk.models``, ``tk.plots``, ``tk.problems``: their package files import what these hold.
NAMESPACES = {"models", "plots", "problems"}
# The control plane sees time and chance only through its messages.
CONTROL, UNSEEN = {"core", "policies", "exchanges", "rewrites"}, {"time", "datetime", "random", "secrets", "uuid"}


def modules(root: Path) -> dict[str, ast.Module]:
    """Every module under `root` by its dotted name without the leading package: ``core.messages``."""
    names = {path: ".".join(path.relative_to(root).with_suffix("").parts) for path in sorted(root.rglob("*.py"))}
    return {name.removesuffix(".__init__"): ast.parse(path.read_text()) for path, name in names.items()}


def imports(statements: Iterator[ast.AST]) -> Iterator[str]:
    """Full dotted names that the statements import; those from a package count with the name taken out of it."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def layer_of(module: str) -> str | None:
    return max((layer for layer in LAYERS if within(module, {layer})), key=len, default=None)


def upward(tree: dict[str, ast.Module]) -> list[str]:
    """Every import that the table does not allow, as ``module -> import``."""
    wrong = []
    for module, code in tree.items():
        if module == "__init__":
            continue
        layer = layer_of(module)
        if layer is None:
            wrong.append(f"{module} belongs to no layer")
            continue
        inside, outside = (set(text.split()) for text in LAYERS[layer])
        inside = {layer if name == "+" else name for name in inside}
        outside |= set(sys.stdlib_module_names) - (UNSEEN if layer in CONTROL else set())
        for name in imports(ast.walk(code)):
            own = name.startswith("toolkit.")
            if not (within(name.removeprefix("toolkit."), inside) if own else name.split(".")[0] in outside):
                wrong.append(f"{module} -> {name}")
    return wrong


TREE = modules(ROOT / "toolkit")


def test_arrows_point_down():
    assert upward(TREE) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("core.messages", "import numpy"),
        ("core.messages", "import time"),
        ("core.messages", "from toolkit.policies.ssp import ssp"),
        ("core.messages", "from .layout import Layout"),
        ("policies.ssp", "from toolkit.exchanges import gossip"),
        ("exchanges.gossip", "def late():\n    import jax"),
        ("kernels.training", "from toolkit.core.cluster import Cluster"),
        ("kernels.training", "from toolkit.core import cluster"),
        ("data.sampling", "import dask.array"),
        ("runtime.simulator", "import distributed"),
        ("runtime.simulator", "from toolkit.runtime.drive import toolkit; import toolkit.training"),
        ("plots.loss", "from toolkit.training import train"),
        ("plots.loss", "import toolkit"),
        ("helpers_of_all", "import json"),
    ],
)
def test_an_arrow_that_points_up_is_found(module: str, line: str):
    assert len(upward({module: ast.parse(line)})) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("core.messages", "from __future__ import annotations; import math, immutables"),
        ("kernels.training", "from toolkit.core.messages import Span; import jax.numpy as jnp"),
        ("data.dask", "import dask.array; from toolkit.data.sources import Source"),
        ("runtime.cluster.agent", "from distributed import comm; from toolkit.runtime.drive import Drive"),
    ],
)
def test_an_arrow_that_points_down_is_allowed(module: str, line: str):
    assert upward({module: ast.parse(line)}) == []


def test_imports_have_no_cycle():
    arrows = {
        module: {
            target
            for name in imports(iter(code.body))
            for target in (name.removeprefix("toolkit."), name.removeprefix("toolkit.").rpartition(".")[0])
            if name.startswith("toolkit.") and target in TREE
        }
        for module, code in TREE.items()
    }
    TopologicalSorter(arrows).prepare()


def test_modules_are_named_after_what_they_hold():
    vague = {"utils", "util", "common", "base", "helpers", "misc"}
    assert [module for module in TREE if vague & set(module.split("."))] == []


def test_modules_can_be_read_in_one_sitting():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in (ROOT / "toolkit").rglob("*.py")
    }
    assert {path: lines for path, lines in lengths.items() if lines > 300} == {}


def test_every_module_begins_with_a_docstring():
    assert [module for module, code in TREE.items() if not ast.get_docstring(code)] == []


def only_shows(package: str, code: ast.Module) -> bool:
    """Whether a package file holds its docstring and, if it is a namespace, the names it shows from its own modules."""
    rest = code.body[1:]
    if package not in NAMESPACES or not rest:
        return not rest
    *shown, last = rest
    own = all(isinstance(node, ast.ImportFrom) and within(node.module or "", {f"toolkit.{package}"}) for node in shown)
    names = sorted(alias.name for node in shown if isinstance(node, ast.ImportFrom) for alias in node.names)
    listed = isinstance(last, ast.Assign) and ast.unparse(last.targets[0]) == "__all__"
    return own and listed and sorted(ast.literal_eval(last.value)) == names


@pytest.mark.parametrize(
    ("package", "lines", "allowed"),
    [
        ("core", "'Doc.'", True),
        ("core", "'Doc.'\nfrom toolkit.core.parse import parse\n__all__ = ['parse']", False),
        ("plots", "'Doc.'\nfrom toolkit.plots.loss import loss\n__all__ = ['loss']", True),
        ("plots", "'Doc.'\nfrom toolkit.plots.loss import loss\n__all__ = ['waiting']", False),
        ("plots", "'Doc.'\nfrom toolkit.metrics import waiting\n__all__ = ['waiting']", False),
        ("plots", "'Doc.'\nLIMIT = 3", False),
    ],
)
def test_what_a_package_file_holds_beside_names_to_show_is_found(package: str, lines: str, allowed: bool):
    assert only_shows(package, ast.parse(lines)) == allowed


def test_package_files_hold_only_their_docstring():
    packages = [path for path in (ROOT / "toolkit").rglob("*/__init__.py")]
    code = {".".join(path.parent.relative_to(ROOT / "toolkit").parts): ast.parse(path.read_text()) for path in packages}
    assert [package for package, body in code.items() if not only_shows(package, body)] == []
    folders = {path.parent for path in (ROOT / "toolkit").rglob("*.py")} - {ROOT / "toolkit"}
    assert sorted(folders - {path.parent for path in packages} - {ROOT / "toolkit/data/embedded"}) == []

"""pyproject.toml, environment.yml and requirements.lock say the same."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()

# The newest versions seen on conda-forge: an environment that asks for more cannot be solved there.
ON_CONDA_FORGE = {
    "dask": "2026.6.0",
    "flax": "0.12.6",
    "ipywidgets": "8.1.8",
    "jax": "0.10.1",
    "optax": "0.2.8",
}


def requirements(lines: list[str]) -> dict[str, SpecifierSet]:
    return {canonicalize_name(r.name): r.specifier for r in map(Requirement, lines)}


def wanted() -> dict[str, SpecifierSet]:
    groups = [
        PYPROJECT["project"]["dependencies"],
        *PYPROJECT["project"]["optional-dependencies"].values(),
        PYPROJECT["dependency-groups"]["dev"],
    ]
    return requirements([line for group in groups for line in group])


def conda() -> dict[str, SpecifierSet]:
    lines = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert lines[-1] == {"pip": ["-e ."]}, "the last entry installs the toolkit itself"
    return requirements(lines[:-1])


def pins() -> list[tuple[str, Version, str]]:
    """Name, version and the hash lines of every pin in the lock."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)[^\n]*\n((?: +--hash=[^\n]*\n)*)", LOCK, re.MULTILINE)
    return [(canonicalize_name(name), Version(version), hashes) for name, version, hashes in found]


def test_environment_and_pyproject_name_the_same_packages_with_the_same_bounds():
    asked = conda()
    assert asked.pop("pip") == SpecifierSet("")
    assert asked.pop("python") == SpecifierSet(PYPROJECT["project"]["requires-python"])
    assert asked == wanted()


def test_environment_is_what_its_script_prints():
    printed = subprocess.run(
        [sys.executable, ".ci/environment.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (ROOT / "environment.yml").read_text() == printed.stdout, "run `make environment`"


def test_conda_forge_can_meet_the_bounds():
    asked = conda()
    assert {name: version for name, version in ON_CONDA_FORGE.items() if version not in asked[name]} == {}


def test_lock_meets_every_bound():
    locked = pins()
    asked = conda()
    missing = asked.keys() - {name for name, _, _ in locked} - {"pip", "python"}
    assert not missing, f"not in the lock, run `make lock`: {sorted(missing)}"
    broken = [f"{name}=={version}" for name, version, _ in locked if name in asked and version not in asked[name]]
    assert not broken, f"outside the bounds of pyproject.toml, run `make lock`: {broken}"


def test_every_line_of_the_lock_is_a_hashed_pin_and_none_is_an_address():
    lines = [line for line in LOCK.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(lines) == len(pins()) > 50
    assert [name for name, _, hashes in pins() if "--hash=sha256:" not in hashes] == []
    assert "://" not in LOCK and "file:" not in LOCK and " @ " not in LOCK


def test_no_kernel_that_loses_widgets():
    # ipykernel 7.4.0 leaves widgets dead after a cell with top-level await.
    bad = SpecifierSet("==7.4.*")
    assert Version("7.4.0") not in wanted()["ipykernel"]
    assert [version for name, version, _ in pins() if name == "ipykernel" and version in bad] == []

"""Print environment.yml, the conda-forge twin of pyproject.toml: every dependency, extra and development tool."""

from __future__ import annotations

import tomllib
from pathlib import Path


def render(pyproject: dict) -> str:
    """The text of environment.yml; the names of our dependencies on PyPI are those on conda-forge."""
    project = pyproject["project"]
    groups = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        pyproject["dependency-groups"]["dev"],
    ]
    conda = [f"python{project['requires-python']}", "pip", *sorted({line for group in groups for line in group})]
    lines = "\n".join(f"  - {line}" for line in conda)
    return (
        "# Made from pyproject.toml by `make environment`; compared with it in the tests, never solved there.\n"
        f"name: {project['name']}\nchannels:\n  - conda-forge\ndependencies:\n{lines}\n  - pip:\n      - -e .\n"
    )


if __name__ == "__main__":
    print(render(tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())), end="")

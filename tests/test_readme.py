"""The README says what is true: its code runs, its commands and files exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_blocks_of_code_parse():
    assert BLOCKS, "the README shows no code"
    for block in BLOCKS:
        ast.parse(block)


@pytest.mark.slow
@pytest.mark.parametrize("code", [BLOCKS[0], "\n".join(BLOCKS[1:])], ids=["first", "others"])
def test_blocks_run_as_printed(tmp_path: Path, code: str):
    script = tmp_path / "readme.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr


def test_commands_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", "".join(re.findall(r"`[^`]*`", README))))
    assert {"study", "test"} <= named <= targets


def test_files_exist():
    named = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", README)
    assert [name for name in named if not (ROOT / name).exists()] == []

"""Every code block of the README is run, in order, in one empty directory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.local

ROOT = Path(__file__).resolve().parent.parent.parent


class Block(NamedTuple):
    language: str
    code: str


def blocks(path: Path) -> list[Block]:
    return [
        Block(*match) for match in re.findall(r"```(\w*)\n(.*?)```", path.read_text(), re.DOTALL)
    ]


README = blocks(ROOT / "README.md")
COMMANDS = [
    line for block in README if block.language == "bash" for line in block.code.split("\n") if line
]


def test_the_readme_has_the_blocks_that_are_run() -> None:
    """Python, shell and one picture: a block in another language would not be run, so there is none."""
    assert [block.language for block in README].count("python") == 3
    assert {block.language for block in README} == {"python", "bash", ""}
    assert COMMANDS == ["make demo", "make test"]


@pytest.mark.timeout(240)
def test_the_python_blocks_run(tmp_path: Path) -> None:
    """Each block runs as a program of its own, and finds what the ones before it left."""
    for number, block in enumerate(block for block in README if block.language == "python"):
        program = tmp_path / f"block_{number}.py"
        program.write_text(block.code)
        done = subprocess.run(
            [sys.executable, program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{block.code}\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(240)
def test_the_demo_command_runs(tmp_path: Path) -> None:
    """`make demo` works as it stands in the README (here with fewer steps, and not into the checkout)."""
    done = subprocess.run(
        ["make", "--no-print-directory", "demo", f"ARGS=--steps 2 --path {tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    # Two steps may not be enough for a rise, which is exit status 1; anything else is a failure.
    assert done.returncode in {0, 2}, f"{done.stdout}\n{done.stderr}"
    assert "history.jsonl" in done.stdout


def test_the_test_command_is_what_runs_this() -> None:
    """`make test` is the other command of the README, and what CI runs; it exists as a target."""
    subprocess.run(["make", "-n", "test"], cwd=ROOT, check=True, capture_output=True)
    assert "make test" in (ROOT / ".ci" / "run").read_text()

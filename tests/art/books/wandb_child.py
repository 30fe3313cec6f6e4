"""Scripts that use wandb in a process of their own, which knows nothing of this machine's user."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

KEY = "SECRET" * 7  # long enough, and easy to find again

# What every script begins with: `model` makes a model, `log` logs one value of the split val.
PREAMBLE = """
import asyncio, logging, os, sys
import art
logging.basicConfig(level=os.environ.get("LOG_LEVEL", "WARNING"))
def model(name="m", **fields):
    return art.Model(name=name, project="p", base_path=".art", **fields)
async def log(m, value, step=None, split="val"):
    await m.log(metrics={"x": float(value)}, split=split, step=step)
"""


def clean_environment(home: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a user who never used wandb, with `home` for everything."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "HOME": str(home), "TMPDIR": str(home), **variables}


def run_script(
    script: str, home: Path, *, timeout_s: float = 60.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script after the preamble, without a terminal, and return its output and exit code."""
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + script],
        cwd=home,
        env=clean_environment(home, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def warnings_in(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the warnings of the package that a script wrote to stderr."""
    return [line for line in result.stderr.splitlines() if line.startswith("WARNING:art.")]

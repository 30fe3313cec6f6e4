"""Programs of the suite, in processes of their own and outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(cwd: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ARGUMENTS` in a directory; the tests' own modules can be imported."""
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={**environment, "PYTHONPATH": str(ROOT), "PY_COLORS": "0"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

"""How much disk a base install takes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.contestants import (
    OURS,
    RELEASES,
    ROOT,
    MeasurementError,
    build_venv,
    find_python,
    python_of,
)
from benchmarks.workload.measure import MB

if TYPE_CHECKING:
    from pathlib import Path

_SIZES = """
import json, pathlib
from importlib.metadata import distributions

def size(path):
    return path.stat().st_blocks * 512 if path.exists() else 0

print(json.dumps({
    d.metadata["Name"]: sum(size(pathlib.Path(f.locate())) for f in d.files or [])
    for d in distributions()
}))
"""


def measure_install(scratch: Path) -> tuple[dict[str, float | None], dict[str, float]]:
    """Install ours and the peers without extras.

    Returns:
        MB of site-packages by contestant, less a bare environment's; None where it could not be installed.
        MB of ours by distribution, largest first.
    """
    wheel = _build_wheel(scratch)
    sizes: dict[str, float | None] = {}
    for release in RELEASES:
        requirement = str(wheel) if release.name == OURS else release.requirements[0]
        venv = scratch / f"install-{release.name}"
        try:
            sizes[release.name] = _installed_mb(venv, requirement, release.python)
        except MeasurementError as error:
            print(f"  failed: {error}", file=sys.stderr)
            sizes[release.name] = None
    return sizes, _by_distribution(scratch / f"install-{OURS}")


def _build_wheel(scratch: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(scratch)]
    done = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MeasurementError(f"the wheel could not be built: {done.stderr.strip()}")
    (wheel,) = scratch.glob("*.whl")
    return wheel


def _installed_mb(venv: Path, requirement: str, oldest: tuple[int, int]) -> float:
    base = find_python(oldest)
    bare = venv.with_name(f"{venv.name}-bare")
    build_venv(bare, base)
    build_venv(venv, base, requirement)
    return _site_packages_mb(venv) - _site_packages_mb(bare)


def _site_packages_mb(venv: Path) -> float:
    (site_packages,) = venv.glob("lib/python*/site-packages")
    return sum(path.lstat().st_blocks * 512 for path in site_packages.rglob("*")) / MB


def _by_distribution(venv: Path) -> dict[str, float]:
    if not venv.exists():
        return {}
    done = subprocess.run(
        [str(python_of(venv)), "-c", _SIZES], capture_output=True, text=True, check=True
    )
    sizes: dict[str, int] = json.loads(done.stdout)
    bare = {"pip", "setuptools"}
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    return {name: size / MB for name, size in largest if name not in bare}

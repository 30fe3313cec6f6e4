"""Who is measured, each in an environment of its own, and how one measurement is run in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
VENVS = Path(__file__).resolve().parent / ".venvs"
OURS = "ours"
_TIMEOUT_S = 1800


class MeasurementError(Exception):
    """A measurement did not come to its end; the message is the last line that it wrote."""


@dataclass(frozen=True)
class Release:
    """What is installed into an environment of its own.

    Attributes:
        name: "ours", or upstream's version.
        requirements: For pip: the base install first, then what it cannot write and read a log without.
        python: The oldest Python that it runs on.
    """

    name: str
    requirements: tuple[str, ...]
    python: tuple[int, int]

    def fingerprint(self) -> str:
        """Return a text that changes when the environment must be built again."""
        ours = (ROOT / "pyproject.toml").read_text() if self.name == OURS else ""
        return "\n".join([*self.requirements, ours])


RELEASES = (
    # Not the environment that runs the benchmark: what else is installed changes what an import costs.
    Release(OURS, ("--editable", str(ROOT)), (3, 11)),
    Release("0.5.18", ("openpipe-art==0.5.18", "pyarrow", "duckdb", "numpy"), (3, 11)),
    Release("0.5.23", ("openpipe-art==0.5.23", "pyarrow", "duckdb", "numpy"), (3, 12)),
)
PEERS = tuple(release.name for release in RELEASES if release.name != OURS)


@dataclass(frozen=True)
class Contestant:
    """One environment with one implementation of `art`.

    Attributes:
        name: "ours", or the peer's version.
        python: Its interpreter.
    """

    name: str
    python: Path

    def measure(self, measurement: str, **options: object) -> dict[str, Any]:
        """Run one measurement of `benchmarks.workload` in a fresh process and return what it found.

        Raises:
            MeasurementError: It failed.
        """
        pairs = [f"{key}={value}" for key, value in options.items()]
        output = self._run("-m", "benchmarks.workload", measurement, *pairs)
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found

    def describe(self) -> str:
        """Return the versions of Python and of the libraries that matter most."""
        code = (
            "import platform; from importlib.metadata import version as v; "
            "print(f'Python {platform.python_version()}', *(f'{n} {v(n)}' for n in "
            "('pyarrow', 'polars', 'pydantic', 'openai')), sep=', ')"
        )
        return f"{self.name}: {self._run('-c', code).strip()}"

    def _run(self, *arguments: str) -> str:
        return run_to_end(self.name, [str(self.python), *arguments], _environment(), _TIMEOUT_S)


def run_to_end(name: str, command: list[str], environment: dict[str, str], timeout_s: float) -> str:
    """Run a contestant's process, and return what it printed.

    Raises:
        MeasurementError: It failed or did not end; the message is the last line that it wrote.
    """
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"{name}: no end after {timeout_s} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise MeasurementError(f"{name}: {lines[-1]}")
    return done.stdout


def _environment() -> dict[str, str]:
    """The same for all: no metric sinks, no network at import, one order of sets."""
    dropped = ("WANDB_API_KEY", "PYTHONPATH", "PYTHONHOME")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return {
        **kept,
        "WANDB_MODE": "disabled",
        "WEAVE_DISABLED": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONHASHSEED": "0",
    }


def find_contestants(given: Mapping[str, Path]) -> tuple[list[Contestant], dict[str, str]]:
    """Return the contestants, and for each peer that cannot be measured why.

    Args:
        given: Environments by name, to be used instead of building one.

    Raises:
        MeasurementError: The environment of ours cannot be built.
    """
    contestants, missing = [], {}
    for release in RELEASES:
        try:
            venv = given.get(release.name) or _built_venv(release)
            contestants.append(Contestant(release.name, python_of(venv)))
        except MeasurementError as error:
            if release.name == OURS:
                raise
            missing[release.name] = str(error)
    return contestants, missing


def _built_venv(release: Release) -> Path:
    """Return the environment of a release, built if that was not done before."""
    venv, stamp = VENVS / release.name, VENVS / f"{release.name}.built"
    if not stamp.exists() or stamp.read_text() != release.fingerprint():
        shutil.rmtree(venv, ignore_errors=True)
        build_venv(venv, find_python(release.python), *release.requirements)
        stamp.write_text(release.fingerprint())
    return venv


def build_venv(venv: Path, base: Path, *requirements: str) -> None:
    """Make an environment and install into it.

    Raises:
        MeasurementError: It could not be made; the message tells what pip said.
    """
    print(f"building {venv} ...", file=sys.stderr, flush=True)
    commands = [[str(base), "-m", "venv", str(venv)]]
    if requirements:
        pip = [
            str(python_of(venv)),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
        ]
        commands.append([*pip, *requirements])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MeasurementError(f"{command[0]}: {done.stderr.strip().splitlines()[-1]}")


def python_of(venv: Path) -> Path:
    """Return the interpreter of an environment."""
    return venv / "bin" / "python"


def find_python(oldest: tuple[int, int]) -> Path:
    """Return a Python that is no older: this one, else one of exactly that version.

    Raises:
        MeasurementError: There is none.
    """
    if sys.version_info >= oldest:
        return Path(sys.executable)
    for candidate in _candidates(f"{oldest[0]}.{oldest[1]}"):
        # A shim of a version manager may be there without the version behind it.
        works = subprocess.run(
            [candidate, "-c", "import venv"], capture_output=True, check=False
        ).returncode
        if works == 0:
            return candidate
    raise MeasurementError(f"needs Python {oldest[0]}.{oldest[1]}, which was not found")


def _candidates(version: str) -> Iterator[Path]:
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield Path(on_path)
    for root in sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}*"), reverse=True):
        yield root / "bin" / f"python{version}"

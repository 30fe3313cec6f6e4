"""Who takes a gradient step: our trainer in its three layouts, and TRL in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.contestants import (
    OURS,
    ROOT,
    VENVS,
    MeasurementError,
    build_venv,
    find_python,
    python_of,
    run_to_end,
)

TRL = "trl==1.16.0"
LAYOUTS = ("padded", "packed", "shared")
MICRO_BATCHES = (8, 64)
# Both sides stand on the same libraries; the CPU build of torch is no package of the main index.
_SAME = ("torch", "transformers", "peft")
_CPU_INDEX = ("--extra-index-url", "https://download.pytorch.org/whl/cpu", "--retries", "0")
_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Contestant:
    """One way to take the step.

    Attributes:
        name: As the table shows it.
        is_ours: Whether it is this checkout's trainer.
        option: The layout of ours, the micro-batch of TRL.
        python: The interpreter.
    """

    name: str
    is_ours: bool
    option: str
    python: Path

    def measure(self, prepared: Path, gradients: Path) -> dict[str, float]:
        """Take the step in a fresh process.

        Args:
            prepared: What `train_prepare` wrote.
            gradients: File to write the gradient to.

        Returns:
            What `step_clock.time_step` found.

        Raises:
            MeasurementError: It failed; the message is the last line that it wrote.
        """
        module = "benchmarks.our_step" if self.is_ours else "benchmarks.trl_step"
        command = [str(self.python), "-m", module, str(prepared), self.option, str(gradients)]
        printed = run_to_end(self.name, command, _environment(self.is_ours), _TIMEOUT_S)
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found


def find_contestants(peer: Path | None) -> tuple[list[Contestant], str | None]:
    """Return who takes part, and why TRL does not where it cannot.

    Args:
        peer: TRL's environment; built under `benchmarks/.venvs/` if not given.
    """
    found = [
        Contestant(f"{OURS}, {layout}", True, layout, Path(sys.executable)) for layout in LAYOUTS
    ]
    try:
        python = python_of(peer or _built_peer())
    except MeasurementError as error:
        return found, str(error)
    found += [
        Contestant(f"{TRL.replace('==', ' ')}, micro-batch {size}", False, str(size), python)
        for size in MICRO_BATCHES
    ]
    return found, None


def _built_peer() -> Path:
    requirements = [TRL, *(f"{name}=={version(name)}" for name in _SAME), *_CPU_INDEX]
    venv, stamp = VENVS / "trl", VENVS / "trl.built"
    fingerprint = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text() != fingerprint:
        shutil.rmtree(venv, ignore_errors=True)
        build_venv(venv, find_python((3, 11)), *requirements)
        stamp.write_text(fingerprint)
    return venv


def _environment(is_ours: bool) -> dict[str, str]:
    dropped = ("PYTHONPATH", "PYTHONHOME", "WANDB_API_KEY")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    if is_ours:  # this checkout, whatever else is installed
        kept["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "src" / "backends")])
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONHASHSEED": "0",
    }

"""Which device a backend works on where the user names none; looks around without importing torch."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_NVIDIA_DRIVER = Path("/dev/nvidiactl")


def default_device(driver: Path = _NVIDIA_DRIVER) -> str:
    """Return "cuda" where there is an NVIDIA GPU that the installed torch can use, else "cpu".

    Args:
        driver: The device file that NVIDIA's driver makes.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}
    return "cuda" if driver.exists() and not hidden and not _torch_is_for_cpus() else "cpu"


def _torch_is_for_cpus() -> bool:
    try:
        return version("torch").endswith("+cpu")
    except PackageNotFoundError:  # said in full where torch is required
        return True

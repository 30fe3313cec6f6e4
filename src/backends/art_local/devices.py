"""Devices by name and number; looks around without importing torch."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def gpu_number(device: str) -> int:
    """Return which of the visible GPUs a device is: "cuda" is the first.

    Raises:
        ConfigurationError: It is not spelled like a GPU.
    """
    kind, colon, number = device.partition(":")
    if kind != "cuda" or (colon and not number.isdecimal()):
        raise ConfigurationError(f"device {device!r} is not known; write 'cpu', 'cuda' or 'cuda:N'")
    return int(number or 0)


def visible_gpus(numbers: Iterable[int], visible: str | None) -> str:
    """Return the CUDA_VISIBLE_DEVICES under which a child process sees just these GPUs.

    Args:
        numbers: Of GPUs, as this process counts them.
        visible: The CUDA_VISIBLE_DEVICES of this process.

    Raises:
        ConfigurationError: There is no such GPU here.
    """
    if not visible:
        return ",".join(map(str, numbers))
    names = visible.split(",")
    chosen = []
    for number in numbers:
        if number >= len(names):
            raise ConfigurationError(
                f"there is no GPU {number}: CUDA_VISIBLE_DEVICES={visible!r} shows {len(names)}"
            )
        chosen.append(names[number].strip())
    return ",".join(chosen)

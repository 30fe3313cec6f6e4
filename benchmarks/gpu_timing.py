"""Clock, memory mark and matrix-product ceiling of one GPU; on a CPU they work too, so that all can be tried there."""

from __future__ import annotations

import gc
import platform
import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_REPEATS = 5


class Clock:
    """Times steps by the wall clock, and knows the most memory that tensors took since it was made."""

    def __init__(self, device: str) -> None:
        self._device = device
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def time(self, step: Callable[[], int]) -> tuple[float, int]:
        """Return the seconds of a step, until the GPU has done it, and what it returned."""
        _wait(self._device)
        start = time.perf_counter()
        value = step()
        _wait(self._device)
        return time.perf_counter() - start, value

    def peak_gib(self) -> float:
        """Return the most memory, in GiB; 0 on a CPU."""
        return torch.cuda.max_memory_allocated() / 2**30 if self._device == "cuda" else 0.0


def matmul_flops(device: str) -> float:
    """Return the rate of a large matrix product of random numbers: bfloat16 on a GPU, single precision on a CPU."""
    side, dtype = (8192, torch.bfloat16) if device == "cuda" else (256, torch.float32)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    clock = Clock(device)

    def multiply() -> int:
        for _ in range(_REPEATS):
            a @ b
        return 0

    multiply()
    times = sorted(clock.time(multiply)[0] for _ in range(_REPEATS))
    return _REPEATS * 2 * side**3 / times[_REPEATS // 2]


def describe_device(device: str) -> dict[str, str]:
    """Return what to tell of the machine beside its figures."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU ({platform.machine()})"
    return {"device": name, "python": platform.python_version()}


def free_memory(device: str) -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def one_thread() -> None:
    """Let a smoke test take one core, whatever else runs on the machine."""
    torch.set_num_threads(1)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()

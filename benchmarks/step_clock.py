"""How one gradient step is timed on a CPU, the same for every trainer: seconds of the processor, one thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.workload.measure import peak_rss_mb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SIDE = 1024
_REPEATS = 8


def time_step(
    step: Callable[[], int], parameters: dict[str, Any], gradients: Path
) -> dict[str, float]:
    """Run a step once to warm up and twice for the clock; write the gradient of the last.

    Args:
        step: Adds the gradient of the whole workload to the parameters, and returns how many positions the model was
            run on.
        parameters: What is trained, by the names of the PEFT model.
        gradients: File for the gradients by name.

    Returns:
        `cpu_s`, the mean; `matmul_flops`, the rate of a single-precision matrix product in the same process;
        `peak_rss_mb`, the high-water mark of the process; `positions`, what the step returned.
    """
    torch.set_num_threads(1)
    matmul_flops = _matmul_flops()
    times, positions = [], 0
    for _ in range(3):
        for parameter in parameters.values():
            parameter.grad = None
        start = time.process_time()
        positions = step()
        times.append(time.process_time() - start)
    peak_mb = peak_rss_mb()
    torch.save({name: p.grad.clone() for name, p in parameters.items()}, gradients)
    return {
        "cpu_s": sum(times[1:]) / 2,
        "matmul_flops": matmul_flops,
        "peak_rss_mb": peak_mb,
        "positions": positions,
    }


def _matmul_flops() -> float:
    a, b = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.process_time()
        a @ b
        best = min(best, time.process_time() - start)
    return 2 * _SIDE**3 / best

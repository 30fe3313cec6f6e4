"""What a gradient step costs on one GPU: `python -m benchmarks.gpu_train --out result.json`.

Qwen3-1.7B and Qwen3-4B by their sizes, with random weights; LoRA of rank 16 on all linear layers, 8 groups of 8,
prompts of 1,024 tokens, completions of 128 to 1,024, rows of 16,384. Our step with packed and with prefix-shared rows
against the plain loop of transformers and PEFT over padded batches, in the same process, on the same model and
adapter, so that the gradients can be compared.

It needs torch, transformers, peft and triton, and no network. Every step is timed by the wall clock with the GPU
idle before and after; the first one compiles and is told apart. The bf16 matrix product of the same run is the
ceiling. What does not fit into `--budget-s` is not measured, and said so; the JSON file is written anew after each
trainer, so nothing is lost when the run is cut short. `--smoke` runs everything on a CPU, with a tiny model.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_report import PACKED, PLAIN, SHARED, Result, report
from benchmarks.gpu_timing import Clock, describe_device, free_memory, matmul_flops, one_thread
from benchmarks.train_workload import Shape, make_workload, useful_flops
from benchmarks.trainer_alone import make_importable

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from art_local.policy import Policy
    from benchmarks.train_workload import Workload

SHAPES = {
    "qwen3-1.7b": Shape(
        vocabulary=151_936,
        width=2048,
        layers=28,
        heads=16,
        kv_heads=8,
        head_dim=128,
        feed_forward=6144,
    ),
    "qwen3-4b": Shape(
        vocabulary=151_936,
        width=2560,
        layers=36,
        heads=32,
        kv_heads=8,
        head_dim=128,
        feed_forward=9728,
    ),
}
_TINY = Shape(
    vocabulary=512, width=64, layers=2, heads=4, kv_heads=2, head_dim=16, feed_forward=128
)
# The small model whole; of the large one first what the bars are about.
_ORDER = {"qwen3-1.7b": (PLAIN, PACKED, SHARED), "qwen3-4b": (PACKED, SHARED, PLAIN)}
_SHARED_MEMORY = Path("/dev/shm")


class Session:
    """The measurements of one run, one after another, as long as there is time.

    Args:
        device: "cuda", or "cpu" for a smoke test.
        budget_s: Seconds from now after which nothing new is begun.
        steps: Steps of each trainer that are timed, besides the first.
        out: File for the results, as JSON.
    """

    def __init__(self, device: str, budget_s: float, steps: int, out: Path | None) -> None:
        self._device = device
        self._deadline = time.monotonic() + budget_s
        self._steps = steps
        self._out = out
        self._about = {
            **describe_device(device),
            **{name: version(name) for name in ("torch", "transformers", "peft")},
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }
        self._matmul_flops = matmul_flops(device)
        self.results: list[Result] = []
        self.missing: dict[str, str] = {}

    def measure(self, model: str, shape: Shape, workload: Workload, row_tokens: int) -> None:
        """Measure all trainers on one model."""
        trainers = _ORDER.get(model, (PLAIN, PACKED, SHARED))
        if self._is_over(model, trainers):
            return
        start = time.monotonic()
        try:
            policy = _load(shape, self._device, row_tokens)
        except Exception as error:  # noqa: BLE001 - what was measured before must not be lost
            self._miss(model, trainers, error)
            return
        print(f"{model}: made and loaded in {time.monotonic() - start:.0f} s", flush=True)
        gradients: dict[str, torch.Tensor] = {}
        for trainer in trainers:
            if self._is_over(model, (trainer,)):
                continue
            try:
                self._measure(model, shape, workload, trainer, policy, gradients)
            except Exception as error:  # noqa: BLE001 - one trainer's failure is told, the others go on
                self._miss(model, (trainer,), error)
            free_memory(self._device)
            self._compare(model, gradients)
            self._write()

    def print_report(self) -> None:
        """Print what was found."""
        about = "".join(f"- {name}: {value}\n" for name, value in self._about.items())
        print(f"{about}- matmul: {self._matmul_flops / 1e12:.4g} TFLOP/s\n")
        print(report(self.results, self.missing))

    def _measure(
        self,
        model: str,
        shape: Shape,
        workload: Workload,
        trainer: str,
        policy: Policy,
        gradients: dict[str, torch.Tensor],
    ) -> None:
        from benchmarks.gpu_contestants import gradient, recomputes

        clock = Clock(self._device)
        step = _step(policy, workload, trainer)
        times = []
        positions = 0
        for number in range(1 + self._steps):
            policy.optimizer.zero_grad(set_to_none=True)
            seconds, positions = clock.time(step)
            times.append(seconds)
            print(f"{model}, {trainer}, step {number}: {seconds:.2f} s", flush=True)
            if time.monotonic() > self._deadline and number:
                break
        gradients[trainer] = gradient(policy)
        steady = sorted(times[1:])[len(times[1:]) // 2]
        rate = self._matmul_flops * steady

        def share(tokens: int) -> float:
            return useful_flops(shape, tokens, workload.num_action_tokens, per_weight=4) / rate

        self.results.append(
            Result(
                model,
                trainer,
                steady,
                times[0],
                workload.num_tokens / steady,
                positions / steady,
                share(workload.num_tokens),
                share(positions),
                trainer != PLAIN and recomputes(policy),
                clock.peak_gib(),
            )
        )

    def _compare(self, model: str, gradients: dict[str, torch.Tensor]) -> None:
        """Put in the gradient errors, once the plain loop's gradient is there."""
        if PLAIN not in gradients:
            return
        expected = gradients[PLAIN]
        for i, result in enumerate(self.results):
            if result.model == model and result.trainer != PLAIN:
                error = (gradients[result.trainer] - expected).norm() / expected.norm()
                self.results[i] = replace(result, gradient_error=error.item())

    def _is_over(self, model: str, trainers: tuple[str, ...]) -> bool:
        is_over = time.monotonic() > self._deadline
        if is_over:
            self.missing |= {f"{model}, {trainer}": "no time left" for trainer in trainers}
            self._write()
        return is_over

    def _miss(self, model: str, trainers: tuple[str, ...], error: Exception) -> None:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"{model}, {', '.join(trainers)}: failed: {why}", flush=True)
        self.missing |= {f"{model}, {trainer}": why for trainer in trainers}

    def _write(self) -> None:
        if self._out:
            content: dict[str, Any] = {
                **self._about,
                "matmul_flops": self._matmul_flops,
                "results": [asdict(result) for result in self.results],
                "not_measured": self.missing,
            }
            self._out.write_text(json.dumps(content, indent=2))


def _load(shape: Shape, device: str, row_tokens: int) -> Policy:
    from benchmarks.gpu_contestants import load_policy, write_model

    # In memory where that is possible: writing and reading 8 GB takes seconds then.
    root = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() and device == "cuda" else None
    with tempfile.TemporaryDirectory(prefix="art-bench-", dir=root) as directory:
        write_model(Path(directory), shape, device)
        free_memory(device)
        return load_policy(Path(directory), device, row_tokens)


def _step(policy: Policy, workload: Workload, trainer: str) -> Callable[[], int]:
    from benchmarks.gpu_contestants import our_step, plain_step

    if trainer == PLAIN:
        return plain_step(policy, workload, micro_batch=4)
    return our_step(policy, workload, "packed" if trainer == PACKED else "shared")


def main() -> None:
    """Measure what the command line asks for, and print the tables."""
    arguments = _parser().parse_args()
    make_importable()
    device = "cuda"
    if arguments.smoke:
        device = "cpu"
        one_thread()
    session = Session(device, arguments.budget_s, arguments.steps, arguments.out)
    if arguments.smoke:
        workload = make_workload(_TINY, 32, range(8, 33), groups=2, size=4)
        session.measure("smoke", _TINY, workload, row_tokens=256)
    else:
        for name in arguments.shape or list(SHAPES):
            workload = make_workload(SHAPES[name], 1024, range(128, 1025))
            session.measure(name, SHAPES[name], workload, row_tokens=16_384)
    session.print_report()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="What a gradient step costs on one GPU.",
        epilog="How to read the table: docs/benchmarks.md.",
    )
    parser.add_argument(
        "--shape",
        action="append",
        choices=list(SHAPES),
        help="measure this model; may be repeated (default: both, the smaller first)",
    )
    parser.add_argument("--steps", type=int, default=3, help="steps that are timed (default 3)")
    parser.add_argument(
        "--budget-s",
        type=float,
        default=480,
        help="begin nothing new after so many seconds (default 480)",
    )
    parser.add_argument("--out", type=Path, help="write the results there as well, as JSON")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on the CPU, in seconds")
    return parser


if __name__ == "__main__":
    main()

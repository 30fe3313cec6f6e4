"""What a gradient step costs, beside TRL's: `make bench-train`, or `python -m benchmarks.train --help`.

Our trainer in its layouts and TRL's current `GRPOTrainer` take the same step on the same trajectories: 8 groups of
8, prompts of 128 tokens, completions of 8 to 128, 11,272 tokens in all; a Qwen3 of 2.4 million parameters, LoRA of
rank 8 on all linear layers, the same transformers model and the same loss for both, so that the gradients can be
compared. TRL has an environment of its own, which is built at the first run under `benchmarks/.venvs/` (a minute,
and a package index is needed).

How it is measured: fresh processes that take turns (padded, packed, shared, TRL, padded, ...), one thread,
processor time instead of wall time, one step to warm up. Ours is packing, forward and backward pass; TRL's is
`_compute_loss` and backward, in micro-batches of 8 and of 64, the faster of which counts. Medians of all rounds.

How to read the table: `docs/benchmarks.md`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contestants import MeasurementError
from benchmarks.table import NOT_MEASURED
from benchmarks.train_contestants import TRL, find_contestants
from benchmarks.train_report import Result, report
from benchmarks.train_workload import CPU_SHAPE, cpu_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.train_contestants import Contestant

_REFERENCE = "padded"


def main() -> None:
    """Measure, and print the tables."""
    arguments = _parser().parse_args()
    contestants, missing = find_contestants(arguments.peer)
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    notes = [
        f"load average at the start: {load}; {os.cpu_count()} processors",
        f"{libraries}; {rounds} rounds",
    ]
    if missing:
        notes.append(f"{TRL}: {NOT_MEASURED} ({missing})")
    with tempfile.TemporaryDirectory(prefix="art-bench-") as scratch:
        results, failures = _measure(contestants, rounds, Path(scratch))
    notes += [f"failed: {failure}" for failure in dict.fromkeys(failures)]
    text = "\n".join([*(f"- {note}" for note in notes), "", report(results), ""])
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


def _measure(
    contestants: Sequence[Contestant], rounds: int, scratch: Path
) -> tuple[list[Result], list[str]]:
    from benchmarks.train_prepare import prepare

    prepare(scratch, CPU_SHAPE, cpu_workload())
    found: dict[str, list[dict[str, float]]] = {c.name: [] for c in contestants}
    failures = []
    for number in range(rounds):
        for contestant in contestants:
            print(f"[{number + 1}/{rounds}] {contestant.name}", file=sys.stderr)
            try:
                measured = contestant.measure(scratch, _gradients(scratch, contestant))
            except MeasurementError as error:
                failures.append(str(error))
                print(f"  failed: {error}", file=sys.stderr)
            else:
                found[contestant.name].append(measured)
    workload = cpu_workload()
    results = [
        Result.of(
            contestant.name,
            contestant.option if contestant.is_ours else "",
            found[contestant.name],
            workload,
            CPU_SHAPE,
            _gradient_error(scratch, contestant, contestants),
        )
        for contestant in contestants
        if found[contestant.name]
    ]
    return results, failures


def _gradients(scratch: Path, contestant: Contestant) -> Path:
    return scratch / f"{contestant.name}.gradients"


def _gradient_error(
    scratch: Path, contestant: Contestant, contestants: Sequence[Contestant]
) -> float | None:
    """Return how far a gradient is from that of our padded layout, relative to its norm."""
    import torch

    (reference,) = [c for c in contestants if c.is_ours and c.option == _REFERENCE]
    paths = [_gradients(scratch, c) for c in (contestant, reference)]
    if not all(path.exists() for path in paths):
        return None
    own, expected = (torch.load(path) for path in paths)
    # Sums in double precision: what is told is the error of the step, not that of the comparison.
    off = sum((own[n].double() - expected[n].double()).square().sum() for n in expected)
    norm = sum(tensor.double().square().sum() for tensor in expected.values())
    return float((off / norm) ** 0.5)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="What a gradient step costs, beside TRL's.",
        epilog="How it is measured: the head of benchmarks/train.py. How to read it: docs/benchmarks.md.",
    )
    parser.add_argument("--rounds", type=int, help="processes of each contestant (default 5)")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--peer", type=Path, help="environment with TRL, instead of building one")
    parser.add_argument("--out", type=Path, help="write the tables there as well, as markdown")
    return parser


if __name__ == "__main__":
    try:
        main()
    except MeasurementError as error:
        sys.exit(f"stopped: {error}")

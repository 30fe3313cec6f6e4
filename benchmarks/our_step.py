"""Our gradient step, as the worker takes it: packing, forward and backward pass of given trajectories.

`python -m benchmarks.our_step PREPARED LAYOUT GRADIENTS`; the optimizer is not part of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from art.adapter_kit.sequences import TrainingSequence
from art_local.config import LoraSettings, WorkerSettings
from art_local.policy import Policy
from art_local.train import accumulate_gradients, pack_batch
from art_local.train_options import TrainOptions
from benchmarks.step_clock import time_step
from benchmarks.train_workload import ALPHA, RANK, Workload

if TYPE_CHECKING:
    from collections.abc import Callable


def our_step(policy: Policy, workload: Workload) -> Callable[[], int]:
    """Return our step: it adds the gradient of the workload, and tells how many positions the model was run on."""
    sequences = [TrainingSequence(**sample.as_sequence()) for sample in workload.samples()]
    options = TrainOptions()

    def step() -> int:
        rows = pack_batch(policy, sequences)
        accumulate_gradients(
            policy,
            [(row, True) for row in rows],
            [None] * len(rows),
            options,
            workload.num_action_tokens,
            lambda: None,
        )
        return sum(row.input_ids_BT.numel() for row in rows)

    return step


def main(prepared: Path, layout: str, gradients: Path) -> None:
    """Measure, and print one line of JSON."""
    workload = Workload.load(prepared / "workload.json")
    settings = WorkerSettings(
        str(prepared / "model"), LoraSettings(RANK, ALPHA), threads=1, layout=layout
    )
    policy = Policy(settings)
    policy.load(prepared / "adapter")
    if policy.layout != layout:
        sys.exit(f"the trainer took the layout {policy.layout} instead of {layout}")
    print(json.dumps(time_step(our_step(policy, workload), policy.parameters, gradients)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))

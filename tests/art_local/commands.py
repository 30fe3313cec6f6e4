"""Commands of the training worker, with all that they need on disk."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load_file

from art.adapter_kit.sequences import TrainingSequence
from art_local import checkpoint_files as files
from art_local.train_options import TrainOptions
from art_local.train_request import TrainRequest, write_request

if TYPE_CHECKING:
    from pathlib import Path


def batch(seed: int, count: int = 8) -> list[TrainingSequence]:
    """Random sequences."""
    r = random.Random(seed)
    sequences = []
    for _ in range(count):
        prompt, completion = r.randrange(1, 9), r.randrange(1, 9)
        trained = [False] * prompt + [True] * completion
        ids = [r.randrange(200) for _ in trained]
        logprobs = [-5.0 if t else 0.0 for t in trained]
        sequences.append(
            TrainingSequence(ids, trained, logprobs, [1.0] * len(ids), r.choice([-1.0, 1.0]))
        )
    return sequences


def create(checkpoints: Path) -> dict[str, Any]:
    """The command that makes step 0."""
    target = files.step_dir(checkpoints, 0)
    work_dir = checkpoints / ".art_local"
    return {"command": "create", "to_checkpoint": str(target), "work_dir": str(work_dir), "step": 0}


def train(
    checkpoints: Path, step: int, sequences: list[TrainingSequence] | None = None
) -> dict[str, Any]:
    """The command that trains step + 1 from step, with its request directory."""
    work_dir = checkpoints / ".art_local"
    sequences = batch(step) if sequences is None else sequences
    request = TrainRequest(
        from_checkpoint=files.step_dir(checkpoints, step),
        from_step=step,
        target_step=step + 1,
        to_checkpoint=files.step_dir(checkpoints, step + 1),
        work_dir=work_dir,
        learning_rate=1e-3,
        num_action_tokens=sum(s.trained.count(True) for s in sequences),
        options=TrainOptions(),
    )
    request_dir = files.work_path(work_dir, "request")
    write_request(request_dir, request, sequences)
    return {"command": "train", "request_dir": str(request_dir)}


def adapter(checkpoints: Path, step: int) -> dict[str, bytes]:
    """The weights of a step, to the bit."""
    tensors = load_file(files.step_dir(checkpoints, step) / files.ADAPTER_WEIGHTS)
    return {name: tensor.tobytes() for name, tensor in tensors.items()}

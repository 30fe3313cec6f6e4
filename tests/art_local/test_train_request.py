from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from art.adapter_kit.sequences import TrainingSequence
from art_local.train_options import TrainOptions
from art_local.train_request import TrainRequest, read_request, write_request

REQUEST = TrainRequest(
    from_checkpoint=Path("/x/0003"),
    from_step=3,
    target_step=4,
    to_checkpoint=Path("/x/0004"),
    work_dir=Path("/x/.art_local"),
    learning_rate=1e-5,
    num_action_tokens=3,
    options=TrainOptions(epsilon=0.2, epsilon_high=0.3, ppo=True),
)


def test_a_request_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """Sequences of different lengths keep their tokens, masks, logprobs, temperatures and advantages."""
    sequences = [
        TrainingSequence([1, 2, 3], [False, True, True], [0.0, -0.5, -0.25], [1.0, 0.5, 0.5], 1.5),
        TrainingSequence([151_000, 7], [False, True], [0.0, -2.0], [1.0, 1.0], -0.75),
    ]
    write_request(tmp_path / "request", REQUEST, sequences)
    assert read_request(tmp_path / "request") == (REQUEST, sequences)


def test_an_unknown_logprob_stays_unknown(tmp_path: Path) -> None:
    """NaN, which means a ratio of 1, survives the file."""
    write_request(
        tmp_path,
        REQUEST,
        [TrainingSequence([1, 2], [False, True], [0.0, math.nan], [1.0, 1.0], 1.0)],
    )
    _, (sequence,) = read_request(tmp_path)
    assert math.isnan(sequence.logprobs[1])


def test_a_batch_without_sequences_is_possible(tmp_path: Path) -> None:
    """An empty batch reads back as an empty batch."""
    write_request(tmp_path, REQUEST, [])
    assert read_request(tmp_path)[1] == []


@pytest.mark.parametrize("module", ["train_request", "config", "checkpoint_files"])
def test_the_parents_side_does_not_load_torch(module: str) -> None:
    """What the parent process imports of the trainer is free of torch."""
    code = f"import sys, art_local.{module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

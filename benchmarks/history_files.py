"""Histories as a long training run leaves them, of any length and from a seed.

Each step has one row of its rollouts and its training (20 keys, about 600 bytes), every fifth step a row of an
evaluation as well. Beside it stands `steps.jsonl`, with a line for each step.
"""

from __future__ import annotations

import random
import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROJECT = "benchmark"
NAME = "agent"
EVAL_EVERY = 5
_START = datetime(2026, 1, 1, tzinfo=UTC)
_KEPT = ("history.jsonl", "steps.jsonl")


class HistoryDirectory:
    """A model's directory with nothing but its history and ledger.

    Args:
        base_path: A new directory, the model's base path.
        num_rows: Rows of the history.
    """

    def __init__(self, base_path: Path, num_rows: int) -> None:
        self.base_path = base_path
        self.num_rows = num_rows
        self._root = base_path / PROJECT / "models" / NAME
        self._root.mkdir(parents=True)
        self.path = self._root / "history.jsonl"
        self.latest_step = _write_history(self.path, num_rows)
        _write_ledger(self._root / "steps.jsonl", self.latest_step)
        self._sizes = {name: (self._root / name).stat().st_size for name in _KEPT}

    def restore(self) -> None:
        """Undo what a measurement did: appended rows, and any other file."""
        for entry in self._root.iterdir():
            if entry.name not in _KEPT:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for name, size in self._sizes.items():
            with (self._root / name).open("r+b") as file:
                file.truncate(size)

    def remove(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.base_path)


def val_reward(step: int) -> float:
    """Return the `val/reward` of a step's evaluation: scattered, and different for each step."""
    return step * 2654435761 % 2**32 / 2**32


def _write_history(path: Path, num_rows: int) -> int:
    rng = random.Random(0)
    step = rows = 0
    with path.open("w") as file:
        while True:
            file.write(_training_row(rng, step))
            rows += 1
            if rows < num_rows and step % EVAL_EVERY == 0:
                file.write(_evaluation_row(rng, step))
                rows += 1
            if rows == num_rows:
                return step + 1  # the step after the last train call
            step += 1


def _training_row(rng: random.Random, step: int) -> str:
    reward, spread, noise = rng.random(), 0.3 + rng.random() / 10, rng.random()
    return (
        f'{{"train/reward": {reward}, "train/exception_rate": 0.0, "train/reward_std_dev": {spread}, '
        f'"train/num_trajectories": 64.0, "train/num_groups_scored": 8.0, "train/correct": {reward}, '
        f'"train/num_turns": 9.0, "train/latency": {noise}, "train/duration": {3 * noise}, '
        f'"train/loss": {noise - 0.5}, "train/policy_loss": {noise - 0.6}, "train/grad_norm": {1 + noise}, '
        f'"train/entropy": {reward / 2}, "train/kl_div": {noise / 9}, "train/num_gradient_steps": 8.0, '
        f'"train/num_groups_submitted": 8.0, "train/num_groups_trainable": 8.0, '
        f'"train/learning_rate": 1e-05, "step": {step}, "recorded_at": "{_time(step)}"}}\n'
    )


def _evaluation_row(rng: random.Random, step: int) -> str:
    noise = rng.random()
    return (
        f'{{"val/reward": {val_reward(step)}, "val/exception_rate": 0.0, "val/reward_std_dev": {noise}, '
        f'"val/num_trajectories": 64.0, "val/correct": {noise}, "val/latency": {3 * noise}, '
        f'"step": {step}, "recorded_at": "{_time(step)}"}}\n'
    )


def _write_ledger(path: Path, latest_step: int) -> None:
    with path.open("w") as file:
        for step in range(1, latest_step + 1):
            file.write(f'{{"step": {step}, "time": "{_time(step)}"}}\n')


def _time(step: int) -> str:
    return (_START + timedelta(seconds=90.000001 * step)).isoformat()

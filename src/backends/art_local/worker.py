"""The warm training process: `python -m art_local.worker`.

It loads the base model once and then answers commands, one at a time (see `child.py` for how they travel):

- `create`: commit a fresh adapter, step 0.
- `train`: read a request directory, take a gradient step, commit the new checkpoint.
- `cancel`: abandon the command that is running, if it has not been committed.

It answers every command but `cancel` with exactly one last event: `created`, `trained`, `cancelled` or `failed`.
After a failure or a cancellation what is in memory counts as unknown, and the next train reads its checkpoint
from disk.
"""

from __future__ import annotations

import collections
import logging
import queue
import signal
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils.logging import disable_progress_bar

from art.errors import TrainingError
from art_local.checkpoint_files import ADAPTER_WEIGHTS, WeightsFile, commit
from art_local.child import open_channel
from art_local.config import WorkerSettings
from art_local.policy import Policy
from art_local.train import train_step
from art_local.train_request import read_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art.adapter_kit.sequences import TrainingSequence
    from art_local.child import Channel

logger = logging.getLogger(__name__)


class Cancelled(Exception):  # noqa: N818 - no error: the parent asked for it
    """Raised inside a command that the parent cancelled before its commit."""


class Worker:
    """Answers commands with a warm policy."""

    def __init__(self, channel: Channel, settings: WorkerSettings) -> None:
        self._channel = channel
        self._settings = settings
        self._policy = Policy(settings)
        self._holding: tuple[int, WeightsFile] | None = None
        self._waiting: collections.deque[dict[str, Any]] = collections.deque()

    def run(self) -> None:
        """Answer commands forever; the process ends when its stdin does."""
        while True:
            self.answer(self._waiting.popleft() if self._waiting else self._channel.commands.get())

    def answer(self, command: dict[str, Any]) -> None:
        """Carry out one command and send its last event. Never raises on a failure of the command."""
        if command["command"] == "cancel":
            return  # it came after the commit of what it was meant for
        try:
            event = self._carry_out(command)
        except Cancelled:
            event = {"event": "cancelled"}
        except Exception as error:  # noqa: BLE001 - any failure is the parent's to report; the worker stays usable
            event = _failure(error)
        self._channel.send(event)

    def _carry_out(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["command"]:
            case "create":
                return self._create(
                    Path(command["to_checkpoint"]), Path(command["work_dir"]), command["step"]
                )
            case "train":
                return self._train(Path(command["request_dir"]))
            case unknown:
                raise TrainingError(f"the training worker has no command {unknown!r}")

    def _create(self, target: Path, work_dir: Path, step: int) -> dict[str, Any]:
        if not (target / ADAPTER_WEIGHTS).is_file():  # another process may have been faster
            self._holding = None
            self._policy.reset()
            self._commit(target, work_dir, step)
        return {"event": "created", "step": step}

    def _train(self, request_dir: Path) -> dict[str, Any]:
        request, sequences = read_request(request_dir)
        self._check_vocabulary(sequences)
        warm = self._holds(request.from_checkpoint, request.from_step)
        self._holding = None  # unknown until the new step is committed
        if not warm:
            self._policy.load(request.from_checkpoint)
        metrics = train_step(
            self._policy,
            sequences,
            request.options,
            learning_rate=request.learning_rate,
            num_action_tokens=request.num_action_tokens,
            settings=self._settings,
            check_cancelled=self._check_cancelled,
        )
        self._channel.send({"event": "gradient_step", "metrics": metrics})
        self._commit(request.to_checkpoint, request.work_dir, request.target_step)
        return {"event": "trained", "step": request.target_step}

    def _holds(self, checkpoint: Path, step: int) -> bool:
        if self._holding is None:
            return False
        try:
            return self._holding == (step, WeightsFile.of(checkpoint))
        except FileNotFoundError:
            return False  # loading it will tell what is missing

    def _commit(self, target: Path, work_dir: Path, step: int) -> None:
        def write(directory: Path) -> None:
            self._policy.save(directory, step)
            self._check_cancelled()

        commit(work_dir, target, write)
        self._holding = step, WeightsFile.of(target)

    def _check_cancelled(self) -> None:
        while True:
            try:
                command = self._channel.commands.get_nowait()
            except queue.Empty:
                return
            if command["command"] == "cancel":
                raise Cancelled
            self._waiting.append(command)

    def _check_vocabulary(self, sequences: Sequence[TrainingSequence]) -> None:
        size = self._policy.vocabulary_size
        for sequence in sequences:
            highest = max(sequence.token_ids, default=0)
            lowest = min(sequence.token_ids, default=0)
            if lowest < 0 or highest >= size:
                raise TrainingError(
                    f"a trajectory has token id {highest if highest >= size else lowest}, but the vocabulary of "
                    f"{self._settings.base_model} has {size}; its tokens were sampled from another model"
                )


def _failure(error: Exception) -> dict[str, Any]:
    return {
        "event": "failed",
        "error": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def main() -> None:
    """Run the worker until its stdin ends."""
    # An interrupt at the terminal reaches the whole process group; what to do about it is the parent's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = open_channel()
    logging.basicConfig(level=logging.INFO)  # to stderr, of which the parent keeps the tail
    try:
        disable_progress_bar()
        settings = WorkerSettings.from_message(channel.config)
        torch.set_num_threads(settings.threads)
        worker = Worker(channel, settings)
    except Exception as error:  # whatever it is, the parent is told before the process ends
        channel.send(_failure(error))
        raise SystemExit(1) from error
    channel.send({"event": "ready"})
    worker.run()


if __name__ == "__main__":
    main()

"""The warm training process: `python -m art_local.worker`.

It loads the base model once and then answers commands, one at a time (see `child.py` for how they travel):

- `create`: commit a fresh adapter, step 0.
- `train`: read a request directory, take a gradient step, commit the new checkpoint.
- `cancel`: abandon the command that is running, if it has not been committed.

It answers every command but `cancel` with exactly one last event: `created`, `trained`, `cancelled` or `failed`.
After a failure or a cancellation what is in memory counts as unknown, and the next train reads its checkpoint
from disk.

Under torchrun there are several such processes (see `distributed.py`). Process 0 alone hears the parent, hands on
the commands, answers and commits; a failure of any is the failure of all.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import logging
import os
import queue
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.elastic.multiprocessing.errors import record
from transformers.utils.logging import disable_progress_bar

from art.errors import ConfigurationError, TrainingError
from art_local.checkpoint_files import ADAPTER_WEIGHTS, WeightsFile, commit
from art_local.child import UNDER_LAUNCHER, end_with_launcher, open_channel, silent_channel
from art_local.config import WorkerSettings
from art_local.distributed import ProcessGroup, ToldByAnotherError, World
from art_local.policy import Policy
from art_local.train import train_step
from art_local.train_request import read_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from art.adapter_kit.sequences import TrainingSequence
    from art_local.child import Channel

logger = logging.getLogger(__name__)


class Cancelled(Exception):  # noqa: N818 - no error: the parent asked for it
    """Raised inside a command that the parent cancelled before its commit."""


class Worker:
    """Answers commands with a warm policy.

    Args:
        channel: The parent; silent on all processes but the first.
        settings: What to train.
        world: The processes that train together.
    """

    def __init__(self, channel: Channel, settings: WorkerSettings, world: World) -> None:
        self._channel = channel
        self._settings = settings
        self._world = world
        self._policy = Policy(settings)
        self._check_layouts()
        self._holding: tuple[int, WeightsFile] | None = None  # known to process 0, which decides
        self._last_save: dict[str, float] = {}
        self._waiting: collections.deque[dict[str, Any]] = collections.deque()
        self._leave_gpu()

    def run(self) -> None:
        """Answer commands forever; the process ends when its stdin does."""
        while True:
            self.answer(self._world.await_first(self._next_command()))

    def _next_command(self) -> dict[str, Any]:
        if self._world.rank > 0:
            return {}
        return self._waiting.popleft() if self._waiting else self._channel.commands.get()

    def answer(self, command: dict[str, Any]) -> None:
        """Carry out one command and send its last event. Never raises on a failure of the command.

        Raises:
            TrainingError: The processes that train together have lost each other.
        """
        if command["command"] == "cancel":
            return  # it came after the commit of what it was meant for
        try:
            event = self._carry_out(command)
            self._world.any(False)  # one that failed after all else is heard here
        except ToldByAnotherError as told:
            event = told.event
        except Cancelled:
            event = self._world.tell({"event": "cancelled"})
        except Exception as error:  # noqa: BLE001 - any failure is the parent's to report; the worker stays usable
            event = self._world.tell(_failure(error))
        if event["event"] == "failed" and self._settings.shard_base:
            # Layers may be half put together.
            self._holding = None
            del self._policy  # the old one must go first: two of what hardly fits do not
            gc.collect()
            self._policy = Policy(self._settings)
        self._channel.send(event)

    def _carry_out(self, command: dict[str, Any]) -> dict[str, Any]:
        with self._on_gpu():
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
        is_there = (target / ADAPTER_WEIGHTS).is_file()  # another process may have been faster
        if not self._world.first(is_there):
            self._holding = None
            self._policy.reset()
            self._commit(target, work_dir, step)
        return {"event": "created", "step": step}

    def _train(self, request_dir: Path) -> dict[str, Any]:
        request, sequences = read_request(request_dir)
        self._check_vocabulary(sequences)
        warm = self._world.first(self._holds(request.from_checkpoint, request.from_step))
        self._holding = None  # unknown until the new step is committed
        start_s = time.perf_counter()
        if not warm:
            self._policy.load(request.from_checkpoint)
        load_s = time.perf_counter() - start_s
        metrics = train_step(
            self._policy,
            sequences,
            request.options,
            learning_rate=request.learning_rate,
            num_action_tokens=request.num_action_tokens,
            settings=self._settings,
            check_cancelled=self._check_cancelled,
            world=self._world,
        )
        # How long this save takes is known too late for this step's metrics; the one before tells as much.
        times = {"load_s": load_s, **self._last_save}
        self._channel.send({"event": "gradient_step", "metrics": {**metrics, **times}})
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
            if self._is_cancelled():
                raise Cancelled

        if self._world.rank == 0:
            start_s = time.perf_counter()
            commit(work_dir, target, write)
            self._last_save = {"save_s": time.perf_counter() - start_s}
            self._holding = step, WeightsFile.of(target)

    def _check_cancelled(self) -> None:
        if self._world.any(self._is_cancelled()):
            raise Cancelled

    def _is_cancelled(self) -> bool:
        while True:
            try:
                command = self._channel.commands.get_nowait()
            except queue.Empty:
                return False
            if command["command"] == "cancel":
                return True
            self._waiting.append(command)

    @contextlib.contextmanager
    def _on_gpu(self) -> Iterator[None]:
        if self._settings.offload_when_idle:
            self._policy.to(self._policy.device)
        try:
            yield
        finally:
            self._leave_gpu()

    def _leave_gpu(self) -> None:
        if self._settings.offload_when_idle:
            self._policy.to(torch.device("cpu"))
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _check_layouts(self) -> None:
        # Each found out by trying; with different ones they would share out different rows.
        layouts = self._world.gather((self._policy.layout, self._policy.can_split_logits))
        if len(set(layouts)) > 1:
            raise ConfigurationError(
                f"the training processes find different layouts for {self._settings.base_model}: {layouts}; "
                "name one, such as layout='padded'"
            )

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
    several = UNDER_LAUNCHER in sys.argv
    if several:
        end_with_launcher()
    speaks = not several or os.environ["RANK"] == "0"
    channel = open_channel() if speaks else silent_channel()
    logging.basicConfig(level=logging.INFO)  # to stderr, of which the parent keeps the tail
    disable_progress_bar()
    world = ProcessGroup() if several else World()
    try:
        settings = WorkerSettings.from_message(world.await_first(channel.config))
        settings = dataclasses.replace(settings, device=world.device(settings.device))
        torch.set_num_threads(max(1, settings.threads // world.size))
        worker = Worker(channel, settings, world)
        world.any(False)
    except ToldByAnotherError as told:
        channel.send(told.event)
        raise SystemExit(1) from told
    except Exception as error:  # whatever it is, the parent is told before the process ends
        channel.send(world.tell(_failure(error)))
        raise SystemExit(1) from error
    channel.send({"event": "ready"})
    worker.run()


if __name__ == "__main__":
    record(main)()  # torchrun's report then says what the process that failed first died of

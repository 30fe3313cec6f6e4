"""One life of a campaign: a fresh process checks what the lives before it left, and goes on until it is killed.

    python -m tests.art.crash.life {journal file} {base path} {seed} {number of operations} {die at}

It tells its parent on stdout, a JSON object a line: each phase that it enters ("at"), each operation before its
first call ("begin") and after its last one ("done"), and the journal once it is checked ("checked").
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import art
from tests.art.crash.file_backend import FileBackend
from tests.art.crash.journal import Journal, check
from tests.art.crash.work import draw, perform

# What changes a directory, or is about to: after one of these a life may end itself.
_FILE_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock"}


def tell(**message: Any) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def announce(phase: str) -> None:
    tell(at=phase)


def watch(die_at: int) -> None:
    """Announce the moment between a trajectory file and its row; die at a file event, if asked to.

    Signals from outside seldom hit the gap between two calls of the operating system; this one always does.
    """
    num_events = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal num_events
        if event == "os.rename" and str(args[1]).endswith(".parquet"):
            announce("row")
        if event in _FILE_EVENTS:
            num_events += 1
            if num_events == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


async def live(journal_file: Path, base_path: str, seed: str, num_ops: int, die_at: int) -> None:
    journal = Journal.loads(journal_file.read_text())
    model: art.TrainableModel[Any, Any] = art.TrainableModel(
        name="agent", project="crash", base_model="none", base_path=base_path, report_metrics=[]
    )
    backend = FileBackend(announce)
    announce("open")
    await model.register(backend)
    announce("check")
    check(art.model_dir(model), journal)
    tell(checked=json.loads(journal.dumps()))
    watch(die_at)
    rng = random.Random(seed)
    first = len(journal.entries)
    for number in range(first, first + num_ops):
        op = draw(rng, number, await model.get_step())
        tell(begin=vars(op))
        announce(op.kind)
        kept = await perform(op, model, backend)
        tell(done=kept)


if __name__ == "__main__":
    asyncio.run(
        live(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    )

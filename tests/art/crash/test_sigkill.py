"""A process that logs, trains and deletes is killed at random moments, again and again in one directory.

Each next life is a fresh process that first checks the whole directory. `ART_CAMPAIGN=full` kills some hundred
times; `ART_SEED` repeats a campaign, as far as the operating system's timing lets it.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.art.crash.journal import Journal
from tests.art.crash.work import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

ROOT = Path(__file__).resolve().parents[3]
FULL = os.environ.get("ART_CAMPAIGN") == "full"
SEED = os.environ.get("ART_SEED", "0")
NUM_RUNS = 12 if FULL else 2
KILLS_OF_A_RUN = 27 if FULL else 9
DEATHS_OF_A_RUN = 5 if FULL else 2  # by its own hand, at a file event
OPS_OF_A_LIFE = 60

# Where a kill is aimed at. "row" is the moment after a trajectory file, "train.commit" the one after a checkpoint.
TARGETS = (
    "log",
    "row",
    "train",
    "train.stream",
    "train.commit",
    "delete",
    "state",
    "metrics",
    "open",
)
_LAST_FILE_EVENT = 120


class Life:
    """One process of a run, and what it told."""

    def __init__(self, run: Run, seed: str, num_ops: int = OPS_OF_A_LIFE, die_at: int = 0) -> None:
        self._run = run
        self.phase = "start"
        self._entered_s = time.monotonic()
        run.journal_file.write_text(run.journal.dumps())
        command = [sys.executable, "-m", "tests.art.crash.life"]
        arguments = [run.journal_file, run.directory / "art", seed, num_ops, die_at]
        with run.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*command, *map(str, arguments)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield what the process tells, noted in the journal, until it has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return  # killed while it told this
            message = json.loads(line)
            self._note(message)
            yield message

    def _note(self, message: dict[str, Any]) -> None:
        if "at" in message:
            self._enter(message["at"])
        elif "checked" in message:
            self._run.journal = Journal.loads(json.dumps(message["checked"]))
        elif "begin" in message:
            self._run.journal.begin(Op(**message["begin"]))
        else:
            self._run.journal.finish(message["done"])
            self._enter("between")

    def _enter(self, phase: str) -> None:
        now_s = time.monotonic()
        self._run.durations_s[self.phase].append(now_s - self._entered_s)
        self.phase, self._entered_s = phase, now_s

    def end(self) -> int:
        """Read what is left, and return the exit status."""
        with self.process:
            for _ in self.messages():
                pass
        status = self.process.returncode
        assert status in {0, -9}, f"{self._run.name}, seed {SEED}:\n{self._run.errors.read_text()}"
        return status


class Run:
    """Lives after lives in one directory."""

    def __init__(self, directory: Path, number: int) -> None:
        self.name = f"run {number}"
        self.directory = directory / f"run-{number}"
        self.directory.mkdir()
        self.journal_file = self.directory / "journal.json"
        self.errors = self.directory / "errors.txt"
        self.journal = Journal()
        self.hits: Counter[str] = Counter()
        self.own_deaths = 0
        self._number = number
        self._rng = random.Random(f"{SEED}/{number}")
        self.durations_s: defaultdict[str, list[float]] = defaultdict(list)

    def whole(self) -> Run:
        """Kill and die as often as a run should, then check all of it in a last process."""
        for i in range(KILLS_OF_A_RUN):
            while not self.kill_in(
                TARGETS[(i + self._number) % len(TARGETS)], f"{SEED}/{self.name}/{i}"
            ):
                pass
        while self.own_deaths < DEATHS_OF_A_RUN:
            die_at = self._rng.randrange(1, _LAST_FILE_EVENT)
            seed = f"{SEED}/{self.name}/own/{self.own_deaths}/{die_at}"
            self.own_deaths += Life(self, seed, die_at=die_at).end() == -9
        self.journal.checked.clear()
        assert Life(self, SEED, num_ops=3).end() == 0
        return self

    def kill_in(self, target: str, seed: str) -> bool:
        """Kill a life some time after it has entered a phase; return False if it ended before."""
        life = Life(self, seed)
        visits_left = 1 if target == "open" else self._rng.randrange(1, 4)
        for message in life.messages():
            visits_left -= message.get("at") == target
            if visits_left == 0:
                usual_s = statistics.median(self.durations_s[target] or [0.01])
                time.sleep(self._rng.uniform(0.0, 1.5 * usual_s))
                life.process.kill()
                break
        was_killed = life.end() == -9
        self.hits[life.phase] += was_killed
        return was_killed


@pytest.mark.timeout(60 + 6 * NUM_RUNS * (KILLS_OF_A_RUN + DEATHS_OF_A_RUN))
def test_c077_a_killed_process_loses_nothing_that_was_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After each SIGKILL a fresh process finds every acknowledged row, file and checkpoint, and goes on."""
    runs = [Run(tmp_path, number) for number in range(NUM_RUNS)]
    with ThreadPoolExecutor(max_workers=2) as threads:
        done = list(threads.map(Run.whole, runs))
    hits = sum((run.hits for run in done), Counter[str]())
    own_deaths = sum(run.own_deaths for run in done)
    with capsys.disabled():
        phases = ", ".join(f"{phase} {count}" for phase, count in hits.most_common())
        sys.stdout.write(f"seed {SEED}: {hits.total()} kills ({phases}), {own_deaths} own deaths\n")
    assert hits.total() == NUM_RUNS * KILLS_OF_A_RUN
    assert own_deaths == NUM_RUNS * DEATHS_OF_A_RUN

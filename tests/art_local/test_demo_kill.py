"""The demo is killed at random moments and run again; nothing that was acknowledged may be lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from art.books.trajectory_file import read_logs
from tests.art_local.processes import children_of, wait_until_gone

pytestmark = [pytest.mark.local, pytest.mark.crash]

FULL = os.environ.get("ART_CAMPAIGN") == "full"
NUM_KILLS = 20 if FULL else 2
STEPS = 40 if FULL else 6
LONGEST_DELAY_S = 20.0 if FULL else 8.0
GROUPS_OF_A_STEP = 16


class Books:
    """What a demo directory holds, read without the writers' code where that is possible."""

    def __init__(self, base_path: Path) -> None:
        found = list(base_path.glob("*/models/*"))
        self.root = found[0] if found else base_path / "none"

    def rows(self) -> list[dict[str, Any]]:
        """Whole rows of the history; a torn line at the very end was never acknowledged."""
        path = self.root / "history.jsonl"
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        return [json.loads(line) for line in lines[:-1] if _is_whole(line)]

    def ledger(self) -> list[int]:
        path = self.root / "steps.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["step"] for line in lines]

    def logs(self) -> dict[str, int]:
        """How many logs each trajectory file holds; every file must be readable."""
        files = sorted(self.root.glob("trajectories/*/*.parquet"))
        return {str(file.relative_to(self.root)): len(read_logs(file)) for file in files}


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def start(base_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "art", "demo", "--steps", str(STEPS), "--path", str(base_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_books(base_path: Path, program: subprocess.Popen[str]) -> None:
    """Wait until the program has started its work, so that a kill hits something."""
    deadline_s = time.monotonic() + 120
    while not list(base_path.glob("*/models/*")) and time.monotonic() < deadline_s:
        assert program.poll() is None, program.communicate()[0]
        time.sleep(0.05)


def kill_after(program: subprocess.Popen[str], delay_s: float) -> bool:
    """Kill the program after a delay, with its children looked up first; returns whether it still ran."""
    try:
        program.wait(delay_s)
    except subprocess.TimeoutExpired:
        children = children_of(program.pid)
        program.send_signal(signal.SIGKILL)
        assert wait_until_gone(children) == []
        was_running = True
    else:
        was_running = False
    program.communicate()
    return was_running


@pytest.mark.timeout(90 * NUM_KILLS + 300)
def test_a_killed_demo_resumes_and_loses_nothing(tmp_path: Path) -> None:
    """After each SIGKILL every acknowledged row and rollout is there, and the same command goes on."""
    rng = random.Random(int(os.environ.get("ART_SEED", "0")))
    rows: list[dict[str, Any]] = []
    logs: dict[str, int] = {}
    ledger: list[int] = []
    num_kills = 0
    while (
        num_kills < NUM_KILLS
    ):  # a run that finished in time goes on for more steps with the next one
        program = start(tmp_path)
        wait_for_books(tmp_path, program)
        num_kills += kill_after(program, rng.uniform(0.0, LONGEST_DELAY_S))
        books = Books(tmp_path)
        assert books.rows()[: len(rows)] == rows
        assert books.ledger()[: len(ledger)] == ledger
        now = books.logs()
        assert all(now.get(file, 0) >= count for file, count in logs.items())
        # A row is written after the rollouts that it tells of.
        told = [
            f"trajectories/train/{r['step']:04d}.parquet"
            for r in books.rows()
            if "train/reward" in r
        ]
        assert all(now[file] >= told.count(file) for file in told)
        rows, logs, ledger = books.rows(), now, books.ledger()

    program = start(tmp_path)
    output, _ = program.communicate(timeout=240)

    assert program.returncode in {0, 1}, output  # with few steps the reward may not rise
    books = Books(tmp_path)
    assert books.rows()[: len(rows)] == rows
    steps = books.ledger()
    assert steps == list(range(1, len(steps) + 1)), "a step was left out or numbered twice"
    assert len(steps) >= STEPS
    for file in books.root.glob("trajectories/train/*.parquet"):
        for groups in read_logs(file).values():
            assert len(groups) == GROUPS_OF_A_STEP


def test_ctrl_c_ends_the_demo_promptly(tmp_path: Path) -> None:
    """An interrupt ends the demo with one line and status 130, and its children with it."""
    program = start(tmp_path)
    wait_for_books(tmp_path, program)
    time.sleep(2.0)
    children = children_of(program.pid)
    program.send_signal(signal.SIGINT)

    output, _ = program.communicate(timeout=30)

    assert program.returncode == 130, output
    assert "Traceback" not in output
    assert wait_until_gone(children) == []

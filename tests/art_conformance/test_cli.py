from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from art_conformance.cli import command
from tests.art_conformance.commands import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

HERE = "tests.art_conformance.backends"


def test_checks_can_be_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` has a line for each check, and `--explain` tells rule, clause and likely cause."""
    assert command(["--list"]) == 0
    assert "SHAPE-01" in capsys.readouterr().out
    assert command(["--explain", "SHAPE-01"]) == 0
    explained = capsys.readouterr().out
    assert "clause T1, level core" in explained
    assert "Likely cause of a failure: " in explained


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "names no adapter"),
        (["no_such_package_here:x"], "could not be imported"),
        ([f"{HERE}:NeedsAKey"], "make_backend raised ValueError: set TOY_API_KEY"),
        ([f"{HERE}:TwoMethods", "--only", "NONE-01"], "no check and no group"),
        (["--explain", "NONE-01"], "there is no check 'NONE-01'"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong call, or an adapter that cannot be made, is told in one line, with exit status 2."""
    assert command(arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_a_part_of_the_checks_certifies_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """With `--only` the verdicts are shown, but the status is that of no certificate."""
    assert command([f"{HERE}:TwoMethods", "--only", "SHAPE-01"]) == 1
    assert "were not run, so nothing can be certified" in capsys.readouterr().out


@pytest.mark.conformance
def test_two_methods_are_certified_fast_and_without_torch(tmp_path: Path) -> None:
    """A backend with the two methods alone reaches the core level, and neither torch nor pytest is imported."""
    (tmp_path / "mine.py").write_text(
        "import sys, atexit\n"
        f"from {HERE} import TwoMethods\n"
        "heavy = {'torch', 'pytest', 'wandb'}\n"
        "atexit.register(lambda: print('heavy:', sorted(heavy & set(sys.modules))))\n"
    )
    done = run(tmp_path, "art_conformance", "mine:TwoMethods", "--out", "report")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CERTIFIED at level core" in done.stdout
    assert "heavy: []" in done.stdout
    report = json.loads((tmp_path / "report" / "conformance.json").read_text())
    assert report["level"] == "core"


@pytest.mark.conformance
def test_the_same_seed_gives_the_same_report(tmp_path: Path) -> None:
    """Two runs with one seed differ in nothing but times."""
    reports = []
    for name in ("first", "second"):
        command([f"{HERE}:Lists", "--seed", "3", "--out", str(tmp_path / name)])
        values = json.loads((tmp_path / name / "conformance.json").read_text())
        for item in values["checks"]:
            del item["seconds"]
        reports.append(values)
        page = (tmp_path / name / "conformance.md").read_bytes()
        reports.append(page)
    assert reports[0] == reports[2]
    assert reports[1] == reports[3]


@pytest.mark.conformance
def test_a_level_that_is_not_reached_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    """`--level` asks for more than the core, and the status says whether it was reached."""
    assert command([f"{HERE}:TwoMethods", "--level", "full"]) == 1
    assert "CERTIFIED at level core" in capsys.readouterr().out


@pytest.mark.process
def test_art_conformance_is_a_command_of_art(tmp_path: Path) -> None:
    """`art conformance` is the same command."""
    done = run(tmp_path, "art", "conformance", "--list")
    assert done.returncode == 0, done.stderr
    assert "SHAPE-01" in done.stdout


@pytest.mark.process
def test_what_hangs_in_a_thread_does_not_hold_up_the_report(tmp_path: Path) -> None:
    """An adapter that waits in a thread for ever is told, and the process ends with its report written."""
    arguments = (f"{HERE}:hangs", "--only", "STEP-01", "--out", "report")
    done = run(tmp_path, "art_conformance", *arguments)
    assert done.returncode == 1
    assert "FAIL STEP-01" in done.stdout
    assert "not finished after 0.5 s" in done.stdout
    assert (tmp_path / "report" / "conformance.json").exists()


@pytest.mark.process
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_ended_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """SIGTERM and Ctrl-C end a run within seconds, remove its directory, and print no traceback."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "art_conformance", f"{HERE}:TwoMethods"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not list(tmp_path.glob("art-conformance-*/0/books")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        _, told = process.communicate(timeout=30)
    assert process.returncode == status
    assert "Traceback" not in told
    assert list(tmp_path.glob("art-conformance-*")) == []


@pytest.mark.parametrize("target", [f"{HERE}:undeclared", f"{HERE}:TwoMethods"])
def test_a_report_that_cannot_be_written_is_told_at_once(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An `--out` that can be no directory is told before any check is run."""
    (tmp_path / "file").write_text("")
    assert command([target, "--out", str(tmp_path / "file")]) == 2
    assert "the report cannot be written to" in capsys.readouterr().err

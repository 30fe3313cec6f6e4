from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.art_conformance.commands import run

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = pytest.mark.process

HERE = "tests.art_conformance.backends"


def run_pytest(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on the suite, in a project with settings and a conftest of its own."""
    (cwd / "pytest.ini").write_text("[pytest]\npython_files = check_*.py\naddopts = -q\n")
    (cwd / "conftest.py").write_text(
        "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef mine(): raise RuntimeError\n"
    )
    return run(cwd, "pytest", "-p", "no:cacheprovider", "--pyargs", "art_conformance", *arguments)


@pytest.mark.conformance
def test_every_check_is_a_test_of_its_own(tmp_path: Path) -> None:
    """`pytest --pyargs art_conformance --art-adapter=...` runs all checks, whatever the project's own settings."""
    done = run_pytest(tmp_path, f"--art-adapter={HERE}:TwoMethods", "--art-report=report")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CERTIFIED at level core" in done.stdout
    report = json.loads((tmp_path / "report" / "conformance.json").read_text())
    assert report["level"] == "core"
    assert "SHAPE-01" in {item["id"] for item in report["checks"]}


def test_a_broken_rule_is_told_without_the_insides_of_the_suite(tmp_path: Path) -> None:
    """A check that fails shows rule, cause and command, and no traceback."""
    target = "art_conformance.mutants.shape:DeletesSynchronously.adapter"
    done = run_pytest(tmp_path, f"--art-adapter={target}", "-k", "SHAPE-01")
    assert done.returncode == 1
    assert "FAIL SHAPE-01 (clause T1): " in done.stdout
    assert "again:    python -m art_conformance art_conformance.mutants" in done.stdout
    assert "Traceback" not in done.stdout
    assert "session.py" not in done.stdout


def test_deselected_checks_are_no_certificate(tmp_path: Path) -> None:
    """Where tests are left out by `-k` the run fails, though all that were run passed."""
    done = run_pytest(tmp_path, f"--art-adapter={HERE}:TwoMethods", "-k", "SHAPE-01")
    assert done.returncode == 1
    assert "1 passed" in done.stdout
    assert "NOT CERTIFIED" in done.stdout


def test_without_an_adapter_nothing_is_run(tmp_path: Path) -> None:
    """Without `--art-adapter` there are no tests, which pytest reports as a status of its own."""
    assert run_pytest(tmp_path).returncode == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([f"--art-adapter={HERE}:Missing"], "has no 'Missing'"),
        ([f"--art-adapter={HERE}:NeedsAKey"], "set TOY_API_KEY"),
        ([f"--art-adapter={HERE}:TwoMethods", "--art-profile=slow"], "--art-profile is 'slow'"),
    ],
)
def test_what_cannot_be_run_is_told(tmp_path: Path, arguments: list[str], message: str) -> None:
    """A target that does not resolve ends the collection with its message."""
    done = run_pytest(tmp_path, *arguments)
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert message in done.stdout

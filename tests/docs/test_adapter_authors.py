"""The backend that the documentation shows is one, and is certified."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.art_conformance.commands import run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adapter-authors.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with the two files that the page shows."""
    backend, adapter = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_backend.py").write_text(backend)
    (tmp_path / "my_conformance.py").write_text(adapter)
    return tmp_path


@pytest.mark.conformance
def test_the_backend_of_the_page_is_certified_by_its_class(folder: Path) -> None:
    """The class alone reaches the core level."""
    done = run(folder, "art_conformance", "my_backend:MyBackend")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CERTIFIED at level core" in done.stdout


@pytest.mark.conformance
def test_the_adapter_of_the_page_is_certified(folder: Path) -> None:
    """With the probe of the page nothing about checkpoints is unobservable."""
    arguments = ("my_conformance:adapter", "--out", "report")
    done = run(folder, "art_conformance", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads((folder / "report" / "conformance.json").read_text())["checks"]
    reasons = {item["reason"] for item in checks if item["verdict"] == "UNOBSERVABLE"}
    assert not any("checkpoint_steps" in reason or "weights" in reason for reason in reasons)

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_report import PACKED, PLAIN, SHARED, Result, bars, report

ROOT = Path(__file__).resolve().parents[2]

# Runs the script as on a machine that has nothing but what the trainer needs.
WITHOUT_THE_FRONTEND = """
import runpy, sys
HIDDEN = {"pydantic", "pydantic_core", "openai", "polars", "pyarrow", "starlette", "uvicorn", "art_rl"}

class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
runpy.run_module("benchmarks.gpu_train", run_name="__main__", alter_sys=True)
"""


@pytest.mark.local
@pytest.mark.timeout(300)
def test_the_gpu_script_runs_whole_where_there_is_no_frontend(tmp_path: Path) -> None:
    """With torch, transformers and peft alone, every trainer is measured, and all gradients agree."""
    out = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_FRONTEND, "--smoke", "--steps", "1", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    found = json.loads(out.read_text())
    results = {r["trainer"]: r for r in found["results"]}
    assert found["not_measured"] == {}
    assert list(results) == [PLAIN, PACKED, SHARED]
    assert all(0 < results[trainer]["gradient_error"] < 1e-5 for trainer in (PACKED, SHARED))
    assert results[SHARED]["physical_tokens_per_s"] < 0.8 * results[SHARED]["logical_tokens_per_s"]
    assert "| smoke | shared" in done.stdout


def result(trainer: str, **changes: Any) -> Result:
    rate = {PLAIN: 6000.0, PACKED: 10_000.0, SHARED: 20_000.0}[trainer]
    fields: dict[str, Any] = {
        "model": "qwen3-4b",
        "trainer": trainer,
        "step_s": 1.0,
        "first_step_s": 60.0,
        "logical_tokens_per_s": rate,
        "physical_tokens_per_s": rate,
        "share_4n": 0.3,
        "computed_share_4n": 0.3,
        "recomputes": True,
        "peak_gib": 30.0,
        "gradient_error": None if trainer == PLAIN else 0.01,
    }
    return Result(**(fields | changes))


def test_the_bars_are_those_of_the_larger_model() -> None:
    """All four are read off the 4B shape; the smaller model has none."""
    reached = [result(trainer) for trainer in (PLAIN, PACKED, SHARED)]
    small = [result(trainer, model="qwen3-1.7b") for trainer in (PLAIN, PACKED, SHARED)]

    assert [bar.verdict() for bar in bars(reached)] == ["reached"] * 4
    assert [bar.verdict() for bar in bars(small)] == ["not measured"] * 4


@pytest.mark.parametrize(
    ("index", "trainer", "changes"),
    [
        (0, PACKED, {"logical_tokens_per_s": 8900.0}),
        (1, SHARED, {"logical_tokens_per_s": 15_000.0}),
        (2, SHARED, {"peak_gib": 41.0}),
        (3, PACKED, {"gradient_error": 0.04}),
    ],
)
def test_each_gpu_bar_looks_at_its_own_figure(
    index: int, trainer: str, changes: dict[str, Any]
) -> None:
    """A missed bar fails alone."""
    results = [
        result(name, **(changes if name == trainer else {})) for name in (PLAIN, PACKED, SHARED)
    ]

    assert [i for i, bar in enumerate(bars(results)) if bar.verdict() == "MISSED"] == [index]


def test_the_report_says_why_something_is_missing() -> None:
    """A trainer without a figure is told with its reason, not left out."""
    text = report([result(PACKED)], {"qwen3-4b, shared": "no time left"})

    assert "qwen3-4b, shared: not measured (no time left)" in text

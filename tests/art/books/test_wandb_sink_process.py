from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.art.books.wandb_child import run_script, warnings_in
from tests.art.books.wandb_files import WandbRun, read_runs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def history(home: Path, name: str = "m") -> list[dict[str, Any]]:
    path = home / ".art/p/models" / name / "history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def in_order(rows: list[dict[str, Any]]) -> list[list[tuple[str, Any]]]:
    return sorted(sorted(row.items()) for row in rows)


def runs_by_name(home: Path) -> dict[str, WandbRun]:
    return {run.name: run for run in read_runs(home).values()}


def test_c087_c092_an_offline_training_is_whole_in_the_run_files(tmp_path: Path) -> None:
    """Without a key: steps given or not, late evaluations, two models, a close in between, a foreign run, no warning."""
    script = """
import wandb
async def main():
    mine = wandb.init(project="mine", name="mine", settings=wandb.Settings(silent=True, console="off"))
    a, b = model("a"), model("b")
    await log(a, 1)
    await log(a, 2, step=5, split="train")
    await asyncio.gather(log(b, 10, step=9), log(a, 3), log(a, 4, step=2), log(b, 11))
    await a.close()
    await a.close()
    await log(a, 5, step=1)
    assert wandb.run is mine
    mine.log({"mine": 1})
    wandb.finish()
    assert wandb.run is None
    await log(b, 12, step=3)
    await a.close()
    await b.close()
asyncio.run(main())
"""
    result = run_script(script, tmp_path, WANDB_MODE="offline")
    assert (result.returncode, result.stdout, warnings_in(result)) == (0, "", [])
    assert "step" not in result.stderr
    assert "never retrieved" not in result.stderr
    runs = runs_by_name(tmp_path)
    assert set(runs) == {"a", "b", "mine"}
    assert runs["mine"].rows == [{"mine": 1}]
    for name in "ab":
        run = runs[name]
        assert run.project == "p"
        told = {"training_step", *(key for row in history(tmp_path, name) for key in row)}
        expected = [
            {"training_step": row["step"], **{k: v for k, v in row.items() if "/" in k}}
            for row in history(tmp_path, name)
        ]
        assert in_order(run.rows) == in_order(expected)
        splits = {key.partition("/")[0] for key in told if "/" in key}
        assert {run.axes[f"{split}/*"] for split in splits} == {"training_step"}
    assert (len(runs["a"].rows), len(runs["b"].rows)) == (5, 3)
    assert (runs["a"].num_files, runs["b"].num_files) == (2, 1)


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "raise RuntimeError('boom')"])
def test_c100_rows_reach_wandb_although_nobody_closes(tmp_path: Path, ending: str) -> None:
    """A script that logs and ends at once, by itself or by an error, leaves a whole run and keeps its exit code."""
    script = f"""
async def main():
    m = model()
    await log(m, 1, step=1)
    await log(m, 2, step=0)
    {ending}
asyncio.run(main())
"""
    result = run_script(script, tmp_path, WANDB_MODE="offline")
    codes = {"": 0, "raise SystemExit(3)": 3}
    assert result.returncode == codes.get(ending, 1)
    assert warnings_in(result) == []
    assert runs_by_name(tmp_path)["m"].rows == [
        {"training_step": 1, "val/x": 1.0},
        {"training_step": 0, "val/x": 2.0},
    ]


def test_c085_switched_off_wandb_is_left_alone(tmp_path: Path) -> None:
    """Disabled, or without a key and a terminal: no prompt, no import where it is disabled, and one warning without a key."""
    script = """
async def main():
    os.environ["WANDB_MODE"] = "disabled"
    off = model("off", report_metrics=["wandb"])
    await log(off, 1)
    assert off._get_wandb_run() is None
    assert "wandb" not in sys.modules
    del os.environ["WANDB_MODE"]
    keyless = model("keyless", report_metrics=["wandb"])
    await log(keyless, 1)
    await log(keyless, 2)
    assert keyless._get_wandb_run() is None
    by_default = model("by-default")
    await log(by_default, 1)
    assert by_default._get_wandb_run() is None
    for m in (off, keyless, by_default):
        await m.close()
asyncio.run(main())
"""
    result = run_script(script, tmp_path)
    assert (result.returncode, result.stdout) == (0, "")
    (warning,) = [line for line in result.stderr.splitlines() if line.strip()]
    assert "WANDB_API_KEY" in warning
    assert [len(history(tmp_path, name)) for name in ("off", "keyless", "by-default")] == [1, 2, 1]
    assert list(tmp_path.glob("**/*.wandb")) == []


@pytest.mark.parametrize("has_temp", [True, False])
def test_a_folder_that_wandb_cannot_write_harms_nothing(tmp_path: Path, has_temp: bool) -> None:
    """Where WANDB_DIR cannot be made, wandb writes elsewhere or not at all, and the training goes on."""
    (tmp_path / "file").touch()
    unwritable = str(tmp_path / "file" / "folder")
    script = f"""
import tempfile
if not {has_temp}:
    tempfile.tempdir = {unwritable!r}
async def main():
    m = model()
    await log(m, 1)
    await m.close()
asyncio.run(main())
"""
    result = run_script(script, tmp_path, WANDB_MODE="offline", WANDB_DIR=unwritable)
    assert result.returncode == 0
    assert [row["val/x"] for row in history(tmp_path)] == [1.0]
    if has_temp:
        assert [len(run.rows) for run in read_runs(tmp_path).values()] == [1]
    else:
        (warning,) = warnings_in(result)
        assert "WandbSink failed" in warning


HOSTILE_SINKS = """
import threading, time
from art.books import log as books_log, sink_dispatcher
books_log._CLOSE_TIMEOUT_S = 1.0
sink_dispatcher._EXIT_TIMEOUT_S = sink_dispatcher._OPEN_TIMEOUT_S = 1.0
class Sink:
    def open(self, context): pass
    def log(self, metrics, step): pass
    def close(self): pass
class Raising(Sink):
    def log(self, metrics, step): raise ValueError("no")
class CloseRaising(Sink):
    def close(self): raise OSError("gone")
class Exiting(Sink):
    def log(self, metrics, step): sys.exit(7)
class OpenHanging(Sink):
    def open(self, context): threading.Event().wait()
class LogHanging(Sink):
    def log(self, metrics, step): threading.Event().wait()
class CloseHanging(Sink):
    def close(self): threading.Event().wait()
class Slow(Sink):
    def log(self, metrics, step): time.sleep(0.05)
class Printing(Sink):
    def log(self, metrics, step): print("got", step, flush=True)
class Logging(Sink):
    has_logged = False
    def log(self, metrics, step):
        logging.getLogger("sink").warning("row %d", step)
        if not self.has_logged:
            self.has_logged = True
            asyncio.run(log(m, 99, step=99))
            asyncio.run(m.close())
m = model(report_metrics=[
    Raising(), CloseRaising(), Exiting(), OpenHanging(), LogHanging(), CloseHanging(), Slow(), Logging(), Printing()
])
async def main():
    for step in range(3):
        await log(m, step, step=step)
    if WITH_CLOSE:
        await m.close()
        await m.close()
    print("done", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("closes", [True, False])
def test_c100_no_sink_reaches_the_training_or_its_end(tmp_path: Path, closes: bool) -> None:
    """Sinks that raise, hang, exit, dawdle or log themselves: every row is on disk, others are served, the exit is clean."""
    result = run_script(HOSTILE_SINKS.replace("WITH_CLOSE", str(closes)), tmp_path, timeout_s=45.0)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert [line for line in lines if line in {"got 0", "got 1", "got 2"}] == [
        "got 0",
        "got 1",
        "got 2",
    ]
    assert "done" in lines
    assert "Traceback" not in result.stderr
    assert "never retrieved" not in result.stderr
    for name in ("Raising", "CloseRaising", "Exiting"):
        assert len([line for line in warnings_in(result) if f"sink {name} failed" in line]) == 1
    assert sorted(row["step"] for row in history(tmp_path)) == [0, 1, 2, 99]


def test_the_wandb_run_is_had_without_the_other_sinks(tmp_path: Path) -> None:
    """Asking for the run opens wandb alone, however another sink behaves, and gives the run that rows go to."""
    script = """
import threading
class Hanging:
    def open(self, context): print("opened", flush=True); threading.Event().wait()
    def log(self, metrics, step): pass
    def close(self): pass
async def main():
    m = model(report_metrics=[Hanging(), "wandb"])
    run = m._get_wandb_run()
    assert run is m._get_wandb_run()
    run.summary["mine"] = 1
    print(run.id, flush=True)
asyncio.run(main())
"""
    result = run_script(script, tmp_path, WANDB_MODE="offline")
    assert result.returncode == 0, result.stderr
    (run,) = read_runs(tmp_path).values()
    assert result.stdout.split() == [run.id]

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.books.sinks import SinkContext
from art.books.wandb_sink import WandbSink, clean_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def context(tmp_path: Path) -> SinkContext:
    return SinkContext("team/exp", "org/model", tmp_path / "model", {"lr": 1e-5})


@pytest.fixture
def wandb_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A wandb that knows nothing of this machine's user, and forgets everything after the test."""
    import wandb

    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ["WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "HOME"]:
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)
    wandb.teardown()
    yield tmp_path / "wandb"
    wandb.teardown()


def read_records(run_file: Path) -> list[Any]:
    """The records of an offline run: a LevelDB log of protobuf messages, here of one block each."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined] # made at run time

    data = run_file.read_bytes()
    records: list[Any] = []
    position = 7
    while position + 7 <= len(data):
        size = int.from_bytes(data[position + 4 : position + 6], "little")
        record = Record()
        record.ParseFromString(data[position + 7 : position + 7 + size])
        records.append(record)
        position += 7 + size
    return records


def history_rows(records: list[Any]) -> list[dict[str, float]]:
    return [
        {
            name: json.loads(item.value_json)
            for item in record.history.item
            if not (name := ".".join(item.nested_key) or item.key).startswith("_")
        }
        for record in records
        if record.HasField("history")
    ]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("art.")]


def test_c089_offline_run_holds_every_row_on_the_training_step_axis(
    wandb_home: Path,
    context: SinkContext,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One run per directory, older steps kept, reopened after a foreign finish, quiet."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    import wandb

    mine = wandb.init(project="mine", settings=wandb.Settings(silent=True, console="off"))
    sink = WandbSink()
    assert sink.run is None
    sink.open(context)
    first = sink.run
    assert first is not None
    assert first.id != mine.id
    assert wandb.run is mine
    sink.log({"train/loss": 1.0, "test/\ud800": 2.0}, 5)
    sink.log({"val/reward": 0.5}, 3)
    first.finish()
    sink.log({"val/reward": 0.75}, 4)
    assert sink.run is not None
    assert sink.run.id == first.id
    sink.close()
    assert sink.run is None
    mine.log({"still": "open"})
    mine.finish()

    rows: list[dict[str, float]] = []
    axes: dict[str, str] = {}
    projects: set[str] = set()
    for run_file in sorted(wandb_home.glob(f"offline-run-*/run-{first.id}.wandb")):
        records = read_records(run_file)
        rows += history_rows(records)
        axes |= {r.metric.glob_name: r.metric.step_metric for r in records if r.HasField("metric")}
        projects |= {r.run.project for r in records if r.HasField("run")}
    assert rows == [
        {"training_step": 5, "train/loss": 1.0, "test/\ufffd": 2.0},
        {"training_step": 3, "val/reward": 0.5},
        {"training_step": 4, "val/reward": 0.75},
    ]
    assert {axes[f"{split}/*"] for split in ("train", "test", "val")} == {"training_step"}
    assert projects == {clean_name("team/exp")}
    assert len([text for text in warnings_of(caplog) if "'team/exp'" in text]) == 1
    output = capfd.readouterr()
    # Where openai is imported and weave is not, wandb advertises it once a process, whatever the settings.
    printed = [
        line for line in output.err.splitlines() if "eave" not in line and "Detected" not in line
    ]
    assert (output.out, printed) == ("", [])


def test_c085_without_a_key_wandb_stays_off(
    wandb_home: Path, context: SinkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """No key, no prompt: one warning that says what to do, and rows go nowhere."""
    sink = WandbSink()
    for _ in range(2):
        sink.open(context)
        sink.log({"val/x": 1.0}, 1)
        assert sink.run is None
        sink.close()
    (warning,) = warnings_of(caplog)
    assert "WANDB_API_KEY" in warning


def test_missing_package_is_told_with_the_extra_to_install(
    context: SinkContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without wandb installed one warning names the extra, and rows go nowhere."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setitem(sys.modules, "wandb", None)
    sink = WandbSink()
    for _ in range(2):
        sink.open(context)
        sink.log({"val/x": 1.0}, 1)
    assert len(caplog.records) == 1
    assert 'pip install "art-rl[wandb]"' in caplog.text


def test_disabled_mode_does_not_even_import_wandb(
    context: SinkContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """WANDB_MODE=disabled wins over a sink that was made by hand, silently."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setitem(sys.modules, "wandb", None)
    sink = WandbSink()
    sink.open(context)
    assert sink.run is None
    assert caplog.records == []


def test_ordinary_names_stay_as_they_are() -> None:
    """A name that wandb takes is not touched."""
    assert clean_name("my model-0_1.a") == "my model-0_1.a"


def test_c083_cleaned_names_keep_apart() -> None:
    """Names that differ only in what wandb refuses get different names there."""
    assert clean_name("org/model") != clean_name("org:model")
    assert clean_name("org/model").startswith("org-model-")
    assert len(clean_name("x" * 500)) <= 128
    assert clean_name("x" * 500) != clean_name("x" * 501)


@given(st.text(st.characters(), min_size=1, max_size=200))
def test_any_name_is_made_legal(name: str) -> None:
    """Whatever the name, the cleaned one has no character that wandb refuses, and cleaning again keeps it."""
    cleaned = clean_name(name)
    assert not re.search(r"[/\\#?%:]", cleaned)
    assert cleaned.encode()
    assert clean_name(cleaned) == cleaned

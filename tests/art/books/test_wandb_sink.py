from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.books.sinks import SinkContext
from art.books.wandb_sink import WandbSink, _has_key, clean_name
from tests.art.books.wandb_files import read_runs

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


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("art.")]


def test_c089_offline_run_holds_every_row_on_the_training_step_axis(
    wandb_home: Path,
    context: SinkContext,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One run per directory, steps in any order kept, resumed after a close, quiet, beside the user's own run."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    import wandb

    mine = wandb.init(project="mine", settings=wandb.Settings(silent=True, console="off"))
    sink = WandbSink()
    assert sink.run is None
    sink.open(context)
    assert sink.run is not None
    run_id = sink.run.id
    assert wandb.run is mine
    sink.log({"train/loss": 1.0, "test/x": 2.0}, 5)
    sink.log({"val/reward": 0.5}, 3)
    sink.log({"val/reward": 0.25}, 5)
    sink.close()
    assert sink.run is None
    sink.open(context)
    sink.log({"val/reward": 0.75}, 4)
    sink.close()
    mine.log({"still": "open"})
    mine.finish()

    runs = read_runs(wandb_home)
    assert set(runs) == {run_id, mine.id}
    assert runs[run_id].rows == [
        {"training_step": 5, "train/loss": 1.0, "test/x": 2.0},
        {"training_step": 3, "val/reward": 0.5},
        {"training_step": 5, "val/reward": 0.25},
        {"training_step": 4, "val/reward": 0.75},
    ]
    axes = runs[run_id].axes
    assert {axes[f"{split}/*"] for split in ("train", "test", "val")} == {"training_step"}
    assert runs[mine.id].rows == [{"still": "open"}]
    assert runs[run_id].config["lr"] == 1e-5
    assert len([text for text in warnings_of(caplog) if "'team/exp'" in text]) == 1
    output = capfd.readouterr()
    # Where openai is imported and weave is not, wandb advertises it once a process, whatever the settings.
    printed = [
        line for line in output.err.splitlines() if "eave" not in line and "Detected" not in line
    ]
    assert (output.out, printed) == ("", [])


@pytest.mark.parametrize("ending", ["run.finish", "wandb.teardown"])
def test_c095_a_run_that_somebody_ended_is_resumed(
    wandb_home: Path, context: SinkContext, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """The row after a foreign end opens the same run again, and no row is lost."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    import wandb

    sink = WandbSink()
    sink.open(context)
    first = sink.run
    assert first is not None
    sink.log({"val/x": 1.0}, 1)
    if ending == "run.finish":
        first.finish()
    else:
        wandb.teardown()
    sink.log({"val/x": 2.0}, 2)
    assert sink.run is not None
    assert sink.run.id == first.id
    sink.close()
    (run,) = read_runs(wandb_home).values()
    assert [row["training_step"] for row in run.rows] == [1, 2]
    assert run.axes["val/*"] == "training_step"


def test_c083_names_arrive_legal_and_apart(
    wandb_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Illegal, overlong and foreign names start a run each, and names that differ only in what is illegal stay apart."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    names = [
        "org/model",
        "org:model",
        "org?model",
        "x" * 300,
        "x" * 301,
        "모델-ü",
        "a\ud800",
        "plain",
    ]
    for i, name in enumerate(names):
        sink = WandbSink()
        sink.open(SinkContext(name, name, tmp_path / str(i)))
        sink.log({"val/x": float(i)}, 0)
        sink.close()
    runs = read_runs(wandb_home).values()
    by_value = {run.rows[0]["val/x"]: run for run in runs}
    assert [by_value[i].name for i in range(len(names))] == [clean_name(name) for name in names]
    assert [by_value[i].project for i in range(len(names))] == [clean_name(name) for name in names]
    assert len({run.name for run in runs}) == len(names)
    assert {"모델-ü", "plain"} <= {run.name for run in runs}


def test_keys_and_config_that_wandb_would_refuse_lose_no_row(
    wandb_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the keys and the config hold, each row arrives, on the axis of its split."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = {"a": "\ud800", "\udfff": {"b.c": [1, None, float("nan")]}, "": 2**80}
    sink = WandbSink()
    sink.open(SinkContext("p", "m", tmp_path / "model", config))
    splits = ["tr*in", "*", "va.l", "v\ud800", "v\\x", "va l", "ключ", "a\nb", "x" * 500]
    for i, split in enumerate(splits):
        keys = ["k", "k*", "a.b.c", "a/b", "", "\udc00", "_step", "\N{GRINNING FACE}"]
        sink.log({f"{split}/{key}": 1.0 for key in keys}, i)
    sink.log({}, len(splits))
    sink.log({"val/big": 1e300, "val/int": 2**70}, -(2**70))
    sink.close()
    (run,) = read_runs(wandb_home).values()
    assert [row["training_step"] for row in run.rows] == [*range(len(splits) + 1), -(2**70)]
    assert {len(row) for row in run.rows[: len(splits)]} == {9}
    for row in run.rows:
        for key in set(row) - {"training_step"}:
            assert run.axes[f"{key.partition('/')[0]}/*"] == "training_step"
    assert "tr\N{ASTERISK OPERATOR}in/k" in run.rows[0]


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


@pytest.mark.parametrize(
    ("machine", "base_url"),
    [
        ("api.wandb.ai", None),
        ("api.forge.coreweave.com", None),
        ("127.0.0.1:9", "http://127.0.0.1:9"),
    ],
)
def test_a_stored_login_is_found(
    wandb_home: Path,
    tmp_path: Path,
    context: SinkContext,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    base_url: str | None,
) -> None:
    """A key that `wandb login` stored counts for the server that it was stored for, and for no other."""
    import wandb

    if base_url is not None:
        monkeypatch.setenv("WANDB_BASE_URL", base_url)
    settings = wandb.setup().settings
    assert not _has_key(settings)
    (tmp_path / "netrc").write_text(f"machine {machine} login user password {'k' * 40}")
    assert _has_key(settings)
    (tmp_path / "netrc").write_text(f"machine other.example login user password {'k' * 40}")
    assert not _has_key(settings)


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

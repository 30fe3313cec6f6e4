from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import art
from art_local.demo import NAME, PROJECT, Plan, command
from art_local.letters import BASE_MODEL

if TYPE_CHECKING:
    from pathlib import Path


def demo_model(path: Path) -> art.TrainableModel:
    return art.TrainableModel(
        name=NAME, project=PROJECT, base_model=BASE_MODEL, base_path=str(path), report_metrics=[]
    )


def read_plan(path: Path) -> dict[str, Any]:
    state = json.loads((path / PROJECT / "models" / NAME / "state.json").read_text())
    plan: dict[str, Any] = state["demo"]
    return plan


def test_plan_is_kept_beside_the_users_own_state(tmp_path: Path) -> None:
    """A plan comes back as it was kept, and other values in state.json stay."""
    model = demo_model(tmp_path)
    model.merge_state({"mine": 1})
    plan = Plan(target_step=25, val_at_start=0.55)
    plan.keep(model)
    assert Plan.read(model) == plan
    assert (model.read_state() or {})["mine"] == 1


def test_finished_plan_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """The result of a finished demo does not leak into the next plan."""
    model = demo_model(tmp_path)
    Plan(target_step=25, val_at_start=0.55, val_at_end=0.99).keep(model)
    Plan(target_step=50, val_at_start=0.55).keep(model)
    assert Plan.read(model) == Plan(target_step=50, val_at_start=0.55)


@pytest.mark.parametrize("kept", [None, "text", {"target_step": 3}, {"other": 1}])
def test_plan_of_another_shape_counts_as_none(kept: object, tmp_path: Path) -> None:
    """What cannot be read as a plan makes the demo plan anew."""
    model = demo_model(tmp_path)
    model.merge_state({"demo": kept})
    assert Plan.read(model) is None


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
def test_number_of_steps_is_checked(
    steps: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number of steps that makes no sense is refused before anything is written."""
    with pytest.raises(SystemExit) as stop:
        command(["--path", str(tmp_path), f"--steps={steps}"])
    assert stop.value.code == 2
    assert "--steps" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_missing_extra_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without torch the demo says in one line what to install, and touches nothing, not even to start over."""
    monkeypatch.setattr("art_local.backend._NEEDED", ("no_such_package",))
    kept = tmp_path / PROJECT / "models" / NAME / "history.jsonl"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert command(["--path", str(tmp_path), "--fresh"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert 'pip install "art-rl[local]"' in error
    assert kept.exists()


@pytest.mark.local
def test_demo_goes_on_and_starts_over(tmp_path: Path) -> None:
    """A finished demo goes on from its start value for more steps; a fresh one deletes its own model alone."""
    neighbour = tmp_path / PROJECT / "models" / "neighbour" / "history.jsonl"
    neighbour.parent.mkdir(parents=True)
    neighbour.touch()
    options = ["--path", str(tmp_path), "--steps", "1"]

    first_status = command(options)
    first = read_plan(tmp_path)
    command(options)
    second = read_plan(tmp_path)
    command([*options, "--fresh"])
    fresh = read_plan(tmp_path)

    assert first_status == (0 if first["val_at_end"] > first["val_at_start"] else 1)
    assert (first["target_step"], second["target_step"], fresh["target_step"]) == (1, 2, 1)
    assert second["val_at_start"] == first["val_at_start"]
    assert 0.4 < fresh["val_at_start"] < 0.7
    assert neighbour.exists()


@pytest.mark.local
def test_demo_does_what_a_killed_one_planned(tmp_path: Path) -> None:
    """A plan without a result is taken up: its start value and its target hold, whatever is asked for now."""
    Plan(target_step=2, val_at_start=0.125).keep(demo_model(tmp_path))
    assert command(["--path", str(tmp_path), "--steps", "1"]) == 0
    assert read_plan(tmp_path)["target_step"] == 2
    assert read_plan(tmp_path)["val_at_start"] == 0.125
    model = tmp_path / PROJECT / "models" / NAME
    assert sorted(file.name for file in (model / "trajectories" / "val").iterdir()) == [
        "0002.parquet"
    ]

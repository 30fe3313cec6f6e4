from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from art.books.paths import ModelPaths
from art.books.trajectory_listing import files_of_model, files_under, locate

if TYPE_CHECKING:
    from pathlib import Path


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize("split", ["train", "a/b", "50%", "100%25"])
@pytest.mark.parametrize("step", [0, 7, 10000, -3])
def test_a_path_of_the_layout_tells_split_step_and_lock(
    split: str, step: int, tmp_path: Path
) -> None:
    """What the layout spells is read back, encoded splits and odd steps included."""
    paths = ModelPaths(tmp_path, "project", "model")

    file = locate(paths.trajectories(split, step))

    assert file is not None
    assert (file.split, file.step) == (split, step)
    assert file.write_lock == paths.write_lock


def test_a_path_outside_a_model_has_no_lock(tmp_path: Path) -> None:
    """Nobody else writes there, and no lock file should appear."""
    file = locate(tmp_path / "downloads" / "0001.jsonl")
    assert file is not None
    assert file.write_lock is None


@pytest.mark.parametrize(
    "name", ["a.parquet", "0001.json", "1.5.jsonl", ".jsonl", "\u0661.jsonl", "0001"]
)
def test_other_names_are_no_trajectory_files(name: str, tmp_path: Path) -> None:
    """A step is digits of ASCII, and its suffix one of the known ones."""
    assert locate(tmp_path / "train" / name) is None


def test_c072_a_models_files_are_in_numeric_order(tmp_path: Path) -> None:
    """By step, then split, then age of the format."""
    names = [
        "b/9999.parquet",
        "a/10000.parquet",
        "b/10000.parquet",
        "b/10000.yaml",
        "b/10000.jsonl",
    ]
    for name in names:
        touch(tmp_path / "trajectories" / name)
    listed = [str(f.path.relative_to(tmp_path / "trajectories")) for f in files_of_model(tmp_path)]
    assert listed == [names[0], names[1], names[3], names[4], names[2]]


def test_all_models_are_found_at_any_depth(tmp_path: Path) -> None:
    """Base path, project, model, or a downloaded split: nothing outside a trajectories directory is taken."""
    first = touch(
        tmp_path / ".art" / "p" / "models" / "m" / "trajectories" / "train" / "0001.jsonl"
    )
    second = touch(tmp_path / ".art" / "p" / "models" / "n" / "trajectories" / "val" / "0002.yaml")
    touch(first.parents[1] / ".migrating%" / "0001.jsonl")
    touch(tmp_path / ".art" / "p" / "data" / "3" / "0003.jsonl")
    touch(tmp_path / ".art" / "p" / "models" / "m" / "checkpoints" / "0001" / "1.jsonl")

    for directory in (tmp_path, tmp_path / ".art", tmp_path / ".art" / "p"):
        assert [file.path for file in files_under(directory)] == [first, second]
    for directory in (first.parents[2], first.parents[1], first.parent):
        assert [file.path for file in files_under(directory)] == [first]
    loose = touch(tmp_path / "downloads" / "train" / "0004.jsonl")
    assert [file.path for file in files_under(tmp_path / "downloads")] == [loose]


def test_relative_paths_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`art migrate .` inside a split's directory finds its files."""
    split = touch(tmp_path / "m" / "trajectories" / "train" / "0001.jsonl").parent
    monkeypatch.chdir(split)
    from pathlib import Path

    [file] = files_under(Path())
    assert (file.split, file.step) == ("train", 1)
    assert file.write_lock == tmp_path / "m" / ".write.lock"

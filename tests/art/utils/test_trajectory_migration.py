from __future__ import annotations

import inspect
import logging
import shutil
from pathlib import Path

import pytest

import art
from art.utils import trajectory_migration
from art.utils.trajectory_logging import read_trajectory_groups_parquet
from art.utils.trajectory_migration import (
    MigrationResult,
    auto_migrate_on_register,
    migrate_all_models,
    migrate_jsonl_to_parquet,
    migrate_model_dir,
    migrate_trajectories_dir,
)
from tests.art.upstream_files import DIRECTORY, groups_in

NAME = "0.5.18.jsonl"
SIZE = (DIRECTORY / NAME).stat().st_size


def place(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(DIRECTORY / NAME, path)
    return path


def holds_all(path: Path) -> bool:
    return art.same_groups(read_trajectory_groups_parquet(path), groups_in(NAME))


def test_a_file_is_migrated_and_deleted(tmp_path: Path) -> None:
    """The default of upstream, after the new file was read back."""
    path = place(tmp_path / "train" / "0001.jsonl")
    result = migrate_jsonl_to_parquet(str(path))
    target = path.with_suffix(".parquet")
    assert (result.files_migrated, result.files_skipped, result.errors) == (1, 0, [])
    assert (result.bytes_before, result.bytes_after) == (SIZE, target.stat().st_size)
    assert not path.exists()
    assert holds_all(target)


def test_the_original_can_be_kept(tmp_path: Path) -> None:
    """A second call then finds nothing to do."""
    path = place(tmp_path / "train" / "0001.jsonl")
    assert migrate_jsonl_to_parquet(path, delete_original=False).files_migrated == 1
    assert holds_all(path.with_suffix(".parquet"))
    again = migrate_jsonl_to_parquet(path, delete_original=False)
    assert (again.files_migrated, again.files_skipped, again.errors) == (0, 1, [])
    assert path.read_bytes() == (DIRECTORY / NAME).read_bytes()


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """Its size is upstream's estimate; a file that could not be migrated is told already."""
    path = place(tmp_path / "train" / "0001.jsonl")
    result = migrate_jsonl_to_parquet(path, dry_run=True)
    assert (result.files_migrated, result.bytes_before) == (1, SIZE)
    assert result.bytes_after == SIZE // 25
    path.with_name("0002.jsonl").write_text("{")
    assert len(migrate_trajectories_dir(tmp_path, dry_run=True).errors) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["0001.jsonl", "0002.jsonl"]


def test_files_that_are_none_are_skipped_or_errors(tmp_path: Path) -> None:
    """Results as upstream's: other suffixes are skipped, what is missing is an error, neither is raised."""
    (tmp_path / "readme.txt").write_text("hello")
    assert migrate_jsonl_to_parquet(tmp_path / "readme.txt") == MigrationResult(files_skipped=1)
    [error] = migrate_jsonl_to_parquet(tmp_path / "0001.jsonl").errors
    assert error.startswith("File not found")
    [error] = migrate_trajectories_dir(tmp_path / "none").errors
    assert error.startswith("Directory not found")
    [error] = migrate_all_models(tmp_path, "none").errors
    assert error.startswith("Models directory not found")
    assert migrate_model_dir(tmp_path) == MigrationResult()


def test_an_empty_file_becomes_an_empty_parquet(tmp_path: Path) -> None:
    """A step without groups; the name need not be a step."""
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    assert migrate_jsonl_to_parquet(path, delete_original=False).files_migrated == 1
    assert read_trajectory_groups_parquet(tmp_path / "empty.parquet") == []


def test_one_bad_file_does_not_stop_the_rest(tmp_path: Path) -> None:
    """Its error is collected, its size counts, and it stays as it is."""
    good = [place(tmp_path / "trajectories" / split / "0002.jsonl") for split in ("train", "val")]
    bad = good[0].with_name("0001.jsonl")
    bad.write_text('{"trajectories": [')
    seen: list[str] = []

    result = migrate_model_dir(tmp_path, progress_callback=seen.append)

    assert seen == [str(bad), *map(str, good)]
    assert (result.files_migrated, result.files_skipped) == (2, 0)
    assert result.bytes_before == 2 * SIZE + len('{"trajectories": [')
    [error] = result.errors
    assert error.startswith(f"Error migrating {bad}")
    assert bad.read_text() == '{"trajectories": ['
    assert not bad.with_suffix(".parquet").exists()
    assert all(holds_all(path.with_suffix(".parquet")) for path in good)


def test_all_models_of_a_project_are_migrated(tmp_path: Path) -> None:
    """Each model is announced; another project is left alone."""
    for project, model in [("p", "b"), ("p", "a"), ("q", "c")]:
        place(tmp_path / project / "models" / model / "trajectories" / "train" / "0001.jsonl")
    seen: list[str] = []
    result = migrate_all_models(
        tmp_path, "p", delete_originals=False, progress_callback=seen.append
    )
    assert (result.files_migrated, result.errors) == (2, [])
    assert [line for line in seen if line.startswith("Processing")] == [
        "Processing model: a",
        "Processing model: b",
    ]
    assert len(list(tmp_path.rglob("*.jsonl"))) == 3
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_registration_migrates_and_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was done is logged, what failed is a warning."""
    path = place(tmp_path / "trajectories" / "train" / "0001.jsonl")
    path.with_name("0002.jsonl").write_text("{")
    with caplog.at_level(logging.INFO):
        result = auto_migrate_on_register(tmp_path)
    assert result.files_migrated == 1
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "1 trajectory files" in caplog.records[0].message
    assert "0002.jsonl" in caplog.records[1].message


def test_results_add_up() -> None:
    """Counts and errors are summed; the ratio of nothing is 0.0."""
    total = MigrationResult(1, 2, 300, 100, ["a"]) + MigrationResult(1, 0, 100, 100, ["b"])
    assert total == MigrationResult(2, 2, 400, 200, ["a", "b"])
    assert (total.compression_ratio, total.space_saved) == (2.0, 200)
    assert MigrationResult().compression_ratio == 0.0


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("migrate_jsonl_to_parquet", "jsonl_path delete_original=True dry_run=False"),
        (
            "migrate_trajectories_dir",
            "trajectories_dir delete_originals=True dry_run=False progress_callback=None",
        ),
        (
            "migrate_model_dir",
            "model_dir delete_originals=True dry_run=False progress_callback=None",
        ),
        (
            "migrate_all_models",
            "art_path project_name delete_originals=True dry_run=False progress_callback=None",
        ),
        ("auto_migrate_on_register", "model_dir"),
        ("serialize_trajectory_groups", "trajectory_groups"),
        ("deserialize_trajectory_groups", "serialized"),
        ("trajectory_group_to_dict", "trajectory_group"),
        ("history_to_dict", "history"),
        ("trajectory_to_dict", "trajectory"),
        ("message_or_choice_to_dict", "message_or_choice"),
        ("dict_to_trajectory_group", "d"),
        ("dict_to_trajectory", "d"),
        ("dict_to_message_or_choice", "d"),
    ],
)
def test_functions_take_upstreams_parameters(name: str, parameters: str) -> None:
    """Scripts pass them by position and by name."""
    found = inspect.signature(getattr(trajectory_migration, name)).parameters.values()
    told = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in found]
    assert " ".join(told) == parameters

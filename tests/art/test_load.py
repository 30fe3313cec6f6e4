from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import art
from art.books.trajectory_file import append_groups, write_groups
from art.errors import ConfigurationError, LogError
from art.utils.trajectory_json import serialize_trajectory_groups
from tests.art.factories import group, model
from tests.art.upstream_files import DIRECTORY, groups_in

FILES = sorted(p.name for p in DIRECTORY.iterdir() if p.suffix != ".md")


def rewards(groups: list[art.TrajectoryGroup]) -> list[list[float]]:
    return [[trajectory.reward for trajectory in group] for group in groups]


def write(path: Path, *groups: art.TrajectoryGroup) -> None:
    """Write groups in the format that the suffix names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        write_groups(path, groups)
    else:
        path.write_text(serialize_trajectory_groups(list(groups)))


@pytest.mark.parametrize("name", FILES)
def test_c160_any_file_of_upstream_is_read_whole(name: str) -> None:
    """Everything that a release wrote comes back, Choices as Choices."""
    assert art.same_groups(art.load_trajectories(DIRECTORY / name), groups_in(name))
    assert art.same_groups(art.load_trajectories(str(DIRECTORY / name)), groups_in(name))


def test_c072_steps_come_in_order_of_their_numbers(tmp_path: Path) -> None:
    """Step 10000 follows step 9999, though its name sorts before it."""
    for step in (10000, 9999, -1, 2):
        write(tmp_path / "trajectories" / "train" / f"{step:04d}.parquet", group(step))
    write(tmp_path / "trajectories" / "val" / "0002.jsonl", group(2.5))

    assert rewards(art.load_trajectories(tmp_path)) == [[-1.0], [2.0], [2.5], [9999.0], [10000.0]]


async def test_what_a_model_logged_is_read_back_in_order_of_the_calls(tmp_path: Path) -> None:
    """All splits and steps of a model's directory, several logs of one step included."""
    agent = model(tmp_path)
    for step, reward in [(3, 0.0), (1, 1.0), (3, 2.0)]:
        await agent.log([group(reward)], split="train", step=step)
    await agent.log([group(4.0)], split="a/b", step=1)

    directory = art.model_dir(agent)

    assert rewards(art.load_trajectories(directory)) == [[4.0], [1.0], [0.0], [2.0]]
    assert rewards(art.load_trajectories(directory, split="a/b")) == [[4.0]]
    assert rewards(art.load_trajectories(directory, split={"train"}, step=range(2, 9))) == [
        [0.0],
        [2.0],
    ]
    assert rewards(art.load_trajectories(directory, step=1)) == [[4.0], [1.0]]
    assert art.load_trajectories(directory, split="tr") == []
    assert rewards(art.load_trajectories(directory / "trajectories", step=[1])) == [[4.0], [1.0]]
    in_split = directory / "trajectories" / "train"
    assert rewards(art.load_trajectories(in_split)) == [[1.0], [0.0], [2.0]]
    assert rewards(art.load_trajectories(in_split / "0003.parquet", step=3)) == [[0.0], [2.0]]
    assert art.load_trajectories(in_split / "0003.parquet", split="val") == []


@pytest.mark.parametrize("name", ["0.5.18.jsonl", "0.5.23.jsonl", "2025-06.yaml"])
def test_c160_a_step_in_two_formats_is_read_once(name: str, tmp_path: Path) -> None:
    """A migration that kept its source doubles nothing, and the older file is the fuller one."""
    old = tmp_path / "train" / f"0001{Path(name).suffix}"
    old.parent.mkdir()
    shutil.copy(DIRECTORY / name, old)
    shutil.copy(DIRECTORY / "0.5.18-v1.parquet", old.with_suffix(".parquet"))

    assert art.same_groups(art.load_trajectories(tmp_path), groups_in(name))

    append_groups(old.with_suffix(".parquet"), [group(7.0)], split="train", step=1)
    assert art.same_groups(art.load_trajectories(tmp_path), [*groups_in(name), group(7.0)])


def test_c160_a_step_that_goes_on_in_another_format_is_read_whole(tmp_path: Path) -> None:
    """Where a run resumed at a step that upstream had logged as JSONL, both files count, the older one first."""
    write(tmp_path / "train" / "0001.jsonl", group(1.0))
    write(tmp_path / "train" / "0001.parquet", group(2.0))

    assert rewards(art.load_trajectories(tmp_path)) == [[1.0], [2.0]]


def test_files_in_the_making_and_strangers_are_left_alone(tmp_path: Path) -> None:
    """Only `{step}.{suffix}` is a trajectory file."""
    split = tmp_path / "trajectories" / "train"
    write(split / "0001.parquet", group(1.0))
    for name in ("notes.jsonl", ".0002.parquet.1.tmp", "0002.parquet.unreadable-1", "0003.txt"):
        (split / name).write_text("no trajectories")
    write(split / ".migrating%" / "0001.parquet", group(2.0))
    write(split.parent / ".migrating%" / "0001.parquet", group(2.0))
    (split / "0004.jsonl").mkdir()

    assert rewards(art.load_trajectories(tmp_path)) == [[1.0]]


async def test_a_split_may_begin_with_a_dot(tmp_path: Path) -> None:
    """What a model may log can be loaded."""
    agent = model(tmp_path)
    await agent.log([group(1.0)], split=".debug", step=1)

    assert rewards(art.load_trajectories(art.model_dir(agent))) == [[1.0]]


def test_steps_may_be_numbers_of_numpy_or_come_from_an_iterator(tmp_path: Path) -> None:
    """As a query of the history returns them."""
    for step in (1, 2, 3):
        write(tmp_path / "trajectories" / "train" / f"{step:04d}.parquet", group(step))

    given: list[Any] = [np.array([3, 1]), iter([3, 1])]
    for steps in given:
        assert rewards(art.load_trajectories(tmp_path, step=steps)) == [[1.0], [3.0]]
    assert rewards(art.load_trajectories(tmp_path, step=np.int64(2))) == [[2.0]]  # type: ignore[arg-type]


def test_an_unreadable_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Rollouts never go missing unnoticed."""
    write(tmp_path / "train" / "0001.parquet", group(1.0))
    (tmp_path / "train" / "0002.jsonl").write_text('{"trajectories": []}\n{"trajec')

    with pytest.raises(LogError, match=r"0002\.jsonl .*line 2"):
        art.load_trajectories(tmp_path)
    assert rewards(art.load_trajectories(tmp_path, step=1)) == [[1.0]]


def test_unreadable_files_can_be_left_out_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names each of them."""
    write(tmp_path / "train" / "0001.parquet", group(1.0))
    (tmp_path / "train" / "0002.jsonl").write_text("{")
    (tmp_path / "train" / "0003.parquet").write_bytes(b"PAR1")

    with caplog.at_level(logging.WARNING):
        groups = art.load_trajectories(tmp_path, skip_unreadable=True)

    assert rewards(groups) == [[1.0]]
    [record] = caplog.records
    assert "0002.jsonl" in record.message
    assert "0003.parquet" in record.message


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    """A misspelt path is not taken for an empty log."""
    with pytest.raises(FileNotFoundError, match="agnet"):
        art.load_trajectories(tmp_path / "agnet")
    with pytest.raises(FileNotFoundError):
        art.load_trajectories(tmp_path / "0001.parquet")


def test_a_directory_of_something_else_is_an_error(tmp_path: Path) -> None:
    """A project is refused, for its models are not to be mixed; a model that has logged nothing is empty."""
    split = tmp_path / "p" / "models" / "m" / "trajectories" / "train"
    write(split / "0001.jsonl", group(1.0))
    with pytest.raises(ConfigurationError, match="pass a model's directory"):
        art.load_trajectories(tmp_path / "p")
    (split / "0001.jsonl").unlink()
    for path in (split, split.parent, split.parent.parent):
        assert art.load_trajectories(path) == []


def test_a_file_goes_by_its_suffix(tmp_path: Path) -> None:
    """Another suffix is refused with the ones that are known."""
    path = tmp_path / "groups.json"
    path.write_text("[]")
    with pytest.raises(ConfigurationError, match=r"\.jsonl"):
        art.load_trajectories(path)

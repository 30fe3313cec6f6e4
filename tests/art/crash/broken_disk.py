"""What a disk that breaks does to each kind of write: every scenario, one model each; see `test_broken_disk.py`.

python -m tests.art.crash.broken_disk {kind of disk} {directory}
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import art
from art.books.trajectory_file import read_groups
from art.errors import LogError
from art.testing import InMemoryBackend
from tests.art.crash.disks import KINDS, Disk
from tests.art.factories import group, model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

Agent = art.TrainableModel[Any, Any]


class Place:
    """A model on a disk that can break."""

    def __init__(self, disk: Disk, name: str) -> None:
        self.disk = disk
        self._name = name
        self.agent = self.fresh_model()
        self.root = art.model_dir(self.agent)

    def fresh_model(self) -> Agent:
        return model(self.disk.directory, self._name)

    def files(self) -> dict[str, bytes]:
        """Everything of the model but its locks, temporary files included."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and not path.name.endswith(".lock")
        }

    def rows(self) -> list[dict[str, Any]]:
        lines = (self.root / "history.jsonl").read_bytes().splitlines()
        return [json.loads(line) for line in lines if line]

    def steps(self) -> list[int]:
        lines = (self.root / "steps.jsonl").read_bytes().splitlines()
        return [json.loads(line)["step"] for line in lines if line]

    def groups_of(self, split: str, step: int) -> list[art.TrajectoryGroup]:
        return read_groups(self.root / "trajectories" / split / f"{step:04d}.parquet")

    async def write_and_fail(self, write: Callable[[], Awaitable[object]], path: Path) -> None:
        """A write while the disk is broken raises, and leaves every file as it was to the byte."""
        self.disk.break_down(path)
        before = self.files()
        with pytest.raises(LogError, match=self.disk.advice) as caught:
            await write()
        self.disk.mend()
        assert str(path if self.disk.names_file else self.root) in str(caught.value)
        assert self.files() == before


async def first_log(place: Place) -> None:
    """The directory of the model does not exist yet."""
    place.disk.break_down(place.disk.directory / "none")
    with pytest.raises(LogError, match=place.disk.advice) as caught:
        await place.agent.log([group(1.0)])
    place.disk.mend()
    assert str(place.root) in str(caught.value)
    assert place.files() == {}
    await place.agent.log([group(1.0)])
    assert len(place.rows()) == len(place.groups_of("val", 0)) == 1


async def metrics(place: Place) -> None:
    """A row of the history."""
    await place.agent.log(metrics={"score": 1.0})
    await place.write_and_fail(
        lambda: place.agent.log(metrics={"score": 2.0}), place.root / "history.jsonl"
    )
    await place.agent.log(metrics={"score": 3.0})
    assert [row["val/score"] for row in place.rows()] == [1.0, 3.0]


async def trajectories(place: Place) -> None:
    """A new trajectory file: there is no row without it."""
    await place.agent.log([group(1.0)])
    file = place.root / "trajectories/val/0007.parquet"
    await place.write_and_fail(lambda: place.agent.log([group(2.0)], step=7), file)
    await place.agent.log([group(3.0)], step=7)
    assert [row["val/reward"] for row in place.rows()] == [1.0, 3.0]
    assert art.same_groups(place.groups_of("val", 7), [group(3.0)])


async def same_step_again(place: Place) -> None:
    """A step that was logged before: what it holds must survive."""
    await place.agent.log([group(1.0)])
    file = place.root / "trajectories/val/0000.parquet"
    many = [group(*[float(i)] * 50) for i in range(20)]  # so that the file must grow
    await place.write_and_fail(lambda: place.agent.log(many), file)
    await place.agent.log([group(3.0)])
    assert [row["val/reward"] for row in place.rows()] == [1.0, 3.0]
    assert art.same_groups(place.groups_of("val", 0), [group(1.0), group(3.0)])


async def state(place: Place) -> None:
    """The user's state."""
    place.agent.merge_state({"offset": 1})

    async def merge_too_much() -> None:
        place.agent.merge_state({"offset": 2, "filler": "x" * 10_000})

    await place.write_and_fail(merge_too_much, place.root / "state.json")
    assert place.agent.read_state() == {"offset": 1}
    assert place.agent.merge_state({"next": 3}) == {"offset": 1, "next": 3}


class Breaking(InMemoryBackend):
    """A backend that commits its checkpoint and breaks the disk, when it is told on which file."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self.disk = disk
        self.room_at: Path | None = None

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        async for event in super()._train_model(*args, **kwargs):
            yield event
        if self.room_at is not None:
            self.disk.break_down(self.room_at)

    async def _get_step(self, model: Agent) -> int:
        return max(self._steps(model))


async def train(place: Place) -> None:
    """A train call before which the disk broke: the backend is not asked for nothing."""
    backend = Breaking(place.disk)
    await place.agent.register(backend)
    await place.agent.train([group(0.0, 1.0)])
    file = place.root / "trajectories/train/0001.parquet"
    await place.write_and_fail(lambda: place.agent.train([group(0.0, 2.0)]), file)
    assert len(backend.calls) == 1
    assert (await place.agent.train([group(0.0, 3.0)])).step == 2
    assert place.steps() == [1, 2]
    assert art.same_groups(place.groups_of("train", 1), [group(0.0, 3.0)])


async def _break_in_train(place: Place, spelling: str, file_name: str) -> list[int]:
    """Break the disk once checkpoint 2 stands, and go on in this process and in a new one.

    The step is neither trained again nor left out. Returns the steps of the rows.
    """
    backend = Breaking(place.disk)
    await place.agent.register(backend)
    await place.agent.train([group(0.0, 1.0)])
    file = backend.room_at = place.root / file_name
    call = place.agent.train if spelling == "model.train" else partial(backend.train, place.agent)
    with pytest.raises(LogError, match=place.disk.advice) as caught:
        await call([group(0.0, 2.0)])
    place.disk.mend()
    assert str(file if place.disk.names_file else place.root) in str(caught.value)
    backend.room_at = None
    assert (await place.agent.train([group(0.0, 3.0)])).step == 3
    again = place.fresh_model()
    await again.register(backend)
    assert (await again.train([group(0.0, 4.0)])).step == 4
    assert place.steps() == [1, 2, 3, 4]
    return [row["step"] for row in place.rows()]


async def commit_of_model_train(place: Place) -> None:
    """The disk breaks under the line that says that step 2 stands; the batch was logged before."""
    rows = await _break_in_train(place, "model.train", "steps.jsonl")
    assert rows == [0, 1, 1, 2, 3, 3, 4]
    assert art.same_groups(place.groups_of("train", 1), [group(0.0, 2.0)])


async def row_of_model_train(place: Place) -> None:
    """The disk breaks after that line, under the row."""
    rows = await _break_in_train(place, "model.train", "history.jsonl")
    assert rows == [0, 1, 1, 2, 3, 3, 4]


async def commit_of_backend_train(place: Place) -> None:
    """The other spelling, which writes that line alone."""
    rows = await _break_in_train(place, "backend.train", "steps.jsonl")
    assert rows == [0, 1, 2, 3, 3, 4]


SCENARIOS = (first_log, metrics, trajectories, same_step_again, state, train)
SCENARIOS_IN_TRAIN = (commit_of_model_train, row_of_model_train, commit_of_backend_train)


def main(kind: str, directory: str) -> int:
    disk = KINDS[kind](Path(directory))
    # Another user may not be allowed to read the modules that are imported late.
    asyncio.run(Place(disk, "warm_up").agent.log([group(1.0)]))
    num_failed = 0
    for scenario in SCENARIOS + (SCENARIOS_IN_TRAIN if disk.breaks_in_train else ()):
        try:
            asyncio.run(scenario(Place(disk, scenario.__name__)))
        except Exception:  # noqa: BLE001 - the others are tried all the same
            traceback.print_exc()
            num_failed += 1
        finally:
            disk.mend()
    return num_failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

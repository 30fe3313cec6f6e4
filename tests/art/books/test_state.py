from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from art.books.state import StateFile
from art.errors import LogError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


@pytest.fixture
def state(path: Path) -> StateFile:
    return StateFile(path, path.with_name(".write.lock"))


def test_no_state_is_none(state: StateFile) -> None:
    """Before the first write there is no state."""
    assert state.read() is None


def test_overwrite_replaces_everything(state: StateFile) -> None:
    """An overwrite leaves nothing of the old state."""
    state.overwrite({"a": 1})
    state.overwrite({"b": {"c": [1, 2]}})
    assert state.read() == {"b": {"c": [1, 2]}}


def test_merge_goes_into_objects(state: StateFile) -> None:
    """A merge replaces values, keeps what it does not name, and returns the result."""
    assert state.merge({"a": {"b": 1, "c": [1]}, "x": 1}) == {"a": {"b": 1, "c": [1]}, "x": 1}
    merged = state.merge({"a": {"c": [2], "d": 3}, "x": {"y": 1}})
    assert merged == state.read() == {"a": {"b": 1, "c": [2], "d": 3}, "x": {"y": 1}}


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"[1]", b"\xff", b"[" * 100_000])
def test_damaged_state_is_an_error_with_its_path_and_is_kept(
    path: Path, state: StateFile, content: bytes
) -> None:
    """A state that cannot be read is told, and neither taken for an empty one nor overwritten by a merge."""
    path.write_bytes(content)
    with pytest.raises(LogError, match=str(path)):
        state.read()
    with pytest.raises(LogError, match="move it aside"):
        state.merge({"b": 1})
    assert path.read_bytes() == content


def test_what_is_not_json_leaves_the_state_as_it_was(path: Path, state: StateFile) -> None:
    """A value that JSON cannot hold raises with the path, and the old state stays."""
    state.overwrite({"a": 1})
    with pytest.raises(TypeError, match=str(path)):
        state.merge({"b": object()})
    assert state.read() == {"a": 1}


def test_merges_at_once_lose_nothing(path: Path) -> None:
    """Threads that merge into one file at once all find their key in it."""

    def merge(key: str) -> None:
        StateFile(path, path.with_name(".write.lock")).merge({key: 1})

    threads = [threading.Thread(target=merge, args=(f"k{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert StateFile(path, path.with_name(".write.lock")).read() == {f"k{i}": 1 for i in range(8)}

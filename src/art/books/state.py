"""The only reader and writer of `state.json`, where the user keeps values of a run (a data set offset, ...)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from art.books.atomic import write_json
from art.books.lock import write_lock
from art.books.os_errors import log_error
from art.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class StateFile:
    """The user's state of one model, on disk.

    Args:
        path: The file; it is made by the first write.
        lock_path: The write lock of the model directory.
    """

    def __init__(self, path: Path, lock_path: Path) -> None:
        self._path = path
        self._lock_path = lock_path

    def read(self) -> dict[str, Any] | None:
        """Return the state, or None if none was ever saved.

        Raises:
            LogError: The file is damaged or cannot be read.
        """
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise log_error("read", self._path, error) from error
        try:
            state = json.loads(text.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise LogError(
                f"{self._path} is damaged ({error}); repair it, or move it aside"
            ) from error
        if not isinstance(state, dict):
            raise LogError(
                f"{self._path} holds a JSON {type(state).__name__}, not an object; "
                "repair it, or move it aside"
            )
        return cast("dict[str, Any]", state)

    def overwrite(self, state: Mapping[str, Any]) -> None:
        """Replace the whole state.

        Raises:
            TypeError: A value is not JSON; the file is as it was.
            LogError: The file could not be written; it is as it was.
        """
        with write_lock(self._lock_path):
            self._write(state)

    def merge(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Merge into the saved state, objects inside objects too, and return the result.

        Raises:
            TypeError: A value is not JSON; the file is as it was.
            LogError: The file is damaged, or could not be written; it is as it was.
        """
        with write_lock(self._lock_path):
            merged = _deep_merge(self.read() or {}, state)
            self._write(merged)
        return merged

    def _write(self, state: Mapping[str, Any]) -> None:
        try:
            write_json(self._path, dict(state))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"the state for {self._path} is not JSON: {error}") from error


def _deep_merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in patch.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _deep_merge(old, value)
        else:
            merged[key] = value
    return merged

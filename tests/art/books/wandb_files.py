"""What wandb wrote of an offline run, read without wandb-core: a LevelDB log of protobuf records."""

from __future__ import annotations

import json
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK = 32768
_HEADER = struct.Struct("<IHB")  # checksum, length, type
_FILE_HEADER_SIZE = 7
_TIMEOUT_S = 10.0
_LAST_TYPES = {1, 4}  # a record in one piece, or the last piece of one


@dataclass
class WandbRun:
    """One run: everything that its files hold, in the order of the files."""

    id: str
    project: str = ""
    name: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)  # by pattern: the x axis
    config: dict[str, Any] = field(default_factory=dict)
    num_files: int = 0


def read_runs(directory: Path) -> dict[str, WandbRun]:
    """Return the offline runs below a directory by id."""
    runs: dict[str, WandbRun] = {}
    for path in sorted(directory.glob("**/offline-run-*/run-*.wandb")):
        run_id = path.stem.removeprefix("run-")
        run = runs.setdefault(run_id, WandbRun(run_id))
        run.num_files += 1
        for record in _records_when_finished(path):
            if record.HasField("history"):
                run.rows.append(_row(record.history))
            elif record.HasField("metric"):
                run.axes[record.metric.glob_name] = record.metric.step_metric
            elif record.HasField("run"):
                run.project, run.name = record.run.project, record.run.display_name
                run.config |= {u.key: json.loads(u.value_json) for u in record.run.config.update}
    return runs


def _row(history: Any) -> dict[str, Any]:
    row = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in history.item}
    return {key: value for key, value in row.items() if not key.startswith("_")}


def _records_when_finished(path: Path) -> list[Any]:
    """Wait for the record that ends a run: wandb's service writes it a moment after `finish` has returned."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        records = list(_records(path))
        if any(record.HasField("exit") for record in records) or time.monotonic() > deadline_s:
            return records
        time.sleep(0.02)


def _records(path: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined] # made at run time

    data = path.read_bytes()
    position = _FILE_HEADER_SIZE
    pieces = b""
    while position + _HEADER.size <= len(data):
        left_in_block = _BLOCK - position % _BLOCK
        if left_in_block < _HEADER.size:
            position += left_in_block
            continue
        _, size, kind = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        if position + size > len(data):
            return  # still being written
        pieces += data[position : position + size]
        position += size
        if kind in _LAST_TYPES:
            yield Record.FromString(pieces)
            pieces = b""

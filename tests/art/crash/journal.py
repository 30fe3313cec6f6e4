"""What must be on disk after some operations, the last of which may have been cut short, and the check of it."""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import art
from art.books.trajectory_file import read_logs
from tests.art.crash.file_backend import steps_in
from tests.art.crash.work import BEST_BY, Op, groups_of, state_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass
class Entry:
    """One operation, and what became of it.

    Attributes:
        op: The operation.
        is_done: It was acknowledged.
        effects: What of it is on disk: all of it once it is done, else what the next life found.
        kept: The checkpoints right after it, where it deleted some.
    """

    op: Op
    is_done: bool = False
    effects: list[str] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)


@dataclass
class Journal:
    """The operations of all lives so far, kept by the process that kills.

    Attributes:
        entries: Oldest first.
        checked: Checksum of each trajectory file that was compared in full: unchanged bytes are not compared
            again.
        leftovers: Temporary files that the latest check found.
        num_checked: Entries that it knew.
    """

    entries: list[Entry] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    leftovers: list[str] = field(default_factory=list)
    num_checked: int = 0

    def begin(self, op: Op) -> None:
        self.entries.append(Entry(op))

    def finish(self, kept: list[int]) -> None:
        entry = self.entries[-1]
        entry.is_done, entry.kept, entry.effects = True, kept, list(entry.op.effects)

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Journal:
        value = json.loads(text)
        entries = [Entry(**{**entry, "op": Op(**entry["op"])}) for entry in value["entries"]]
        return cls(**{**value, "entries": entries})


def check(root: Path, journal: Journal) -> None:
    """Compare a model directory with the journal, whose last entry takes up what is found of it.

    Raises:
        AssertionError: Something acknowledged is missing or changed, or something else is there.
    """
    rows = _rows(root)
    _resolve_last(root, rows, journal)
    _check_rows(rows, journal)
    _check_files(root, journal)
    _check_steps(root, journal)
    _check_checkpoints(root, rows, journal)
    _check_state(root, journal)
    _check_leftovers(root, journal)


# --- what is there, read with the standard library alone where that is possible ---


def _rows(root: Path) -> list[dict[str, Any]]:
    """The rows of the history. A line that is no JSON is what a kill cut short: checked by what is missing."""
    path = root / "history.jsonl"
    rows = []
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def _file_of(root: Path, op: Op) -> Path:
    return root / "trajectories" / op.split / f"{op.logged_at:04d}.parquet"


def _kind_of_row(row: dict[str, Any]) -> str:
    is_of_a_train = "train/num_groups_submitted" in row and "policy_step" not in row
    return "train row" if is_of_a_train else "row"


def _number_of(row: dict[str, Any]) -> int:
    return int(row["train/op"] if "train/op" in row else row["val/op"])


def _state(root: Path) -> dict[str, Any]:
    path = root / "state.json"
    state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return state


# --- the operation that was cut short ---


def _resolve_last(root: Path, rows: list[dict[str, Any]], journal: Journal) -> None:
    """Find out how far the last operation came. Whatever it left must be a beginning of its effects."""
    if not journal.entries or journal.entries[-1].is_done:
        return
    entry = journal.entries[-1]
    op, file = entry.op, _file_of(root, entry.op)
    ours = {_kind_of_row(row) for row in rows if _number_of(row) == op.number}
    existing = steps_in(root / "checkpoints")
    found = {
        "file": file.exists() and len(read_logs(file)) > len(_ops_in_file(journal, file, root)),
        "row": "row" in ours,
        "train row": "train row" in ours,
        "checkpoint": op.step + 1 in existing,
        "state": _state(root).get("last") == op.number,
    }
    entry.effects = [effect for effect in op.effects if found[effect]]
    assert entry.effects == list(op.effects[: len(entry.effects)]), f"{op}: only {entry.effects}"
    if op.kind == "delete":
        before = _checkpoints(journal.entries[:-1])
        assert set(_kept(rows, before)) <= set(existing) <= set(before), f"{op} left {existing}"
        entry.kept = existing


# --- checks ---


def _check_rows(rows: list[dict[str, Any]], journal: Journal) -> None:
    expected = {
        (entry.op.number, effect): entry.op
        for entry in journal.entries
        for effect in entry.effects
        if effect in {"row", "train row"}
    }
    assert Counter((_number_of(row), _kind_of_row(row)) for row in rows) == Counter(expected.keys())
    for row in rows:
        op, kind = expected[_number_of(row), _kind_of_row(row)], _kind_of_row(row)
        assert row["step"] == (op.step + 1 if kind == "train row" else op.logged_at), row
        assert row.get("policy_step") == (op.policy_step if kind == "row" else None), row
        if kind == "row" and op.kind != "metrics":
            rewards = [t.reward for group in groups_of(op) for t in group]
            assert row[f"{op.split}/num_trajectories"] == op.size, row
            assert math.isclose(row[f"{op.split}/reward"], math.fsum(rewards) / op.size), row


def _ops_in_file(journal: Journal, path: Path, root: Path) -> list[Op]:
    return [
        entry.op
        for entry in journal.entries
        if "file" in entry.effects and _file_of(root, entry.op) == path
    ]


def _check_files(root: Path, journal: Journal) -> None:
    paths = {_file_of(root, entry.op) for entry in journal.entries if "file" in entry.effects}
    there = {path for path in root.glob("trajectories/*/*") if not path.name.startswith(".")}
    assert there == paths, f"missing or unknown: {there ^ paths}"
    for path in sorted(paths):
        name, checksum = str(path.relative_to(root)), zlib.crc32(path.read_bytes())
        if journal.checked.get(name) == checksum:
            continue
        logs = read_logs(path)
        ops = _ops_in_file(journal, path, root)
        assert list(logs) == list(range(len(ops))), f"{name} holds logs {list(logs)}"
        for op, groups in zip(ops, logs.values(), strict=True):
            assert art.same_groups(groups, groups_of(op)), f"{name}: {op} was changed"
        journal.checked[name] = checksum


def _check_steps(root: Path, journal: Journal) -> None:
    """The account is contiguous, and each step belongs to one train."""
    path = root / "steps.jsonl"
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    steps = [json.loads(line)["step"] for line in lines if line.endswith(b"}")]
    assert steps == list(range(1, len(steps) + 1)), f"the account is {steps}"
    trained = [entry.op.step + 1 for entry in journal.entries if "checkpoint" in entry.effects]
    assert steps == trained, f"the account is {steps}, trained were {trained}"


def _check_checkpoints(root: Path, rows: list[dict[str, Any]], journal: Journal) -> None:
    existing, expected = steps_in(root / "checkpoints"), _checkpoints(journal.entries)
    assert existing == expected, f"there are checkpoints {existing}, not {expected}"
    for i in range(journal.num_checked, len(journal.entries)):
        entry = journal.entries[i]
        if entry.is_done and entry.op.kind == "delete":
            earlier = [row for row in rows if _number_of(row) < entry.op.number]
            kept = _kept(earlier, _checkpoints(journal.entries[:i]))
            assert entry.kept == kept, f"{entry.op} kept {entry.kept}, not {kept}"


def _checkpoints(entries: Iterable[Entry]) -> list[int]:
    steps = [0]
    for entry in entries:
        if "checkpoint" in entry.effects:
            steps.append(entry.op.step + 1)
        elif entry.op.kind == "delete" and entry.kept:
            steps = list(entry.kept)
    return steps


def _kept(rows: list[dict[str, Any]], existing: list[int]) -> list[int]:
    """The latest and the best of the existing checkpoints; all, as long as none has the metric."""
    sums: dict[int, list[float]] = {}
    for row in rows:
        if BEST_BY in row and row["step"] in existing:
            total = sums.setdefault(row["step"], [0.0, 0.0])
            total[0] += row[BEST_BY] * row["val/num_trajectories"]
            total[1] += row["val/num_trajectories"]
    means = {step: total / weight for step, (total, weight) in sums.items()}
    return sorted({max(means, key=means.__getitem__), existing[-1]}) if means else existing


def _check_leftovers(root: Path, journal: Journal) -> None:
    """A log removes the temporary files of the lives before it, so that they do not pile up."""
    leftovers = sorted({path.name for path in root.rglob("*.tmp")})
    has_logged = any(
        entry.is_done and "row" in entry.effects for entry in journal.entries[journal.num_checked :]
    )
    old = set(leftovers) & set(journal.leftovers)
    assert not (has_logged and old), f"temporary files pile up: {old}"
    journal.leftovers, journal.num_checked = leftovers, len(journal.entries)


def _check_state(root: Path, journal: Journal) -> None:
    expected: dict[str, Any] = {}
    for entry in journal.entries:
        if "state" in entry.effects:
            of = expected.get("of", {})
            expected = {**state_of(entry.op)}
            expected["of"] = of | expected["of"]
    assert _state(root) == expected

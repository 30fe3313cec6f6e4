"""Histories as they are and as disks, editors and other programs leave them, and what they come to, told plainly."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from art.books.jsonl import JsonLinesReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from art.books.ledger import Rewind

KEYS = [
    "train/reward_std_dev",
    "train/num_groups_scored",
    "train/num_trajectories",
    "val/reward",
    "val/num_trajectories",
    "train/loss",
    "late/\u2028key",
]

_numbers = st.one_of(
    st.floats(-1e6, 1e6).map(repr),
    st.integers(0, 9).map(str),
    st.integers(-(2**80), 2**80).map(str),
    st.sampled_from(
        ["0.0", "-0", "1E5", "5e-324", "1e-400", "0.1000000000000000055511151231257827021"]
    ),
)
_odd_values = st.sampled_from(
    [
        *(
            "NaN",
            "Infinity",
            "-Infinity",
            "1e400",
            "9" * 400,
            "true",
            "null",
            '"high"',
            '"1.5"',
            "[1]",
        ),
        *('{"a": 1}', '"\\ud800"', '"\u2028"', '"\\u0061"'),
    ]
)
_steps = st.integers(0, 12).map(str)
_odd_steps = st.sampled_from(["2.0", "2.5", "true", '"3"', "null", str(2**63), str(-(2**63)), "-1"])


def _line(step: str | None, policy_step: str | None, values: dict[str, str]) -> bytes:
    items = {json.dumps(key, ensure_ascii="late" not in key): text for key, text in values.items()}
    if step is not None:
        items['"step"'] = step
    if policy_step is not None:
        items['"policy_step"'] = policy_step
    items['"recorded_at"'] = '"2026-01-01T00:00:00+00:00"'
    return ("{" + ", ".join(f"{key}: {text}" for key, text in items.items()) + "}").encode()


def _lines(
    steps: st.SearchStrategy[Any], values: st.SearchStrategy[str]
) -> st.SearchStrategy[bytes]:
    return st.builds(
        _line, steps, st.none() | steps, st.dictionaries(st.sampled_from(KEYS), values, max_size=5)
    )


good_lines = _lines(_steps, _numbers)
odd_lines = st.one_of(
    _lines(_steps, _numbers | _odd_values),
    _lines(_odd_steps | st.none(), _numbers),
    good_lines.map(lambda line: b"\xef\xbb\xbf" + line),
    good_lines.map(lambda line: line + b"\r"),
    good_lines.map(lambda line: b"\0" * 9 + line),
    good_lines.map(lambda line: line + b" {}"),
    st.tuples(good_lines, good_lines).map(b"\r".join),
    st.builds(lambda line, end: line[: end % len(line)], good_lines, st.integers(0)),
    st.sampled_from([b"", b"  ", b"[1, 2]", b"null", b"3", b"{}", b"\0\0", b"\xff", b"[" * 2000]),
    st.just(b'{"step": 1, "x": ' + b"[" * 2000 + b"]" * 2000 + b"}"),
    st.binary(max_size=40),
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """The bytes of a history: mostly good lines, some odd ones, cut and damaged anywhere."""
    lines = draw(st.lists(good_lines | good_lines | odd_lines, max_size=12))
    content = b"".join(line + b"\n" for line in lines)
    for _ in range(draw(st.integers(0, 2))):
        if content:
            at = draw(st.integers(0, len(content) - 1))
            content = content[:at] + draw(st.binary(min_size=1, max_size=1)) + content[at + 1 :]
    return content[: len(content) - draw(st.sampled_from([0, 0, 0, 1, 2, 30]))]


@contextlib.contextmanager
def blocks(size: int | None) -> Iterator[None]:
    """Have files read as frames of blocks of so many bytes; None: line by line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonLinesReader, "min_frame_bytes", 2**62 if size is None else 0)
        patch.setattr(JsonLinesReader, "block_bytes", size or 2**62)
        yield


def plain_rows(content: bytes) -> list[dict[str, Any]]:
    """The undamaged rows of a file and their offsets, by the rule of one sentence: JSON objects with a step."""
    rows = []
    offset = 0
    for line in content.split(b"\n"):
        text = line.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\0")
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text.decode())
            if isinstance(value, dict) and (step := _whole(value.pop("step", None))) is not None:
                policy_step = _whole(value.pop("policy_step", None))
                time = value.pop("recorded_at", None)
                rows.append(
                    {
                        "step": step,
                        "policy_step": policy_step,
                        "recorded_at": time if isinstance(time, str) else None,
                        "metrics": {key: float(v) for key, v in value.items() if _is_number(v)},
                        "offset": offset,
                    }
                )
        offset += len(line) + 1
    return rows


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if -(2**63) <= value < 2**63 else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def plain_points(
    content: bytes, key: str, rewinds: Sequence[Rewind] = (), unless_zero: str | None = None
) -> dict[int, float]:
    """What a metric was at each step, from all rows at once."""
    points: dict[int, list[tuple[float, float]]] = {}
    for row in plain_rows(content):
        metrics = row["metrics"]
        is_over = any(r.step < row["step"] and row["offset"] < r.history_offset for r in rewinds)
        if is_over or key not in metrics or metrics.get(unless_zero) == 0:
            continue
        count = metrics.get(f"{key.split('/', maxsplit=1)[0]}/num_trajectories", 0.0)
        step = row["step"] if row["policy_step"] is None else row["policy_step"]
        points.setdefault(step, []).append((metrics[key], count if count > 0 else 1.0))
    return {
        step: math.fsum(v * (w / math.fsum(w for _, w in rows)) for v, w in rows)
        for step, rows in sorted(points.items())
    }


def rows_of(metrics: Sequence[tuple[int, int | None, dict[str, float]]]) -> bytes:
    """The bytes of a history with these rows: step, policy step, metrics."""
    return b"".join(
        json.dumps(
            {**values, "step": step, **({} if policy is None else {"policy_step": policy})}
        ).encode()
        + b"\n"
        for step, policy, values in metrics
    )

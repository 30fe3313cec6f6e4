from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.books.jsonl import JsonLinesReader, LineSink, as_step, read_rows
from art.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Callable


def parse(line: dict[str, Any], offset: int) -> tuple[int, int] | None:
    n = as_step(line.get("n"))
    return None if n is None else (n, offset)


class Rows(LineSink):
    """Keeps what `parse` makes of each line."""

    def __init__(self, path: Path, parse: Callable[[dict[str, Any], int], Any] = parse) -> None:
        self._parse = parse
        self._rows: list[Any] = []
        self.reader = JsonLinesReader(path, self)

    def start_over(self) -> None:
        self._rows.clear()

    def add_line(self, line: dict[str, Any], offset: int) -> bool:
        row = self._parse(line, offset)
        if row is not None:
            self._rows.append(row)
        return row is not None

    def rows(self) -> list[Any]:
        self.reader.refresh()
        return list(self._rows)

    @property
    def num_skipped(self) -> int:
        return self.reader.num_skipped


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def numbers(path: Path) -> list[int]:
    return [n for n, _ in read_rows(path, parse)]


def test_missing_and_empty_files_have_no_rows(path: Path) -> None:
    """No file and 0 bytes are both nothing."""
    assert numbers(path) == []
    path.write_bytes(b"")
    assert numbers(path) == []


@pytest.mark.parametrize(
    "damage",
    [
        b'{"n": 9',
        b"\x00" * 40,
        b'{"n": 9, "x": "\xff"}',
        b"[1, 2]",
        b"null",
        b'{"n": "9"}',
        b'{"n": 1.5}',
        b'{"n": true}',
        b'{"m": 9}',
        b"[" * 100_000,
        b'{"n": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda damage: damage[:12].decode(errors="replace"),
)
def test_c042_damaged_line_is_skipped_with_one_warning(
    path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A line that cannot be read is counted and warned of once, and its neighbours are used."""
    path.write_bytes(b'{"n": 1}\n' + damage + b'\n{"n": 2}\n' + damage + b"\n")
    reader = Rows(path)
    assert [n for n, _ in reader.rows()] == [1, 2]
    assert [n for n, _ in reader.rows()] == [1, 2]
    assert reader.num_skipped == 2
    assert len(caplog.records) == 1
    assert str(path) in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"n": 1}\n{"n": 2}\n',
        b'{"n": 1}\n\xef\xbb\xbf{"n": 2}\n',
        b'{"n": 1}\r\n{"n": 2}\r\n',
        b'\n\n{"n": 1}\n  \n{"n": 2}\n\n',
        b'{"n": 1}\n{"n": 2}',
        b'{"n": 1}\n\x00\x00{"n": 2}\n',
        '{"n": 1, "x": "\u2028"}\n{"n": 2}\n'.encode(),
        b'{"n": 1, "x": "\\ud800"}\n{"n": 2.0}\n',
        b'{"n": 7, "n": 1}\n{"n": 2}\n',
    ],
)
def test_c048_harmless_oddities_are_read_without_a_warning(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Byte order marks, CRLF, blank lines, a missing last newline and odd text are no damage."""
    path.write_bytes(content)
    assert numbers(path) == [1, 2]
    assert caplog.records == []


def test_offsets_are_those_of_the_lines(path: Path) -> None:
    """Each row knows where its line starts, also behind skipped ones."""
    path.write_bytes(b'{"n": 1}\nbroken\n\n{"n": 2}\n')
    assert read_rows(path, parse) == [(1, 0), (2, 17)]


def test_c050_a_row_is_seen_once_it_is_whole(path: Path) -> None:
    """A reader that meets the first half of a row skips it, and finds it whole later, once."""
    reader = Rows(path)
    seen = []
    for end in range(len(b'{"n": 1}\n{"n": 2}\n') + 1):
        path.write_bytes(b'{"n": 1}\n{"n": 2}\n'[:end])
        seen.append([n for n, _ in reader.rows()])
    assert seen[-1] == [1, 2]
    assert [] in seen
    assert [1] in seen
    assert reader.num_skipped == 0


def test_only_what_was_appended_is_read(path: Path) -> None:
    """A second call parses the new lines alone, so its cost does not depend on the size of the file."""
    parsed = []

    def count(line: dict[str, Any], offset: int) -> int:
        parsed.append(offset)
        return 0

    path.write_bytes(b'{"n": 1}\n' * 1000)
    reader = Rows(path, count)
    reader.rows()
    parsed.clear()
    with path.open("ab") as file:
        file.write(b'{"n": 2}\n')
    assert len(reader.rows()) == 1001
    assert len(parsed) == 1


@pytest.mark.parametrize(
    "new", [b"", b'{"n": 3}\n', b'{"n": 3}\n{"n": 4}\n', b'{"n": 3}\n{"n": 4}\n{"n": 5}\n']
)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_replaced_file_is_read_from_the_start(path: Path, new: bytes, in_place: bool) -> None:
    """A file that was shortened, rewritten or replaced gives its new rows and no old ones."""
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n')
    reader = Rows(path)
    reader.rows()
    if not in_place:
        path.rename(path.with_suffix(".old"))
    path.write_bytes(new)
    assert [n for n, _ in reader.rows()] == [json.loads(line)["n"] for line in new.splitlines()]


def test_a_replaced_file_with_the_same_end_is_read_from_the_start(path: Path) -> None:
    """Another file in the same place is told apart even where both end alike."""
    end = b'{"n": 2, "x": "' + b"x" * 100 + b'"}\n'
    path.write_bytes(b'{"n": 1}\n' + end)
    reader = Rows(path)
    reader.rows()
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b'{"n": 9}\n' + end)
    assert [n for n, _ in reader.rows()] == [9, 2]


@pytest.mark.parametrize(
    ("more", "expected"), [(b"", [1]), (b"\n", [1]), (b" \r\n", [1]), (b"x\n", []), (b"\x00", [1])]
)
def test_a_row_without_a_newline_is_taken_back_when_its_line_goes_on(
    path: Path, more: bytes, expected: list[int]
) -> None:
    """What is read bit by bit comes to the same as what is read at once."""
    path.write_bytes(b'{"n": 1}')
    reader = Rows(path)
    assert [n for n, _ in reader.rows()] == [1]
    with path.open("ab") as file:
        file.write(more)
    assert [n for n, _ in reader.rows()] == numbers(path) == expected


def test_a_file_that_is_still_the_same_is_not_read_again(path: Path) -> None:
    """A call that finds nothing new reads a few bytes, however long the file is."""
    path.write_bytes(b'{"n": 1}\n' * 50_000)
    reader = Rows(path)
    reader.rows()
    before = bytes_read()
    reader.rows()
    assert bytes_read() - before < 2000


def bytes_read() -> int:
    """What this process has read through system calls."""
    text = Path("/proc/self/io").read_text()
    return int(text.split("rchar: ")[1].split()[0])


def test_a_deleted_file_has_no_rows(path: Path) -> None:
    """Rows of a file that is gone are gone."""
    path.write_bytes(b'{"n": 1}\n')
    reader = Rows(path)
    reader.rows()
    path.unlink()
    assert reader.rows() == []


def test_a_file_that_cannot_be_read_is_an_error_with_its_path(path: Path) -> None:
    """What the operating system refuses is told, not taken for an empty file."""
    path.mkdir()
    with pytest.raises(LogError, match=str(path)):
        read_rows(path, parse)


@settings(max_examples=200)
@given(
    rows=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    damage=st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=30)), max_size=4),
    cut=st.integers(0, 40),
    chunks=st.lists(st.integers(0, 200), max_size=3),
)
def test_any_bytes_between_the_rows_cost_no_row(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[int],
    damage: list[tuple[int, bytes]],
    cut: int,
    chunks: list[int],
) -> None:
    """Whatever bytes stand on lines of their own, and wherever the file ends, all whole rows come in order."""
    lines = [json.dumps({"n": n, "x": "good"}).encode() for n in rows]
    good = list(lines)
    for position, garbage in damage:
        lines.insert(min(position, len(lines)), b"garbage" + garbage.replace(b"\n", b""))
    content = b"".join(line + b"\n" for line in lines)
    content = content[: max(0, len(content) - cut)]
    path = tmp_path_factory.mktemp("fuzz") / "rows.jsonl"
    reader = Rows(path)
    for end in [*sorted(chunks), len(content)]:
        path.write_bytes(content[: min(end, len(content))])
        found = [n for n, _ in reader.rows()]
    expected = [json.loads(line)["n"] for line in content.split(b"\n") if line in good]
    assert found == expected


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """No content of the file makes the reader fail."""
    path = tmp_path_factory.mktemp("fuzz") / "rows.jsonl"
    path.write_bytes(content)
    read_rows(path, parse)


def test_a_step_fits_into_a_column() -> None:
    """A number that no frame could hold is no step."""
    assert as_step(2.0) == 2
    assert as_step(2**63 - 1) == 2**63 - 1
    for value in (2**63, 1e300, True, 0.5, "1", None):
        assert as_step(value) is None

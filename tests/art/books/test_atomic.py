from __future__ import annotations

import fcntl
import json
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from art.books.atomic import append_line, write_bytes, write_json
from art.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """A disk that is full: the kernel cuts a write at this size, and refuses the next."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_write_makes_the_directories_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    """A write makes missing parents and leaves only the file itself."""
    path = tmp_path / "a" / "b" / "file"
    write_bytes(path, b"one")
    write_bytes(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_written_file_has_the_usual_permissions(tmp_path: Path) -> None:
    """A written file is as readable for others as the umask says, not private like a temporary file."""
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    write_bytes(tmp_path / "file", b"data")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_full_disk_leaves_the_old_file_whole(tmp_path: Path) -> None:
    """A write that does not fit raises an error with the path, and the old content stays."""
    path = tmp_path / "file"
    write_bytes(path, b"old")
    with file_size_limit(1000), pytest.raises(LogError, match=str(path)):
        write_bytes(path, b"x" * 5000)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_error_says_what_to_do(tmp_path: Path) -> None:
    """A directory in the way is named with advice."""
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises(LogError, match="move it aside"):
        write_bytes(path, b"data")


def test_c080_concurrent_writes_of_one_file_each_use_their_own_temporary(tmp_path: Path) -> None:
    """Many threads that write one file at once leave one of the whole contents."""
    path = tmp_path / "file"
    contents = [bytes([65 + i]) * 50_000 for i in range(8)]
    threads = [threading.Thread(target=write_bytes, args=(path, data)) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.crash
def test_c077_a_kill_in_the_middle_of_a_write_leaves_a_whole_file(tmp_path: Path) -> None:
    """A process killed while it writes leaves the content of one write, never a part."""
    path = tmp_path / "file"
    program = (
        "import sys, pathlib; from art.books.atomic import write_bytes\n"
        "for i in range(10**9): write_bytes(pathlib.Path(sys.argv[1]), bytes([65 + i % 26]) * 300_000)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)]) as process:
        while not path.exists():
            time.sleep(0.01)
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    data = path.read_bytes()
    assert len(data) == 300_000
    assert len(set(data)) == 1


def test_json_survives_lone_surrogates(tmp_path: Path) -> None:
    """Text that UTF-8 cannot hold comes back from a JSON file."""
    write_json(tmp_path / "file", {"k\ud800": "v\udc00"})
    assert json.loads((tmp_path / "file").read_text()) == {"k\ud800": "v\udc00"}


def test_what_is_not_json_leaves_the_old_file_whole(tmp_path: Path) -> None:
    """A value that is not JSON raises before anything is written."""
    write_json(tmp_path / "file", 1)
    with pytest.raises(TypeError):
        write_json(tmp_path / "file", object())
    assert (tmp_path / "file").read_text() == "1\n"


def test_append_makes_the_file_and_adds_lines(tmp_path: Path) -> None:
    """Lines come in order, each with its newline."""
    path = tmp_path / "a" / "file"
    append_line(path, b"one")
    append_line(path, b"two", durable=True)
    assert path.read_bytes() == b"one\ntwo\n"


def test_c042_append_after_a_torn_line_starts_a_new_line(tmp_path: Path) -> None:
    """A fragment that a dead writer left cannot swallow the next line."""
    path = tmp_path / "file"
    path.write_bytes(b"one\ntw")
    append_line(path, b"three")
    assert path.read_bytes() == b"one\ntw\nthree\n"


def test_append_refuses_a_line_with_a_newline(tmp_path: Path) -> None:
    """One line is one line."""
    with pytest.raises(ValueError, match="newline"):
        append_line(tmp_path / "file", b"a\nb")


@pytest.mark.parametrize("torn", [b"", b"torn"])
def test_append_that_does_not_fit_is_rolled_back(tmp_path: Path, torn: bytes) -> None:
    """A disk that is full in the middle of a line leaves the file as it was, with an error that names it."""
    path = tmp_path / "file"
    before = b"x" * 90 + b"\n" + torn
    path.write_bytes(before)
    with file_size_limit(100), pytest.raises(LogError, match=rf"{path}.*free some disk space"):
        append_line(path, b"y" * 50)
    assert path.read_bytes() == before


def test_append_to_a_disk_with_no_room_at_all_raises(tmp_path: Path) -> None:
    """A write that is refused as a whole is told in the same way."""
    (tmp_path / "file").symlink_to("/dev/full")
    with pytest.raises(LogError, match="free some disk space"):
        append_line(tmp_path / "file", b"line")


def test_append_waits_for_another_writer_of_the_file(tmp_path: Path) -> None:
    """While another writer holds the file, nothing is added; then the line comes."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writer = threading.Thread(target=append_line, args=(path, b"line"))
        writer.start()
        writer.join(0.1)
        assert path.read_bytes() == b""
    writer.join()
    assert path.read_bytes() == b"line\n"


def test_appends_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    """Processes that append long lines at once leave every line whole."""
    path = tmp_path / "file"
    program = (
        "import sys, pathlib; from art.books.atomic import append_line\n"
        "for _ in range(50): append_line(pathlib.Path(sys.argv[1]), sys.argv[2].encode() * 9_000)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(path), letter]) for letter in "ABC"
    ]
    assert [process.wait() for process in processes] == [0, 0, 0]
    lines = path.read_bytes().splitlines()
    assert sorted(lines) == sorted(
        letter * 9_000 for letter in (b"A", b"B", b"C") for _ in range(50)
    )

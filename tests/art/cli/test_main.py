from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from art.cli import GROUP, main
from tests.art.installed import install

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = '''
from art.errors import ConfigurationError

def greet(argv):
    """Greet by name.

    More text.
    """
    print("hello", *argv)
    return 3

def refuse(argv):
    raise ConfigurationError("no GPU here; pass --device cpu")

def interrupt(argv):
    raise KeyboardInterrupt

def fail(argv):
    return 1 // 0
'''


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, with a distribution of five commands, one of which cannot be loaded."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "toy_commands", raising=False)
    install(
        tmp_path,
        "toy-commands",
        GROUP,
        {
            "greet": "toy_commands:greet",
            "refuse": "toy_commands:refuse",
            "interrupt": "toy_commands:interrupt",
            "fail": "toy_commands:fail",
            "broken": "toy_broken:command",
        },
        toy_commands=COMMANDS,
        toy_broken="import no_such_package",
    )
    importlib.invalidate_caches()
    return tmp_path


def test_a_command_gets_its_arguments_and_gives_the_exit_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What stands after the command's name is the command's own, options included."""
    assert main(["greet", "Ada", "--help"]) == 3
    assert capsys.readouterr().out == "hello Ada --help\n"


def test_only_the_command_that_was_asked_for_is_loaded() -> None:
    """A command that cannot be loaded does not disturb another."""
    assert main(["greet"]) == 3
    assert "toy_broken" not in sys.modules


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_all_commands_with_their_summaries(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A summary is the first line of the docstring; what cannot be loaded is told, and hides nothing."""
    assert main([flag]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: art")
    listed = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert listed["greet"].endswith("Greet by name.")
    assert "no_such_package" in listed["broken"]
    assert list(listed) == sorted(listed)


def test_an_unknown_command_is_a_usage_error_with_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 2, nothing on stdout, and no command loaded for it."""
    assert main(["gret"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "unknown command 'gret'" in shown.err
    assert "broken, " in shown.err
    assert "greet" in shown.err


def test_no_command_is_a_usage_error_with_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`art` alone tells what there is, on stderr."""
    assert main([]) == 2
    assert "Greet by name." in capsys.readouterr().err


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    """`art --version` prints one line."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("art-rl")


def test_an_error_of_art_is_its_message_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The message tells what to do, so no traceback buries it."""
    assert main(["refuse"]) == 1
    assert capsys.readouterr().err == "art refuse: no GPU here; pass --device cpu\n"


def test_an_interrupt_is_an_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends with 130, as in a shell."""
    assert main(["interrupt"]) == 130


def test_a_command_that_cannot_be_imported_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A missing extra is no bug, so it comes without a traceback."""
    assert main(["broken"]) == 1
    assert capsys.readouterr().err.startswith("art broken: cannot be loaded: No module named")


def test_any_other_error_keeps_its_traceback() -> None:
    """A bug is shown as a bug."""
    with pytest.raises(ZeroDivisionError):
        main(["fail"])


def test_the_module_is_the_command() -> None:
    """`python -m art` dispatches like the command `art`."""
    run = subprocess.run(
        [sys.executable, "-m", "art", "gret"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert "unknown command 'gret'" in run.stderr

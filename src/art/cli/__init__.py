"""The command line: `art COMMAND ...`.

Commands are contributed by the packages that own them, in the entry-point group `art.commands`; those on the
frontend's own files are built in. Each is a callable that takes the arguments after its name and returns the
exit status; the first line of its docstring is its summary.
"""

from __future__ import annotations

import inspect
import sys
from importlib.metadata import EntryPoint, entry_points, version
from typing import TYPE_CHECKING, TypeAlias

from art.errors import ArtError

if TYPE_CHECKING:
    from collections.abc import Callable

    Command: TypeAlias = Callable[[list[str]], int]

GROUP = "art.commands"
_BUILT_IN = (EntryPoint("migrate", "art.cli.migrate:command", GROUP),)
_USAGE = "usage: art COMMAND [ARGUMENT ...]"


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status: 2 for a wrong call, 1 for an error of `art`.

    Args:
        argv: The arguments; those of the process where None.
    """
    arguments = sys.argv[1:] if argv is None else argv
    commands = {entry.name: entry for entry in (*entry_points(group=GROUP), *_BUILT_IN)}
    if not arguments:
        print(_help(commands), file=sys.stderr)
        return 2
    name, *rest = arguments
    if name in {"-h", "--help"}:
        print(_help(commands))
        return 0
    if name == "--version":
        print(version("art-rl"))
        return 0
    if name not in commands:
        available = ", ".join(sorted(commands))
        print(f"art: unknown command {name!r}; available: {available}", file=sys.stderr)
        return 2
    return _run(commands[name], rest)


def _run(entry: EntryPoint, arguments: list[str]) -> int:
    try:
        command: Command = entry.load()
    except ImportError as error:  # an extra is missing, or a stranger's package is broken
        print(f"art {entry.name}: cannot be loaded: {error}", file=sys.stderr)
        return 1
    try:
        return command(arguments)
    except ArtError as error:  # its message says what to do; a traceback would bury it
        print(f"art {entry.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _help(commands: dict[str, EntryPoint]) -> str:
    width = max(map(len, commands))
    lines = [f"  {name:{width}}  {_summary(entry)}" for name, entry in sorted(commands.items())]
    return "\n".join([_USAGE, "", "commands:", *lines])


def _summary(entry: EntryPoint) -> str:
    try:
        doc = inspect.getdoc(entry.load())
    except Exception as error:  # noqa: BLE001 - one broken command must not hide the others
        return f"(cannot be loaded: {error})"
    return doc.splitlines()[0] if doc else ""

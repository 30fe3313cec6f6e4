"""The command line: `python -m art_conformance TARGET`, also `art conformance TARGET`."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from art.errors import ConfigurationError
from art_conformance.adapter import load_adapter
from art_conformance.checks import ALL
from art_conformance.manifest import write_manifest
from art_conformance.profile import PROFILES
from art_conformance.report import make_report_directory
from art_conformance.session import Session
from art_conformance.verdict import Level, Verdict

if TYPE_CHECKING:
    from art_conformance.report import Report

CERTIFIED, NOT_CERTIFIED, COULD_NOT_RUN = 0, 1, 2
INTERRUPTED, TERMINATED = 130, 143  # as shells count signals


def command(arguments: list[str]) -> int:
    """Check that a backend keeps the contract, and certify it.

    Returns:
        0 certified, 1 not certified, 2 could not be run.
    """
    options = _parser().parse_args(arguments)
    try:
        if options.list:
            print("\n".join(f"{check.id:10} {check.clause:6} {check.rule}" for check in ALL))
            return CERTIFIED
        if options.explain:
            print(_explanation(options.explain))
            return CERTIFIED
        if options.write_manifest:
            write_manifest(ALL)
            return CERTIFIED
        if options.self_check:
            from art_conformance.mutants.self_check import self_check

            return self_check(every_check=options.full)
        if options.target is None:
            _parser().error("name what is to be checked: package.module:name")
        return _certify(options)
    except ConfigurationError as error:
        print(f"art_conformance: {error}", file=sys.stderr)
        return COULD_NOT_RUN


def main() -> int:
    """Run the command with the arguments of the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _end)  # so that what was begun is cleaned up
    try:
        status = command(sys.argv[1:])
    except KeyboardInterrupt as error:
        print("art_conformance: interrupted", file=sys.stderr)
        status = TERMINATED if isinstance(error, _TerminatedError) else INTERRUPTED
    if any(thread is not threading.main_thread() for thread in threading.enumerate()):
        # Something of the adapter hangs in a thread, and Python would wait for it.
        sys.stdout.flush()
        os._exit(status)
    return status


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, which is to end a run as Ctrl-C does."""


def _end(_number: int, _frame: object) -> NoReturn:
    raise _TerminatedError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m art_conformance",
        description="Check that a backend keeps the contract of art.backend, and certify it.",
        epilog="exit status: 0 certified, 1 not certified, 2 could not be run",
    )
    parser.add_argument(
        "target",
        nargs="?",
        help="package.module:name of an Adapter, of a backend class, or of a function that returns a backend",
    )
    parser.add_argument(
        "--profile", choices=PROFILES, default="quick", help="how much is tried; quick by default"
    )
    parser.add_argument(
        "--level",
        choices=[str(level) for level in Level],
        default=str(Level.CORE),
        help="the least level that counts as certified; core by default",
    )
    parser.add_argument(
        "--only",
        metavar="ID",
        nargs="+",
        help="run these checks or groups alone; certifies nothing",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write conformance.json, .md and a badge there"
    )
    parser.add_argument(
        "--strict-new", action="store_true", help="let a check that is new in this version fail"
    )
    parser.add_argument("--list", action="store_true", help="list the checks")
    parser.add_argument("--explain", metavar="ID", help="explain a check")
    parser.add_argument(
        "--self-check",
        action="store_true",
        help="check the suite: it must catch every broken adapter it knows",
    )
    parser.add_argument(
        "--full", action="store_true", help="with --self-check: every check on every broken adapter"
    )
    parser.add_argument("--write-manifest", action="store_true", help=argparse.SUPPRESS)
    return parser


def _certify(options: argparse.Namespace) -> int:
    adapter = load_adapter(options.target)
    if options.out is not None:
        make_report_directory(options.out)
    with Session(
        adapter,
        profile=PROFILES[options.profile],
        seed=options.seed,
        target=options.target,
        strict_new=options.strict_new,
    ) as session:
        ids = [entry.id for entry in session.manifest]
        chosen = ids if options.only is None else _chosen(options.only, ids)
        for number, id_ in enumerate(chosen, 1):
            _progress(f"{number}/{len(chosen)} {id_}")
            result = session.run(id_)
            if result.is_broken:
                _tell(f"{result.verdict} {id_} ({number}/{len(chosen)})")
        _progress("")
        # Before the session is closed, which may take long where something hangs.
        report = session.report(options.target)
        print(report.summary(), flush=True)
        if options.out is not None:
            report.write(options.out)
    return _status(report, Level(options.level))


def _status(report: Report, wanted: Level) -> int:
    if report.level is not None and report.level.rank >= wanted.rank:
        return CERTIFIED
    if wanted is not Level.CORE or Verdict.XFAIL in report.counts:
        reasons = "; ".join(report.in_the_way(wanted))
        print(f"level {wanted} was asked for; in its way: {reasons}")
    return NOT_CERTIFIED


def _chosen(names: list[str], ids: list[str]) -> list[str]:
    chosen = [id_ for id_ in ids if id_ in names or id_.rpartition("-")[0] in names]
    for name in names:
        if not any(name in {id_, id_.rpartition("-")[0]} for id_ in ids):
            raise ConfigurationError(
                f"--only names {name!r}, which is no check and no group; see --list"
            )
    return chosen


def _explanation(id_: str) -> str:
    for check in ALL:
        if check.id == id_:
            parts = [
                f"{check.id} (clause {check.clause}, level {check.level})",
                check.rule,
                check.detail,
            ]
            return "\n\n".join(filter(None, [*parts, f"Likely cause of a failure: {check.cause}."]))
    raise ConfigurationError(f"there is no check {id_!r}; see --list")


def _progress(text: str) -> None:
    """Show on a terminal which check runs."""
    if sys.stderr.isatty():
        print(f"\r{text:60}\r", end="", file=sys.stderr, flush=True)


def _tell(text: str) -> None:
    """Tell of a failure as soon as it is known; all about it comes at the end."""
    print(text, file=sys.stderr, flush=True)

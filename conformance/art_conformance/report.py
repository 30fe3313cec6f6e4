"""What a run came to: the level that is certified, the report's files, and a summary for people."""

from __future__ import annotations

import json
import platform
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art_conformance.manifest import PROTOCOL_VERSION, SUITE_VERSION
from art_conformance.verdict import Level, Result, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from art_conformance.check import Check

_COLOURS = {Level.CORE: "green", Level.INFERENCE: "green", Level.FULL: "brightgreen"}
_ASKED_FOR: dict[Level, frozenset[str]] = {
    Level.CORE: frozenset(),
    Level.INFERENCE: frozenset({"inference"}),
    Level.FULL: frozenset({"step", "listing", "inference", "inference_name"}),
}
"""The optional capabilities that a level is not given without."""


@dataclass(frozen=True)
class Report:
    """What a run came to.

    Attributes:
        target: What was checked, as it was named.
        backend: The class of the backend.
        seed: What random choices were made by.
        profile: How much was tried.
        results: One for each check of the manifest.
        checks: The checks, by id.
    """

    target: str
    backend: str
    seed: int
    profile: str
    results: Sequence[Result]
    checks: Mapping[str, Check]

    @property
    def level(self) -> Level | None:
        """The highest level that is certified; None where none is.

        Nothing is, where a check failed or was not run. A level is reached where all checks up to it passed;
        the core level can do without what only a probe shows, and without what is declined.
        """
        if not self.results or any(result.is_broken for result in self.results):
            return None
        reached: Level | None = None
        for level in Level:
            if not all(self._allows(level, result) for result in self.results):
                break
            reached = level
        return reached

    def _allows(self, level: Level, result: Result) -> bool:
        """Whether a result lets the adapter have a level."""
        check = self.checks.get(result.id)
        if check is None or check.level.rank > level.rank:
            return True
        match result.verdict:
            case Verdict.XFAIL:
                return False
            case Verdict.UNOBSERVABLE:
                return level is not Level.FULL
            case Verdict.DECLINED:
                return _ASKED_FOR[level].isdisjoint(result.lacks)
        return True

    def in_the_way(self, level: Level) -> list[str]:
        """Return what denies a level: a line for each verdict, with the ids of the checks."""
        denying: dict[str, list[str]] = {}
        for result in self.results:
            if result.is_broken or not self._allows(level, result):
                denying.setdefault(str(result.verdict), []).append(result.id)
        return [f"{verdict} {', '.join(ids)}" for verdict, ids in denying.items()]

    @property
    def counts(self) -> dict[str, int]:
        """How often each verdict was given, those that were not left out."""
        counted = Counter(result.verdict for result in self.results)
        return {str(verdict): counted[verdict] for verdict in Verdict if counted[verdict]}

    # --- for machines

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values. For the same seed only times differ."""
        return {
            "suite_version": SUITE_VERSION,
            "protocol_version": PROTOCOL_VERSION,
            "art_version": version("art-rl"),
            "adapter": self.target,
            "backend": self.backend,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "seed": self.seed,
            "profile": self.profile,
            "level": self.level,
            "counts": self.counts,
            "checks": [self._as_dict(result) for result in self.results],
        }

    def _as_dict(self, result: Result) -> dict[str, Any]:
        check = self.checks.get(result.id)
        return {
            "id": result.id,
            "clause": check.clause if check else None,
            "rule": check.rule if check else None,
            "verdict": result.verdict,
            "reason": result.reason,
            "seconds": round(result.seconds, 3),
            "is_new": result.is_new,
            "repro": self.repro(result.id),
        }

    def repro(self, id_: str) -> str:
        """Return the command that runs this check alone."""
        return (
            f"python -m art_conformance {self.target} --only {id_} --seed {self.seed} "
            f"--profile {self.profile}"
        )

    def badge(self) -> dict[str, Any]:
        """Return what shields.io's endpoint badge reads."""
        level = self.level
        return {
            "schemaVersion": 1,
            "label": "art backend",
            "message": level or "not certified",
            "color": _COLOURS[level] if level else "red",
        }

    def write(self, directory: Path) -> None:
        """Write conformance.json, conformance.md and conformance-badge.json."""
        for name, value in (("conformance", self.as_dict()), ("conformance-badge", self.badge())):
            (directory / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n", "utf-8")
        page = self.as_markdown().encode("utf-8", "backslashreplace")
        (directory / "conformance.md").write_bytes(page)

    # --- for people

    def as_markdown(self) -> str:
        """Return the report as a page with a table."""
        lines = [
            f"# Conformance of `{self.target}`",
            "",
            (
                f"{self.verdict_line()}. Suite {SUITE_VERSION}, protocol {PROTOCOL_VERSION}, seed {self.seed}, "
                f"profile {self.profile}."
            ),
            "",
            "| check | clause | rule | verdict | why |",
            "|---|---|---|---|---|",
        ]
        for result in self.results:
            check = self.checks.get(result.id)
            clause, rule = (check.clause, check.rule) if check else ("", "")
            reason = " ".join(result.reason.split()).replace("|", "\\|")
            lines.append(f"| {result.id} | {clause} | {rule} | {result.verdict} | {reason} |")
        return "\n".join([*lines, ""])

    def verdict_line(self) -> str:
        """Return the run in one line."""
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        if self.level is None:
            return f"NOT CERTIFIED: {counts}"
        return f"CERTIFIED at level {self.level}: {counts}"

    def summary(self) -> str:
        """Return what a person reads in a terminal: all that is not in order, then the verdict."""
        blocks = [
            self.explained(result)
            for result in self.results
            if result.verdict in {Verdict.FAIL, Verdict.ERROR}
            and not result.reason.startswith(NOT_RUN)
        ]
        left_out = self._left_out()
        not_run = sum(result.reason.startswith(NOT_RUN) for result in self.results)
        if not_run:
            left_out.append(f"{not_run} checks were not run, so nothing can be certified")
        return "\n\n".join(
            [*blocks, *(["\n".join(left_out)] if left_out else []), self._last_lines()]
        )

    def _left_out(self) -> list[str]:
        """Say what was declined, unobservable, or is known to fail: one line for each reason."""
        by_reason: dict[tuple[Verdict, str], list[str]] = {}
        for result in self.results:
            if result.verdict in {Verdict.DECLINED, Verdict.UNOBSERVABLE, Verdict.XFAIL}:
                by_reason.setdefault((result.verdict, result.reason), []).append(result.id)
        return [
            f"{verdict:12} {', '.join(ids)}: {reason}"
            for (verdict, reason), ids in by_reason.items()
        ]

    def _last_lines(self) -> str:
        seconds = sum(result.seconds for result in self.results)
        return f"{self.verdict_line()}\n{self.target} ({self.backend}), seed {self.seed}, {seconds:.1f} s"

    def explained(self, result: Result) -> str:
        """Return everything that there is to say about a check that is not in order."""
        check = self.checks.get(result.id)
        if check is None:
            return f"{result.verdict} {result.id}\n  {result.reason}"
        warns = " (new in this version of the suite: only a warning)" if result.is_new else ""
        lines = [
            f"{result.verdict} {result.id} (clause {check.clause}){warns}: {check.rule}",
            *result.reason.splitlines(),
            f"likely:   {check.cause}",
            f"docs:     {check.anchor}, or: python -m art_conformance --explain {check.id}",
            f"again:    {self.repro(check.id)}",
        ]
        return "\n  ".join(lines)


def make_report_directory(directory: Path) -> None:
    """Make the directory that reports are written to, before an hour of checks has gone by.

    Raises:
        ConfigurationError: It cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"the report cannot be written to {directory}: {error}") from error


NOT_RUN = "it was not run"

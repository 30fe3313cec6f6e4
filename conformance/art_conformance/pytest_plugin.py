"""`pytest --pyargs art_conformance --art-adapter=package.module:name`: every check is a test of its own.

The tests are made of the manifest, whatever the project's own settings say about the names of test files. This
module is loaded by every pytest of an environment that has the suite installed, so it imports nothing at first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from art_conformance.session import Session

_RUN = "art_conformance_run"
_MANIFEST = Path(__file__).with_name("manifest.json")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite."""
    group = parser.getgroup("art_conformance", "conformance of art backends")
    group.addoption(
        "--art-adapter", metavar="TARGET", help="package.module:name of what is checked"
    )
    group.addoption("--art-profile", default="quick", help="quick, ci or nightly")
    group.addoption("--art-seed", type=int, default=0, help="seed of all random choices")
    group.addoption(
        "--art-report", metavar="DIR", help="write conformance.json, .md and a badge there"
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Take the manifest for a file of tests, where an adapter is named."""
    if file_path != _MANIFEST or parent.config.getoption("--art-adapter") is None:
        return None
    return _Checks.from_parent(parent, path=file_path)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where an adapter is named and no check was collected: the package was not among the arguments."""
    config = session.config
    is_named = config.getoption("--art-adapter") is not None
    if is_named and not config.pluginmanager.has_plugin(_RUN) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


class _Checks(pytest.File):
    """The checks of the manifest."""

    def collect(self) -> Iterable[pytest.Item]:
        """Open a session and make an item of each check."""
        from art.errors import ConfigurationError
        from art_conformance.manifest import read_manifest

        if "PYTEST_XDIST_WORKER" in os.environ:
            raise pytest.UsageError(
                "art_conformance: the checks share one backend, so run them without -n"
            )
        try:
            run = _Run(self.config)
        except ConfigurationError as error:
            raise pytest.UsageError(f"art_conformance: {error}") from error
        self.config.pluginmanager.register(run, _RUN)
        for entry in read_manifest(self.path):
            yield _CheckItem.from_parent(self, name=entry.id, run=run)


class _CheckItem(pytest.Item):
    """One check."""

    def __init__(self, *, run: _Run, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._run = run

    def runtest(self) -> None:
        """Run the check; a verdict that is neither PASS nor a failure is reported as skipped, with its reason."""
        from art_conformance.verdict import Verdict

        result = self._run.session.run(self.name)
        match result.verdict:
            case Verdict.PASS:
                return
            case Verdict.XFAIL:
                pytest.xfail(result.reason)
            case Verdict.DECLINED | Verdict.UNOBSERVABLE:
                pytest.skip(f"{result.verdict}: {result.reason}")
        if result.is_broken:
            raise _BrokenRuleError(self._run.explained(self.name))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show what the suite has to say, and no traceback of its insides."""
        if isinstance(excinfo.value, _BrokenRuleError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Name the check."""
        return self.path, 0, self.name


class _BrokenRuleError(Exception):
    """A rule is broken; the message is the suite's."""


class _Run:
    """The suite's session within pytest's."""

    def __init__(self, config: pytest.Config) -> None:
        from art.errors import ConfigurationError
        from art_conformance.adapter import load_adapter
        from art_conformance.profile import PROFILES
        from art_conformance.report import make_report_directory
        from art_conformance.session import Session

        self.target: str = config.getoption("--art-adapter")
        directory: str | None = config.getoption("--art-report")
        self._directory = None if directory is None else Path(directory)
        if self._directory is not None:
            make_report_directory(self._directory)
        profile: str = config.getoption("--art-profile")
        if profile not in PROFILES:
            raise ConfigurationError(f"--art-profile is {profile!r}; use {', '.join(PROFILES)}")
        self.session: Session = Session(
            load_adapter(self.target),
            profile=PROFILES[profile],
            seed=config.getoption("--art-seed"),
            target=self.target,
        )

    def explained(self, id_: str) -> str:
        """Return everything that there is to say about a check."""
        return self.session.report(self.target).explained(self.session.results[id_])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Close, write the report, and fail the run where checks were left out."""
        self.session.close()
        report = self.session.report(self.target)
        if self._directory is not None:
            report.write(self._directory)
        if report.level is None and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what is certified."""
        terminalreporter.section("conformance")
        terminalreporter.write_line(self.session.report(self.target).verdict_line())

"""Runs checks one after the other and decides their verdicts."""

from __future__ import annotations

import logging
import re
import shutil
import sysconfig
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import art
import art_conformance
from art.adapter_kit.dependencies import require
from art.backend import Capabilities
from art.errors import ConfigurationError
from art_conformance.checks import ALL
from art_conformance.failure import CheckFailed, SetupError, Unobservable, place_of
from art_conformance.loop_thread import HungError, LoopThread
from art_conformance.manifest import Entry, read_manifest
from art_conformance.report import NOT_RUN, Report
from art_conformance.stage import Stage
from art_conformance.verdict import Result, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from art_conformance.adapter import Adapter
    from art_conformance.check import Check
    from art_conformance.profile import Profile

_NOT_THE_AUTHORS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
    *(str(Path(module.__file__ or "").parent) for module in (art, art_conformance)),
    "<",
)
# Each takes all the time that a check may take: after so many the answer is known.
_MOST_HUNG = 3
_LONGEST = 2000  # characters of a reason
_SKIPS = ("Skipped", "SkipTest")


class Session:
    """One adapter under test.

    Args:
        adapter: What is checked.
        profile: How much is tried.
        seed: Everything that is chosen at random is chosen by it.
        target: What `load_adapter` makes the same adapter of in another process, where that is known.
        strict_new: Let a check that is new in this version fail, not only warn.
        checks: The checks there are.
        manifest: The checks there should be.

    Raises:
        ConfigurationError: The adapter cannot be checked: its factory fails, or it names checks that do not exist.
        MissingDependencyError: The extra `conformance` is not installed.
    """

    _home: ClassVar[Path] = Path(__file__).parent

    def __init__(
        self,
        adapter: Adapter,
        *,
        profile: Profile,
        seed: int = 0,
        target: str | None = None,
        strict_new: bool = False,
        checks: Sequence[Check] = ALL,
        manifest: Sequence[Entry] | None = None,
    ) -> None:
        self.adapter, self.profile, self.seed = adapter, profile, seed
        self.manifest = list(read_manifest() if manifest is None else manifest)
        self.results: dict[str, Result] = {}
        self._strict_new = strict_new
        self._num_hung = 0
        self._checks = {check.id: check for check in checks}
        require(("hypothesis",), extra="conformance", needed_by="the suite", distribution="art-rl")
        self._refuse_unknown_ids(adapter.xfail, "Adapter.xfail")
        self._directory = Path(tempfile.mkdtemp(prefix="art-conformance-"))
        self._log = _LogCapture()
        self._loop = LoopThread()
        self.stage = Stage(adapter, self._directory, profile=profile, seed=seed, target=target)
        try:
            self._capabilities = self._look_at_the_backend()
        except SetupError as error:
            self.close()
            raise ConfigurationError(str(error)) from error

    def _refuse_unknown_ids(self, ids: Any, where: str) -> None:
        known = {entry.id for entry in self.manifest}
        for id_ in ids:
            if id_ not in known:
                raise ConfigurationError(
                    f"{where} names {id_!r}, which is no check of this version; see "
                    "python -m art_conformance --list"
                )

    def _look_at_the_backend(self) -> Capabilities:
        """Make the backend that the checks share, so that a factory that cannot work is told at once."""

        async def look() -> Capabilities:
            self._backend_name = type(self.stage.backend).__name__
            return Capabilities.of(self.stage.backend)

        try:
            return self._loop.run(look(), self.adapter.timeout_s)
        except HungError as error:
            raise SetupError(f"make_backend hung: {error}") from error

    # --- running

    def run(self, id_: str) -> Result:
        """Run one check of the manifest, unless it has been, and return what came of it."""
        if id_ not in self.results:
            start = time.monotonic()
            entry = next(entry for entry in self.manifest if entry.id == id_)
            verdict, reason = self._verdict(id_)
            self.results[id_] = Result(
                id_,
                verdict,
                self._repeatable(reason),
                time.monotonic() - start,
                is_new=entry.is_new and not self._strict_new,
                lacks=self._lacking(id_) if verdict is Verdict.DECLINED else (),
            )
        return self.results[id_]

    def _verdict(self, id_: str) -> tuple[Verdict, str]:
        check = self._checks.get(id_)
        if check is None:
            return Verdict.ERROR, "the manifest lists it, but the suite has no such check"
        if not Path(check.run.__code__.co_filename).is_relative_to(self._home):
            return Verdict.ERROR, f"it was replaced by one in {check.run.__module__}"
        lacking = self._lacking(id_)
        if lacking:
            return self._absent(lacking[0])
        if self._num_hung >= _MOST_HUNG:
            return Verdict.ERROR, f"{NOT_RUN}: {_MOST_HUNG} checks hung before it"
        return self._expected_to_fail(check, *self._run(check))

    def _lacking(self, id_: str) -> tuple[str, ...]:
        """Return the capabilities that a check needs and the backend has not."""
        needs = self._checks[id_].needs
        return tuple(name for name in needs if getattr(self._capabilities, name) is None)

    def _absent(self, capability: str) -> tuple[Verdict, str]:
        reason = self.adapter.declined(capability)
        if reason is None:
            return Verdict.FAIL, f"{capability!r} is neither implemented nor declined (SHAPE-07)"
        return Verdict.DECLINED, f"{capability}: {reason}"

    def _expected_to_fail(self, check: Check, verdict: Verdict, reason: str) -> tuple[Verdict, str]:
        known = self.adapter.xfail.get(check.id)
        if known is None or verdict not in {Verdict.FAIL, Verdict.PASS}:
            return verdict, reason
        if verdict is Verdict.FAIL:
            return Verdict.XFAIL, known
        return (
            Verdict.FAIL,
            f"it passes, though Adapter.xfail lists it ({known}); take it out there",
        )

    def _run(self, check: Check) -> tuple[Verdict, str]:
        self.stage.logged = self._log.records = []
        timeout_s = self.adapter.timeout_s + (5 * self.profile.budget_s if check.is_long else 0.0)
        try:
            self._loop.run(check.run(self.stage), timeout_s)  # type: ignore[arg-type]
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            verdict, reason = self._verdict_of(error)
            self._num_hung += isinstance(error, HungError)
            if verdict is not Verdict.UNOBSERVABLE:
                self._renew()
            return verdict, reason
        if check.renews:
            self._renew()
        return Verdict.PASS, ""

    def _verdict_of(self, error: BaseException) -> tuple[Verdict, str]:
        match error:
            case CheckFailed():
                return Verdict.FAIL, "\n".join(error.lines())
            case Unobservable() if self._is_ours(error):
                return Verdict.UNOBSERVABLE, str(error)
            case SetupError():
                return Verdict.ERROR, str(error)
            case HungError():
                return Verdict.FAIL, f"got:      {error}"
        if type(error).__name__ in _SKIPS:
            why = f"skipping is no verdict ({_told(error)}); decline the capability instead"
            return Verdict.ERROR, why
        told = f"{type(error).__name__}: {_told(error)}"
        return Verdict.FAIL, f"got:      {told} ({_place_of(error)})"

    @staticmethod
    def _is_ours(error: BaseException) -> bool:
        """Whether the suite raised an error: a backend could hide its faults behind one of ours."""
        raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        return raised_in.is_relative_to(Session._home)

    def _renew(self) -> None:
        if self._loop.is_lost:
            self._loop = LoopThread()
            self.stage.abandon()
        try:
            self._loop.run(self.stage.renew(), self.adapter.timeout_s)
        except Exception:  # noqa: BLE001 - what cannot be closed is left behind; the check on closing tells it
            self.stage.abandon()

    def _repeatable(self, text: str) -> str:
        """Leave out what differs from run to run: the run's directory, and addresses in memory."""
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", text.replace(str(self._directory), "<workspace>"))
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... (cut)"

    # --- the end

    def report(self, target: str) -> Report:
        """Return what came of it. A check that was not run is an ERROR."""
        not_run = {entry.id: Result(entry.id, Verdict.ERROR, NOT_RUN) for entry in self.manifest}
        for id_ in self._checks:
            not_run.setdefault(id_, Result(id_, Verdict.ERROR, "the manifest does not list it"))
        return Report(
            target=target,
            backend=self._backend_name,
            seed=self.seed,
            profile=self.profile.name,
            results=list({**not_run, **self.results}.values()),
            checks=self._checks,
        )

    def close(self) -> None:
        """Close the backend and remove everything that was written."""
        self._renew()
        self._loop.close()
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _LogCapture(logging.Handler):
    """Keeps the log records of the present check."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        logging.getLogger().removeHandler(self)
        super().close()


def _told(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception of an adapter may be broken itself
        return "(its message cannot be shown)"


def _place_of(error: BaseException) -> str:
    """Say where an error arose: in the author's own code, where it went through any."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_AUTHORS)]
    return place_of((own or frames)[-1])

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import unittest
from typing import TYPE_CHECKING, Any

import pytest

from art.errors import ConfigurationError
from art_conformance import Adapter, Probe, Unobservable, Verdict
from art_conformance.failure import SetupError, expect, expect_equal
from art_conformance.manifest import Entry
from tests.art_conformance.backends import Lists, NeedsAKey, TwoMethods
from tests.art_conformance.sessions import make_check, result_of, session

if TYPE_CHECKING:
    from art_conformance.stage import Stage

two_methods = Adapter(TwoMethods)


async def holds(stage: Stage) -> None:
    """The rule holds."""


async def is_broken(stage: Stage) -> None:
    """The rule is broken."""
    expect_equal(1, 2, sent="a question")


def test_a_check_that_returns_passes() -> None:
    """A check that returns is a PASS without a reason."""
    result = result_of(two_methods, holds)
    assert (result.verdict, result.reason) == (Verdict.PASS, "")


def test_a_broken_rule_fails_with_what_was_sent_expected_and_got() -> None:
    """A check that raises CheckFailed is a FAIL, which says what was sent, expected and got."""
    result = result_of(two_methods, is_broken)
    assert result.verdict is Verdict.FAIL
    assert result.reason.split() == ["sent:", "a", "question", "expected:", "2", "got:", "1"]


def test_an_error_of_the_adapter_fails_with_its_place() -> None:
    """An exception that comes out of a check is a FAIL, which names error, file and line."""

    async def raises(stage: Stage) -> None:
        raise KeyError("gone")

    result = result_of(two_methods, raises)
    assert result.verdict is Verdict.FAIL
    assert "KeyError: 'gone' (test_session.py, line " in result.reason


@pytest.mark.parametrize("skip", [pytest.skip.Exception, unittest.SkipTest])
def test_skipping_is_an_error(skip: type[BaseException]) -> None:
    """A skip that is raised inside a check is an ERROR, never a quiet pass."""

    async def skips(stage: Stage) -> None:
        raise skip("no GPU here")

    result = result_of(two_methods, skips)
    assert result.verdict is Verdict.ERROR
    assert "skipping is no verdict (no GPU here)" in result.reason


def test_what_cannot_be_seen_is_unobservable() -> None:
    """A check that raises Unobservable is UNOBSERVABLE, with the reason."""

    async def looks(stage: Stage) -> None:
        await (await stage.run()).checkpoints()

    result = result_of(two_methods, looks)
    assert (result.verdict, result.reason) == (
        Verdict.UNOBSERVABLE,
        "no probe shows checkpoint_steps",
    )
    assert result_of(Adapter(Lists), looks).verdict is Verdict.PASS


def test_what_the_author_supplied_and_fails_is_an_error() -> None:
    """A factory, a probe or groups that fail by themselves are an ERROR, not a fault of the backend."""

    async def wants_groups(stage: Stage) -> None:
        await (await stage.run()).groups()

    def make_groups(model: Any) -> list[Any]:
        raise RuntimeError("no engine")

    result = result_of(Adapter(TwoMethods, make_groups=make_groups), wants_groups)
    assert (result.verdict, result.reason) == (
        Verdict.ERROR,
        "make_groups raised RuntimeError: no engine",
    )
    result = result_of(Adapter(TwoMethods, make_groups=lambda _: []), wants_groups)
    assert "no group that can be trained" in result.reason


def test_an_absent_capability_is_declined_or_a_failure() -> None:
    """A check that needs a capability is DECLINED with the reason that was given, and a FAIL where none was."""
    declines = Adapter(TwoMethods, declines={"listing": "the service has none"})
    result = result_of(declines, holds, needs=("listing",))
    assert (result.verdict, result.reason) == (Verdict.DECLINED, "listing: the service has none")
    result = result_of(two_methods, holds, needs=("listing",))
    assert result.verdict is Verdict.FAIL
    assert "neither implemented nor declined" in result.reason
    assert result_of(Adapter(Lists), holds, needs=("listing",)).verdict is Verdict.PASS


def test_a_known_failure_is_strict() -> None:
    """A listed check that fails is XFAIL with its link; one that passes is a FAIL that says so."""
    listed = Adapter(TwoMethods, xfail={"OWN-01": "https://example.org/7 late"})
    result = result_of(listed, is_broken)
    assert (result.verdict, result.reason) == (Verdict.XFAIL, "https://example.org/7 late")
    result = result_of(listed, holds)
    assert result.verdict is Verdict.FAIL
    assert "it passes, though Adapter.xfail lists it" in result.reason


def test_a_known_failure_does_not_hide_an_error() -> None:
    """A listed check that cannot be run is an ERROR all the same."""

    async def cannot(stage: Stage) -> None:
        raise SetupError("no groups")

    listed = Adapter(TwoMethods, xfail={"OWN-01": "https://example.org/7"})
    assert result_of(listed, cannot).verdict is Verdict.ERROR


def test_a_known_failure_of_an_unknown_check_is_refused() -> None:
    """An id in xfail that no check has is told before anything is run."""
    with pytest.raises(ConfigurationError, match="'NONE-01', which is no check"):
        session(Adapter(TwoMethods, xfail={"NONE-01": "https://example.org"}), make_check(holds))


def test_a_check_that_waits_for_ever_is_ended_and_told() -> None:
    """A check that does not end in time is a FAIL that says where it waits, and the next one is run."""

    async def waits(stage: Stage) -> None:
        await asyncio.Event().wait()

    checks = make_check(waits, "OWN-01"), make_check(holds, "OWN-02")
    with session(Adapter(TwoMethods, timeout_s=0.3), *checks) as opened:
        result = opened.run("OWN-01")
        assert result.verdict is Verdict.FAIL
        assert "not finished after 0.3 s; it was waiting at " in result.reason
        assert opened.run("OWN-02").verdict is Verdict.PASS


def test_a_check_that_blocks_the_loop_is_left_behind_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A check that blocks the event loop beyond its time is a FAIL that says where, and the next one is run."""
    monkeypatch.setattr("art_conformance.loop_thread._GRACE_S", 0.2)
    released = threading.Event()

    async def blocks(stage: Stage) -> None:
        released.wait(20)

    checks = make_check(blocks, "OWN-01"), make_check(holds, "OWN-02")
    with session(Adapter(TwoMethods, timeout_s=0.3), *checks) as opened:
        result = opened.run("OWN-01")
        released.set()
        assert result.verdict is Verdict.FAIL
        assert "blocking the event loop at threading.py" in result.reason
        assert opened.run("OWN-02").verdict is Verdict.PASS


def test_a_check_that_swallows_cancellation_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that does not heed its cancellation does not hold up the next one."""
    monkeypatch.setattr("art_conformance.loop_thread._GRACE_S", 0.2)

    async def swallows(stage: Stage) -> None:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    checks = make_check(swallows, "OWN-01"), make_check(holds, "OWN-02")
    with session(Adapter(TwoMethods, timeout_s=0.3), *checks) as opened:
        assert opened.run("OWN-01").verdict is Verdict.FAIL
        assert opened.run("OWN-02").verdict is Verdict.PASS


def test_an_adapter_that_ends_the_program_fails_and_the_next_check_is_run() -> None:
    """SystemExit out of a check is a FAIL, and neither ends the suite nor its event loop."""

    async def exits(stage: Stage) -> None:
        raise SystemExit(3)

    checks = make_check(exits, "OWN-01"), make_check(holds, "OWN-02")
    with session(Adapter(TwoMethods, timeout_s=5), *checks) as opened:
        assert "SystemExit: 3" in opened.run("OWN-01").reason
        assert opened.run("OWN-02").verdict is Verdict.PASS


def test_work_without_end_in_a_thread_does_not_hold_up_the_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of the event loop's pool that an adapter blocks is left behind when the session is closed."""
    monkeypatch.setattr("art_conformance.loop_thread._GRACE_S", 0.2)
    released, ended = threading.Event(), threading.Event()

    def work() -> None:
        released.wait(10)
        ended.set()

    async def blocks_a_thread(stage: Stage) -> None:
        await asyncio.to_thread(work)

    with session(Adapter(TwoMethods, timeout_s=0.3), make_check(blocks_a_thread)) as opened:
        assert opened.run("OWN-01").verdict is Verdict.FAIL
    was_held_up = ended.is_set()
    released.set()
    assert not was_held_up
    assert not opened.stage.workspace.exists()


def test_a_failed_check_ends_the_life_of_the_shared_backend() -> None:
    """After a failure the next check gets a new backend and new directories; after a pass the same."""
    seen: list[Any] = []

    async def looks(stage: Stage) -> None:
        seen.append((stage.backend, stage.workspace))
        expect(len(seen) != 2, got="broken", expected="whole", sent="nothing")

    checks = [make_check(looks, f"OWN-0{i}") for i in (1, 2, 3)]
    with session(two_methods, *checks) as opened:
        for item in checks:
            opened.run(item.id)
    first, second, third = seen
    assert first == second
    assert third[0] is not first[0]
    assert third[1] != first[1]


def test_the_log_records_of_a_check_are_its_own() -> None:
    """A check sees what was logged while it ran, and nothing of the one before."""
    seen: list[list[str]] = []

    async def logs(stage: Stage) -> None:
        logging.getLogger("somewhere").warning("number %d", len(seen))
        seen.append([record.getMessage() for record in stage.logged])

    checks = [make_check(logs, f"OWN-0{i}") for i in (1, 2)]
    with session(two_methods, *checks) as opened:
        for item in checks:
            opened.run(item.id)
    assert seen == [["number 0"], ["number 1"]]


def test_a_check_that_is_missing_or_was_not_run_is_an_error() -> None:
    """What the manifest lists and no one ran, or no one has, is an ERROR, and nothing is certified."""
    manifest = [Entry("OWN-01", "1.0"), Entry("OWN-02", "1.0"), Entry("OWN-03", "1.0")]
    checks = make_check(holds, "OWN-01"), make_check(holds, "OWN-03")
    with session(two_methods, *checks, manifest=manifest) as opened:
        opened.run("OWN-01")
        assert "no such check" in opened.run("OWN-02").reason
        report = opened.report("own")
    verdicts = [str(result.verdict) for result in report.results]
    assert verdicts == ["PASS", "ERROR", "ERROR"]
    assert report.level is None


def test_a_check_that_was_replaced_is_an_error() -> None:
    """Code from outside the suite that stands in a check's place is an ERROR."""
    with session(two_methods, make_check(holds)) as opened:
        opened._home = opened._home / "elsewhere"  # type: ignore[misc]
        result = opened.run("OWN-01")
    assert result.verdict is Verdict.ERROR
    assert "it was replaced by one in " in result.reason


def test_a_new_check_warns_for_one_version() -> None:
    """A check that this version brought does not stand in the way, unless that is asked for."""

    class NewEntry(Entry):
        is_new = True

    manifest = [Entry("OWN-01", "1.0"), NewEntry("OWN-02", "1.1")]
    checks = make_check(holds, "OWN-01"), make_check(is_broken, "OWN-02")
    for strict in (False, True):
        with session(two_methods, *checks, manifest=manifest, strict_new=strict) as opened:
            results = [opened.run(item.id) for item in checks]
            assert results[1].verdict is Verdict.FAIL
            assert (opened.report("own").level is None) is strict


def test_a_factory_that_cannot_work_is_told_before_any_check() -> None:
    """A factory that raises, or hangs, ends in one clear error when the session is opened."""
    with pytest.raises(ConfigurationError, match="make_backend raised ValueError: set TOY_API_KEY"):
        session(Adapter(NeedsAKey), make_check(holds))


def test_reasons_are_the_same_in_every_run() -> None:
    """The directory of a run and addresses in memory, which differ every time, are left out of reasons."""

    async def tells(stage: Stage) -> None:
        raise SetupError(f"nothing in {stage.workspace} by {object()}")

    assert result_of(two_methods, tells).reason == "nothing in <workspace>/0 by <object object>"


async def _nothing(stage: Stage) -> None:
    """Nothing."""


def test_a_session_leaves_nothing_behind() -> None:
    """After a session its directory is gone and its thread has ended."""
    threads = set(threading.enumerate())
    with session(two_methods, make_check(_nothing)) as opened:
        opened.run("OWN-01")
        directory = opened.stage.workspace
        assert directory.exists()
    assert not directory.exists()
    assert set(threading.enumerate()) <= threads


def test_a_backend_cannot_hide_behind_the_suites_own_word() -> None:
    """Unobservable that the backend itself raises is a FAIL; of a probe it is the verdict."""

    class Hides(TwoMethods):
        async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
            raise Unobservable("nothing to see here")

    class Blind(Probe):
        async def checkpoint_steps(self, model: Any) -> set[int]:
            raise Unobservable("it is dark")

    async def deletes(stage: Stage) -> None:
        run = await stage.run()
        await run.backend._delete_checkpoint_files(run.model, [0])

    async def looks(stage: Stage) -> None:
        await (await stage.run()).checkpoints()

    assert result_of(Adapter(Hides), deletes).verdict is Verdict.FAIL
    result = result_of(Adapter(TwoMethods, probe=Blind), looks)
    assert (result.verdict, result.reason) == (Verdict.UNOBSERVABLE, "it is dark")


def test_a_check_that_the_manifest_does_not_list_is_an_error() -> None:
    """A manifest that was shortened certifies nothing."""
    checks = make_check(holds, "OWN-01"), make_check(holds, "OWN-02")
    with session(two_methods, *checks, manifest=[Entry("OWN-01", "1.0")]) as opened:
        opened.run("OWN-01")
        report = opened.report("own")
    assert report.level is None
    assert {result.id: str(result.verdict) for result in report.results} == {
        "OWN-01": "PASS",
        "OWN-02": "ERROR",
    }


def test_after_three_hung_checks_the_rest_is_not_run() -> None:
    """An adapter that hangs again and again costs the time of three checks, not of all."""

    async def waits(stage: Stage) -> None:
        await asyncio.Event().wait()

    checks = [make_check(waits, f"OWN-0{i}") for i in range(1, 6)]
    with session(Adapter(TwoMethods, timeout_s=0.1), *checks) as opened:
        verdicts = [str(opened.run(item.id).verdict) for item in checks]
    assert verdicts == ["FAIL", "FAIL", "FAIL", "ERROR", "ERROR"]


def test_an_error_is_told_by_the_authors_own_line() -> None:
    """Of an exception that arose deep in a library, the place in the author's code is told."""

    class Parses(TwoMethods):
        async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
            json.loads("{")

    async def deletes(stage: Stage) -> None:
        run = await stage.run()
        await run.backend._delete_checkpoint_files(run.model, [0])

    assert "(test_session.py, line " in result_of(Adapter(Parses), deletes).reason


def test_a_backend_that_hides_ends_its_life_as_any_that_fails() -> None:
    """After a FAIL by Unobservable of the backend's own the next check gets a new backend."""
    seen: list[Any] = []

    class Hides(TwoMethods):
        async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
            raise Unobservable("nothing to see here")

    async def deletes(stage: Stage) -> None:
        seen.append(stage.backend)
        run = await stage.run()
        await run.backend._delete_checkpoint_files(run.model, [0])

    checks = [make_check(deletes, f"OWN-0{i}") for i in (1, 2)]
    with session(Adapter(Hides), *checks) as opened:
        for item in checks:
            opened.run(item.id)
    assert seen[0] is not seen[1]


def test_unlisted_checks_are_told_in_their_order() -> None:
    """What the manifest does not list stands in a report in the order of the checks, in every process."""
    checks = [make_check(holds, f"OWN-{i:02}") for i in range(1, 20)]
    with session(two_methods, *checks, manifest=[]) as opened:
        ids = [result.id for result in opened.report("own").results]
    assert ids == [item.id for item in checks]

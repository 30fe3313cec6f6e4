"""DEL: which checkpoints a deletion takes, and what it leaves alone."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import art
from art_conformance.check import check
from art_conformance.failure import Unobservable, expect, expect_equal
from art_conformance.instruments.faults import failure_of
from art_conformance.instruments.snapshot import books_of, changes, files_under
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from art_conformance.run import Run
    from art_conformance.stage import Stage

_UNKNOWN = 7  # so many steps ahead there is nothing
_NO_STEPS = ("notes", "0007.bak", "1_0", "-1")  # int() would take the last two for numbers


async def existing(run: Run, count: int) -> list[int]:
    """Return the steps that have a checkpoint, ascending, at least so many; what is missing is trained.

    Raises:
        Unobservable: Neither a probe nor a listing shows them.
    """
    steps = sorted(await run.checkpoints())
    return steps + [(await run.train()).step for _ in range(count - len(steps))]


async def made(run: Run, count: int) -> list[int]:
    """Return steps as `existing` does; where nothing shows them, all are trained now."""
    try:
        return await existing(run, count)
    except Unobservable:
        return [(await run.train()).step for _ in range(count)]


async def _failed_deletion(run: Run, kept: list[int]) -> BaseException | None:
    """Ask the backend itself to delete all but some steps, and return what that raises, of whatever type."""
    return await failure_of(run.backend._delete_checkpoint_files(run.model, kept))


async def _delete(run: Run, kept: list[int], *, sent: str) -> None:
    """Ask the backend itself to delete all but some steps; that must not raise."""
    error = await _failed_deletion(run, kept)
    got = f"{type(error).__name__}: {error}"
    expect(error is None, got=got, expected="no error", sent=sent)


@check("DEL-01", clause="D1", level=Level.FULL, cause="the list is taken for the steps to delete")
async def exactly_the_kept_steps_survive(stage: Stage) -> None:
    """Exactly `steps_to_keep` survive a deletion."""
    run = await stage.run()
    steps = await existing(run, 4)
    kept = [steps[-1], steps[-3]]
    sent = "_delete_checkpoint_files(model, [the latest, the last but two]), of four checkpoints or more"
    await _delete(run, kept, sent=sent)
    expect_equal(sorted(await run.checkpoints()), sorted(kept), sent=sent)


@check("DEL-02", clause="D2", cause="each kept step is looked up, and one that is missing raises")
async def any_list_of_steps_will_do(stage: Stage) -> None:
    """A list in any order, with duplicates and unknown steps, raises nothing."""
    run = await stage.run()
    latest = (await made(run, 2))[-1]
    kept = [latest + _UNKNOWN, latest, latest - 1, latest]
    await _delete(run, kept, sent="_delete_checkpoint_files(model, [N+7, N, N-1, N]) at step N")


@check("DEL-03", clause="D2", cause="all checkpoints but those of an empty list are deleted")
async def an_empty_list_raises(stage: Stage) -> None:
    """An empty `steps_to_keep` raises an error."""
    run = await stage.run()
    await made(run, 2)
    sent = "_delete_checkpoint_files(model, [])"
    expect(await _failed_deletion(run, []), got="a return", expected="an error", sent=sent)


@check("DEL-04", clause="D2", cause="a step that is deleted already is taken for an error")
async def a_deletion_can_be_repeated(stage: Stage) -> None:
    """The same deletion a second time raises nothing."""
    run = await stage.run()
    latest = (await made(run, 2))[-1]
    for which in ("the first time", "the second time"):
        await _delete(
            run, [latest], sent=f"_delete_checkpoint_files(model, [N]) at step N, {which}"
        )


@check(
    "DEL-05",
    clause="D3",
    level=Level.FULL,
    cause="checkpoints are kept or found by the model's name alone, or in one place for all models",
)
async def others_keep_their_checkpoints(stage: Stage) -> None:
    """Another model, and another project's model of the same name, keep all their checkpoints."""
    run = await stage.run()
    latest = (await existing(run, 3))[-1]
    others = {
        "another model": await stage.new_run(),
        "another project's": await stage.new_run(run.model.name, project="elsewhere"),
    }
    before = {whose: set(await existing(other, 1)) for whose, other in others.items()}
    sent = "_delete_checkpoint_files(model, [the latest])"
    await _delete(run, [latest], sent=sent)
    for whose, other in others.items():
        expect_equal(await other.checkpoints(), before[whose], sent=f"{sent}; those of {whose}")


@check("DEL-06", clause="D2", cause="what is known of a model is set up by its first train alone")
async def deletion_before_any_train(stage: Stage) -> None:
    """Before any train a deletion is harmless, and the first train makes step 1."""
    run = await stage.new_run()
    sent = "_delete_checkpoint_files(model, [0]) after register"
    await _delete(run, [0], sent=sent)
    expect_equal((await run.train()).step, 1, sent=f"{sent}, then the first train")


@check("DEL-07", clause="D3", cause="every directory that int() can read the name of is deleted")
async def only_step_directories_are_touched(stage: Stage) -> None:
    """Symlinks are not followed, and names that are not a plain step number are left alone.

    In `checkpoints/` there are a symlink that is named like a step and leads to a directory elsewhere, the
    directories `notes`, `0007.bak`, `1_0` and `-1`, and a file, `read.me`. Whether the symlink itself stays is
    left to the adapter.
    """
    run = await stage.run()
    latest = (await made(run, 2))[-1]
    checkpoints, elsewhere = art.checkpoints_dir(run.model), stage.workspace / "elsewhere"
    with _strangers(checkpoints, f"{latest + _UNKNOWN:04d}", elsewhere):
        before = _files_of_strangers(checkpoints, elsewhere)
        sent = "_delete_checkpoint_files(model, [the latest]) with strange names in checkpoints/"
        await _delete(run, [latest], sent=sent)
        lost = changes(before, _files_of_strangers(checkpoints, elsewhere))
        expect(not lost, got=f"gone or changed: {lost}", expected="all as it was", sent=sent)


@contextlib.contextmanager
def _strangers(checkpoints: Path, link_name: str, elsewhere: Path) -> Iterator[None]:
    directories = [elsewhere, *(checkpoints / name for name in _NO_STEPS)]
    file, link = checkpoints / "read.me", checkpoints / link_name
    try:
        for directory in directories:
            directory.mkdir(parents=True)
            (directory / "file.txt").touch()
        file.touch()
        link.symlink_to(elsewhere)
        yield
    finally:
        link.unlink(missing_ok=True)
        file.unlink(missing_ok=True)
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)


def _files_of_strangers(checkpoints: Path, elsewhere: Path) -> dict[str, str]:
    names = ("read.me", *_NO_STEPS)
    inside = files_under(checkpoints).items()
    found = {name: digest for name, digest in inside if name.partition("/")[0] in names}
    return found | {f"elsewhere/{name}": digest for name, digest in files_under(elsewhere).items()}


@check("DEL-08", clause="D4", level=Level.FULL, cause="a directory that is missing raises")
async def already_gone_is_success(stage: Stage) -> None:
    """A checkpoint that is already gone is no failure, and the others are still deleted.

    The directory of one under `checkpoints/` is removed behind the backend's back.
    """
    run = await stage.run()
    steps = await existing(run, 3)
    directory = _directory_of(run, steps[-2])
    if directory is None:
        await run.lose(steps[-2])
    else:
        shutil.rmtree(directory)
    sent = (
        "one checkpoint removed behind its back; then _delete_checkpoint_files(model, [the latest])"
    )
    await _delete(run, [steps[-1]], sent=sent)
    expect_equal(await run.checkpoints(), {steps[-1]}, sent=sent)


def _directory_of(run: Run, step: int) -> Path | None:
    """Return the directory of a step, however its number is padded; None where the adapter keeps none there."""
    checkpoints = art.checkpoints_dir(run.model)
    for path in checkpoints.iterdir() if checkpoints.exists() else ():
        is_number = path.name.isascii() and path.name.isdigit()
        if is_number and int(path.name) == step and path.is_dir() and not path.is_symlink():
            return path
    return None


@check(
    "DEL-09",
    clause="D4",
    level=Level.FULL,
    cause="the first failure ends the deletion, or is hidden",
)
async def a_failure_does_not_stop_the_rest(stage: Stage) -> None:
    """A checkpoint that cannot be deleted raises after the others are gone; a second call finishes the job."""
    run = await stage.run()
    latest = (await existing(run, 4))[-1]
    await run.fail_next("delete")
    sent = "_delete_checkpoint_files(model, [N]), while one of three or more deletions fails"
    expect(await _failed_deletion(run, [latest]), got="no error", expected="an error", sent=sent)
    left = await run.checkpoints()
    expect(latest in left, got="the latest is gone", expected="the latest survives", sent=sent)
    expect(
        len(left - {latest}) <= 1,
        got=f"{len(left - {latest})} doomed checkpoints are left",
        expected="at most the one that failed",
        sent=sent,
    )
    await _delete(run, [latest], sent=f"{sent}; then the same again")
    expect_equal(await run.checkpoints(), {latest}, sent=f"{sent}; then the same again")


@check("DEL-10", clause="D1", cause="a train needs more than the checkpoint before it")
async def the_latest_can_be_trained_on(stage: Stage) -> None:
    """After a deletion of all but the latest, the model trains on from it."""
    run = await stage.run()
    latest = (await made(run, 2))[-1]
    sent = "_delete_checkpoint_files(model, [N]) at step N, then a train"
    await _delete(run, [latest], sent=sent)
    expect_equal((await run.train()).step - latest, 1, sent=f"{sent}; steps that it advanced")


@check(
    "DEL-11",
    clause="T7",
    cause="the adapter keeps an account among the frontend's files, or prunes them",
)
async def books_stay_as_they_are(stage: Stage) -> None:
    """A deletion changes no file of the frontend: the rows and rollouts of deleted steps stay."""
    run = await stage.run()
    latest = (await made(run, 2))[-1]
    before = books_of(run.directory)
    sent = "_delete_checkpoint_files(model, [the latest])"
    await _delete(run, [latest], sent=sent)
    changed = changes(before, books_of(run.directory))
    expect(not changed, got=f"changed: {changed}", expected="no file changed", sent=sent)


@check(
    "DEL-15",
    clause="D5",
    level=Level.FULL,
    needs=("listing",),
    cause="the listing comes from a memory that the deletion does not correct",
)
async def doomed_steps_leave_the_listing(stage: Stage) -> None:
    """When a deletion returns, the listing has the kept steps alone."""
    run = await stage.run()
    latest = (await existing(run, 3))[-1]
    listing = run.backend._list_checkpoint_steps
    await listing(run.model)
    sent = "a listing before and after _delete_checkpoint_files(model, [the latest])"
    await _delete(run, [latest], sent=sent)
    expect_equal(await listing(run.model), [latest], sent=sent)


@check(
    "DEL-17",
    clause="D1",
    level=Level.FULL,
    needs=("listing",),
    renews=True,
    cause="steps are compared as text, or four digits are taken for the rule",
)
async def steps_beyond_9999_are_numbers(stage: Stage) -> None:
    """Step 10000 comes after step 9999, and is kept like any other.

    Copies of the latest checkpoint stand in for both: of its directory, or what the probe makes. They are kept,
    not deleted, since a copy may point to the same thing elsewhere.
    """
    run = await stage.run()
    latest = (await existing(run, 1))[-1]
    directory = _directory_of(run, latest)
    if directory is None:
        for step in (9999, 10000):
            await run.copy(latest, step)
        await _expect_in_order(run, latest)
        return
    padding = len(directory.name) if directory.name.startswith("0") else 0
    copies = [directory.with_name(f"{step:0{padding}d}") for step in (9999, 10000)]
    try:
        for copy in copies:
            shutil.copytree(directory, copy)
        await _expect_in_order(run, latest)
    finally:
        for copy in copies:
            shutil.rmtree(copy, ignore_errors=True)


async def _expect_in_order(run: Run, latest: int) -> None:
    listed = await run.backend._list_checkpoint_steps(run.model)
    if not {9999, 10000} & set(listed):
        raise Unobservable("a copied directory is no checkpoint here, and no probe copies one")
    sent = "a listing, with checkpoints 9999 and 10000"
    expect_equal(listed[-2:], [9999, 10000], sent=sent)
    newest = await run.told_step()
    expect(newest in {None, 10000}, got=newest, expected="10000", sent="_get_step, with the same")
    await _delete(run, [10000, 9999, latest], sent="a deletion that keeps 9999 and 10000")
    listed = await run.backend._list_checkpoint_steps(run.model)
    expect_equal(listed, [latest, 9999, 10000], sent=f"{sent}, after a deletion that keeps both")


@check(
    "DEL-18", clause="D2", level=Level.FULL, cause="the list is taken for a range, or is counted"
)
async def order_and_duplicates_do_not_matter(stage: Stage) -> None:
    """Which steps survive does not depend on the list's order, its duplicates and its unknown steps."""
    run = await stage.run()
    steps = await existing(run, 4)
    first, last = steps[-3], steps[-1]
    sent = "_delete_checkpoint_files(model, [unknown, last, first, first])"
    await _delete(run, [last + _UNKNOWN, last, first, first], sent=sent)
    expect_equal(sorted(await run.checkpoints()), [first, last], sent=sent)


@check(
    "DEL-19", clause="D2", level=Level.FULL, cause="the empty list is refused after the deletion"
)
async def an_empty_list_deletes_nothing(stage: Stage) -> None:
    """An empty `steps_to_keep` deletes nothing."""
    run = await stage.run()
    steps = await existing(run, 2)
    await _failed_deletion(run, [])
    expect_equal(sorted(await run.checkpoints()), steps, sent="_delete_checkpoint_files(model, [])")


@check("DEL-20", clause="D2", level=Level.FULL, cause="steps are counted off, not looked up")
async def repeating_deletes_no_more(stage: Stage) -> None:
    """The same deletion a second time leaves the same checkpoints."""
    run = await stage.run()
    kept = (await existing(run, 4))[-2:]
    for which in ("the first time", "the second time"):
        sent = f"_delete_checkpoint_files(model, [N-1, N]) at step N, {which}"
        await _delete(run, kept, sent=sent)
        expect_equal(sorted(await run.checkpoints()), kept, sent=sent)

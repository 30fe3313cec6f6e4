"""FS: what an adapter writes, opens, changes and prints beyond its checkpoints."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pydantic

from art_conformance.check import check
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.audit import Audit
from art_conformance.instruments.life import watched_life
from art_conformance.instruments.snapshot import changes
from art_conformance.instruments.streams import train_past_the_frontend

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from art_conformance.adapter import AnyModel
    from art_conformance.run import Run
    from art_conformance.stage import Stage

_SENT = "_train_model and _delete_checkpoint_files, called past the frontend"
_LIFE = "made a backend, registered a model, trained once"


async def _prepared(run: Run) -> Callable[[], Awaitable[None]]:
    """Return what trains step N+1 and keeps nothing but N and N+1: whatever happens then is the adapter's doing."""
    step, groups = await run.step(), await run.groups()

    async def call_both_methods() -> None:
        await train_past_the_frontend(run, step + 1, groups)
        await run.backend._delete_checkpoint_files(run.model, [step, step + 1])

    return call_both_methods


@check(
    "FS-01",
    clause="T7",
    cause="a state, log or work file of the adapter's own lies among the books",
)
async def writes_only_beside_checkpoints(stage: Stage) -> None:
    """In the model's directory an adapter writes only below `checkpoints/{step}/` and a dot-directory beside them.

    Seen twice: by what a train and a deletion change when they are called past the frontend, and by what is there
    after a backend's life that is not there with a backend that writes nothing.
    """
    run = await stage.run()
    call_both_methods = await _prepared(run)
    before = _tree(run.directory)
    await call_both_methods()
    changed = changes(before, _tree(run.directory))
    strays = [name for name in changed if not _is_the_adapters(name)]
    expect(
        not strays,
        got=f"changed: {', '.join(strays)}",
        expected="changes below checkpoints/{step}/ and checkpoints/.{name}/ only",
        sent=_SENT,
    )
    foreign = [name for name in (await watched_life(stage)).foreign if not _is_the_adapters(name)]
    expect(
        not foreign,
        got=f"also there: {', '.join(foreign)}",
        expected="the books and checkpoints only",
        sent=f"{_LIFE}, closed it; the model's directory",
    )


def _tree(directory: Path) -> dict[str, str]:
    """Return what shows that a file was written, if only with what it held, and an entry for each directory."""
    tree = {}
    for path in directory.rglob("*"):
        status = path.lstat()
        is_directory = stat.S_ISDIR(status.st_mode)
        written = f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"
        tree[path.relative_to(directory).as_posix()] = "directory" if is_directory else written
    return tree


def _is_the_adapters(name: str) -> bool:
    parts = PurePosixPath(name).parts
    if parts[0] != "checkpoints":
        return False
    return len(parts) == 1 or re.fullmatch(r"\d+|\..+", parts[1]) is not None


@check(
    "FS-02", clause="T7", cause="the adapter reads the history, or keeps its own step in the books"
)
async def opens_no_file_of_the_books(stage: Stage) -> None:
    """An adapter opens no file of the model's directory outside `checkpoints/`, not even to read it.

    Seen in this process only.
    """
    run = await stage.run()
    if not run.rows():
        await run.train()  # so that there are books
    call_both_methods = await _prepared(run)
    with Audit("open") as audit:
        await call_both_methods()
    opened = sorted({name for _, args in audit.events for name in _inside(run.directory, args[0])})
    foreign = [name for name in opened if PurePosixPath(name).parts[0] != "checkpoints"]
    expect(
        not foreign, got=f"opened {', '.join(foreign)}", expected="none of the books", sent=_SENT
    )


def _inside(directory: Path, opened: object) -> list[str]:
    """Return the path of an opened file below a directory, nothing for one that lies elsewhere."""
    if not isinstance(opened, (str, bytes)):
        return []  # a descriptor that was opened before
    # Both resolved: a temporary directory may lie behind a symlink.
    path = Path(os.path.realpath(os.fsdecode(opened)))
    directory = Path(os.path.realpath(directory))
    if path == directory or not path.is_relative_to(directory):
        return []
    return [path.relative_to(directory).as_posix()]


@check("FS-03", clause="T7", cause="a library is set up for a whole program, not for a part of it")
async def leaves_the_process_as_it_is(stage: Stage) -> None:
    """An adapter leaves what the whole process shares as it found it.

    That is: the working directory, environ, the global state of random, numpy and torch, the loggers root and
    `art`, the filters of warnings, signal handlers, and `wandb.run`. Everything is looked at after a train and
    after the close, and has an unusual value before, so that setting what is set already shows too.
    """
    life = await watched_life(stage)
    expect(
        not life.changed,
        got=f"changed: {', '.join(life.changed)}",
        expected="all as it was",
        sent=_LIFE,
    )


@check(
    "FS-04",
    clause="T7",
    cause="files are written to the working directory, or left in a temporary one",
)
async def writes_nothing_elsewhere(stage: Stage) -> None:
    """Nothing is written to the base path beside the model, or to the working directory; no temporary file is left."""
    life = await watched_life(stage)
    sent = f"{_LIFE}, closed it"
    expect(
        not life.strays,
        got=", ".join(life.strays),
        expected="no file beside the model's",
        sent=sent,
    )
    got = f"{len(life.temporary)} files or directories"
    expect(not life.temporary, got=got, expected="no temporary file that is left", sent=sent)


@check(
    "FS-05",
    clause="T7",
    cause="rewards, metrics or messages are changed in place on their way to the trainer",
)
async def leaves_the_groups_alone(stage: Stage) -> None:
    """A train changes nothing in the groups: no value, no order, no attribute."""
    run = await stage.run()
    groups = await run.groups()
    before = _frozen(groups)
    await train_past_the_frontend(run, await run.step() + 1, groups)
    expect_equal(_frozen(groups), before, sent="_train_model, called past the frontend; the groups")


@check("FS-06", clause="T7", cause="an endpoint, a step or a default is stored on the model")
async def leaves_the_model_alone(stage: Stage) -> None:
    """Neither a registration, a train nor a deletion changes the model's fields or its `_internal_config`.

    The fields `inference_*` are set by the frontend at a registration, and compared from there on.
    """
    shared = await stage.run()
    # An object that nothing was done to yet: what an adapter sets once and for all shows on it too.
    new = _state(stage.model(shared.model.name))
    run = await stage.new_run(shared.model.name)
    by_the_frontend = {k: v for k, v in _state(run.model).items() if k.startswith("inference_")}
    call_both_methods = await _prepared(run)
    await call_both_methods()
    after = _state(run.model)
    expect_equal(after, new | by_the_frontend, sent=f"register; {_SENT}; the model")


def _state(model: AnyModel) -> dict[str, Any]:
    fields = model.safe_model_dump(exclude={"report_metrics"})
    return {**_frozen(fields), "_internal_config": _frozen(model._internal_config)}


@check("FS-07", clause="logging", cause="print() is used where a logger should be")
async def prints_nothing(stage: Stage) -> None:
    """An adapter prints nothing to sys.stdout."""
    printed = (await watched_life(stage)).printed
    expect(not printed, got=repr(printed[:200]), expected="nothing printed", sent=_LIFE)


def _frozen(value: Any) -> Any:
    """Return a value as plain dicts, lists and texts that nobody else holds."""
    if isinstance(value, pydantic.BaseModel):
        parts = [vars(value), value.__pydantic_extra__ or {}, value.__pydantic_private__ or {}]
        return {"type": type(value).__name__} | {
            name: _frozen(part) for names in parts for name, part in names.items()
        }
    if isinstance(value, Mapping):
        return {str(key): _frozen(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_frozen(part) for part in value]
    return value if isinstance(value, str) else f"{type(value).__name__} {value!r}"

"""SHAPE: an object that the frontend can call at all."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import art
from art.backend import Backend, Capabilities, check_backend
from art.errors import InvalidBackendError
from art_conformance.adapter import CAPABILITIES
from art_conformance.check import check
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.audit import Audit
from art_conformance.instruments.streams import call_train, put_away
from art_conformance.recorder import METHODS, two_methods_of
from art_conformance.stage import close_backend

if TYPE_CHECKING:
    from art_conformance.adapter import Adapter
    from art_conformance.run import Run
    from art_conformance.stage import Stage

_TWO_METHODS = ("_train_model", "_delete_checkpoint_files")


@check(
    "SHAPE-01", clause="T1", cause="a method is misspelt, or is inherited from the Protocol's stub"
)
async def has_both_methods(stage: Stage) -> None:
    """The backend is an object that has both required methods, in their right shape."""
    sent = "art.backend.check_backend(backend), as register does"
    try:
        check_backend(stage.backend)
    except InvalidBackendError as error:
        expect(False, got=error, expected="a backend that register takes", sent=sent)


@check(
    "SHAPE-02",
    clause="T1",
    cause="`_train_model` has no `yield`, or collects its events before it returns them",
)
async def returns_an_iterator_at_once(stage: Stage) -> None:
    """`_train_model` returns an async iterator at once, not a coroutine or a list."""
    run = await stage.run()
    stream = call_train(run, await run.step() + 1, await run.groups())
    try:
        expect(
            isinstance(stream, AsyncIterator),
            got=f"a {type(stream).__name__}",
            expected="an async iterator, most simply that of an async generator (`async def` with `yield`)",
            sent="_train_model(model, trajectory_groups, config, dev_config, verbose)",
        )
    finally:
        await put_away(run, stream)


@check(
    "SHAPE-03",
    clause="T1",
    cause="a parameter has a name of its own, or is keyword-only or missing",
)
async def takes_the_arguments_by_position_and_by_name(stage: Stage) -> None:
    """Both methods take the frontend's arguments by position, and by the names of the protocol."""
    for name in _TWO_METHODS:
        signature = _signature(getattr(stage.backend, name))
        names = [p for p in inspect.signature(getattr(Backend, name)).parameters if p != "self"]
        if signature is None:
            continue
        for how, args, kwargs in (
            ("by position", names, {}),
            ("by name", [], dict.fromkeys(names)),
        ):
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                expect(
                    False,
                    got=f"{name}{signature}: {error}",
                    expected=f"{name}(self, {', '.join(names)})",
                    sent=f"the arguments {', '.join(names)} {how}",
                )


def _signature(method: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(method)
    except ValueError:  # written in another language: the calls of the other checks tell
        return None


@check("SHAPE-04", clause="protocol", cause="it returns what it deleted; no one reads that")
async def deletion_returns_none(stage: Stage) -> None:
    """`_delete_checkpoint_files` is awaited, and returns None."""
    run = await stage.run()
    everything = list(range(await run.step() + 1))
    answer = await run.backend._delete_checkpoint_files(run.model, everything)
    expect_equal(answer, None, sent="await _delete_checkpoint_files(model, every step there is)")


# --- making a backend


@check(
    "SHAPE-05",
    clause="making",
    cause="the constructor logs in, or starts its worker; do that when `register` or a train asks for it",
)
async def making_one_starts_nothing(stage: Stage) -> None:
    """Making a backend opens no network connection and starts no process: both wait for the first use.

    A program makes its backend before it knows whether it will train; it must not need a service for that. What
    stands in for a service in the adapter's own tests is started outside of `make_backend`, or on its first
    call only: this check looks at a later one.
    """
    stage.backend  # noqa: B018 - what a first call starts once and for all does not count
    with Audit(*_OUTWARD, only_from_here=True) as audit:
        backend = stage.new_backend("made-only")
    await close_backend(backend)
    expect(
        not audit.events,
        got=", ".join(sorted({name for name, _ in audit.events})),
        expected="no connection, no process",
        sent="make_backend() a second time, and nothing else",
    )


_OUTWARD = (
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.system",
    "pty.spawn",
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.sendto",
    "subprocess.Popen",
)
"""The interpreter's audit events for what leaves the process."""


# --- what is optional


@check(
    "SHAPE-06",
    clause="capabilities",
    cause="training relies on an optional method being called first, such as `_get_step`",
)
async def two_methods_are_enough(stage: Stage) -> None:
    """The frontend registers, trains, logs and deletes on an object that shows nothing but the two methods.

    The model was registered with the whole backend before: what `register` and the start of the endpoint
    prepare may be relied upon, as the frontend always asks for both. Everything else is hidden then.
    """
    run = await stage.run()
    first, whole = await run.step(), run.model.backend()
    try:
        await run.model.register(two_methods_of(run.recorder))
        before = len(run.recorder.calls)
        for _ in range(2):
            await run.train()
        await run.model.log(await run.groups(), split="two-methods")
        retention = await run.model.delete_checkpoints(None)
        called = run.recorder.calls[before:]
    finally:
        await run.model.register(whole)
    sent = "register(an object with the two methods), train twice, log, delete_checkpoints(None)"
    kept = [step - first for step in retention.kept]
    expect_equal(kept, [2], sent=f"{sent}: the steps that were kept, less N")
    methods = ["_train_model", "_train_model", "_delete_checkpoint_files"]
    expect_equal(called, methods, sent=f"{sent}: which methods were called")


@check(
    "SHAPE-07",
    clause="capabilities",
    cause="a method is misspelt or was never written, or `declines` is out of date",
)
async def every_capability_is_there_or_declined(stage: Stage) -> None:
    """Every optional capability is implemented, or declined with a reason, and none is both.

    So no check is left out because of a misspelt method. A backend that is checked by its class alone declares
    nothing: what it does not have counts as declined.
    """
    present = Capabilities.of(stage.backend)
    there = {name for name in CAPABILITIES if getattr(present, name) is not None}
    silent = [n for n in CAPABILITIES if n not in there and not stage.adapter.declined(n)]
    stale = [name for name in CAPABILITIES if name in there and name in stage.adapter.declines]
    problems = [f"{name} ({METHODS[name]}) is neither there nor declined" for name in silent]
    problems += [f"{name} ({METHODS[name]}) is declined, but there" for name in stale]
    expect(
        not problems,
        got="; ".join(problems),
        expected=f"the methods, or Adapter(..., {_declines_line(stage.adapter, silent, there)})",
        sent="art.backend.Capabilities.of(backend)",
    )


def _declines_line(adapter: Adapter, silent: list[str], there: set[str]) -> str:
    """Return the argument of Adapter that would be true."""
    reasons = {name: reason for name, reason in adapter.declines.items() if name not in there}
    reasons |= {name: adapter.declines.get(name) or "not implemented" for name in silent}
    return f"declines={json.dumps(reasons, ensure_ascii=False)}"


_AWAITED = {"register": 1, "step": 1, "listing": 1, "inference": 2, "close": 0}
"""The capabilities whose method is awaited, and how many arguments it takes."""

_ANSWERS_AT_ONCE = ("inference_name", "inference_health", "default_base_path")


@check(
    "SHAPE-08",
    clause="capabilities",
    cause="an `async` too many or too few: see the protocols in art.backend",
)
async def optional_methods_are_of_the_right_kind(stage: Stage) -> None:
    """The methods of optional capabilities are awaited, answer at once or stream, as their protocols say."""
    backend = stage.new_backend("made-only")  # one that may be closed
    there = Capabilities.of(backend)
    try:
        for name, count in _AWAITED.items():
            if getattr(there, name) is not None:
                _expect_awaitable(backend, METHODS[name], (stage.model(), None)[:count])
    finally:
        await close_backend(backend)
    for name in _ANSWERS_AT_ONCE:
        if getattr(there, name) is not None:
            _expect_plain(backend, METHODS[name])
    if there.sft is not None:
        await _expect_stream(await stage.run())


def _expect_awaitable(backend: Any, method: str, args: tuple[Any, ...]) -> None:
    function = getattr(backend, method)
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return
    answer = function(*args)  # a plain function may hand on what is to be awaited
    expect(
        inspect.isawaitable(answer),
        got=f"an answer of type {type(answer).__name__}",
        expected=f"something to await: `async def {method}`",
        sent=f"{method}(...)",
    )
    _forget(answer)


def _expect_plain(backend: Any, method: str) -> None:
    function = inspect.unwrap(getattr(backend, method))
    expect(
        not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)),
        got=f"`async def {method}`",
        expected=f"`def {method}`",
        sent="a look at the method",
    )


async def _expect_stream(run: Run) -> None:
    trajectories = [t for group in await run.groups() for t in group.trajectories]
    stream = run.backend._train_sft(run.model, trajectories, art.TrainSFTConfig(), {}, False)
    try:
        expect(
            isinstance(stream, AsyncIterator),
            got=f"a {type(stream).__name__}",
            expected="an async iterator, as of `_train_model`",
            sent="_train_sft(model, trajectories, config, dev_config, verbose)",
        )
    finally:
        await put_away(run, stream)


def _forget(awaitable: Any) -> None:
    if inspect.iscoroutine(awaitable):
        awaitable.close()  # else Python warns that it was never awaited
    elif isinstance(awaitable, asyncio.Future):
        awaitable.cancel()

"""Which step a model is at: the books account for it, the backend gives evidence."""

from __future__ import annotations

import logging
import operator
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypeVar, cast

from art.background import run_blocking
from art.books.lock import train_lock
from art.errors import ConfigurationError, InvalidBackendError, ModelBusy, StepMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from art.backend import AnyModel, AnyTrainableModel, SupportsStep
    from art.books.log import Books

logger = logging.getLogger(__name__)

T = TypeVar("T")

_STEPS = range(2**63)  # what every file and frame can hold


async def current_step(model: AnyModel) -> int:
    """Return the step that a log call without one belongs to, and that `get_step` tells.

    The books know it once a step was trained; a registered model remembers what was settled then. A backend
    is asked only where neither is so: a backend that was attached by hand, or an unregistered model.
    """
    if not model.trainable:
        return 0
    evidence = model._capabilities.step
    if evidence is not None and not model._registered:
        return await _step_of_backend(evidence, model)  # type: ignore[arg-type]  # trainable, so a TrainableModel
    recorded = await run_blocking(model._books().ledger.current_step)
    if recorded is not None:
        return recorded
    if model._known_step is not None:
        return model._known_step
    return await run_blocking(model._books().recorded_step) or 0


def checked_step(step: object) -> int:
    """Return a step that a user gave as an int.

    Raises:
        ConfigurationError: It is not a whole number, or negative.
    """
    number = as_step_number(step)
    if number is None:
        raise ConfigurationError(f"step is {step!r}; expected a whole number, 0 or more")
    return number


def as_step_number(value: object) -> int | None:
    """Return a step of any whole number's type (numpy's too) as an int, None for what can be no step."""
    # To look for `__index__` in an int would take fifty times as long.
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            return None
        value = operator.index(value)
    return value if value in _STEPS else None


async def _step_of_backend(evidence: SupportsStep, model: AnyTrainableModel) -> int:
    found: object = await evidence._get_step(model)
    step = as_step_number(found)
    if step is None:
        raise InvalidBackendError(
            f"{type(evidence).__name__}._get_step returned {found!r}; it must return a whole number, "
            "the step of the newest whole checkpoint, 0 if there is none"
        )
    return step


async def settle_at_register(
    model: AnyTrainableModel, on_mismatch: Literal["warn", "error"]
) -> None:
    """Settle the step as `settle_step` does, unless the model is being trained meanwhile.

    Between the backend's commit and the line in the books every train looks like a mismatch. So a train of
    this process is waited for, and one of another process is left to keep its own account.

    Raises:
        StepMismatchError: See `settle_step`.
    """
    if on_mismatch not in {"warn", "error"}:
        raise ConfigurationError(f'on_step_mismatch is {on_mismatch!r}; use "warn" or "error"')
    books = model._books()
    step, found = await _recorded_and_found(model, books)
    if found == step:
        model._remember_step(step)
        return
    try:
        async with train_lock(books.paths.train_lock):
            await settle_step(model, on_mismatch)
    except ModelBusy:
        model._remember_step(step)


async def _recorded_and_found(model: AnyTrainableModel, books: Books) -> tuple[int, int]:
    step = await run_blocking(books.recorded_step) or 0
    found = await _evidence(model)
    return step, step if found is None else found


async def _evidence(model: AnyTrainableModel) -> int | None:
    evidence = model._capabilities.step
    return None if evidence is None else await _step_of_backend(evidence, model)


async def settle_step(
    model: AnyTrainableModel, on_mismatch: Literal["warn", "error"] = "warn"
) -> int:
    """Return the current step: the books' account, checked against the backend's evidence.

    A backend that is ahead committed a checkpoint before a crash: its step is adopted. One that is behind is
    another backend or lost its disk: the books are rewound, and rows of later steps no longer count. The
    caller holds the train lock.

    Raises:
        StepMismatchError: They disagree and `on_mismatch` is "error"; nothing was written.
        InvalidBackendError: What the backend returned is no step.
    """
    step, _ = await settle_step_and_ask(model, lambda _: None, on_mismatch)
    return step


async def settle_step_and_ask(
    model: AnyTrainableModel,
    question: Callable[[int], T],
    on_mismatch: Literal["warn", "error"] = "warn",
) -> tuple[int, T]:
    """Settle the step as `settle_step` does; return it, and what `question(step)` finds in the books.

    Where the backend agrees, as it nearly always does, both are read in one thread: to go to another one takes
    as long as to read.
    """
    books = model._books()
    found = await _evidence(model)

    def read() -> tuple[int, T | None]:
        step = books.recorded_step() or 0
        return step, question(step) if found in {None, step} else None

    step, answer = await run_blocking(read)
    if found is None or found == step:
        model._remember_step(step)
        return step, cast("T", answer)
    where = f"model {model.name!r} in {books.paths.root}"
    if on_mismatch == "error":
        raise StepMismatchError(
            f"{where}: the books are at step {step}, the backend's newest checkpoint is {found}; "
            'register with on_step_mismatch="warn" to go on from the backend\'s step'
        )
    await _follow_backend(books, step, found, where)
    model._remember_step(found)
    return found, await run_blocking(question, found)


async def _follow_backend(books: Books, step: int, found: int, where: str) -> None:
    if found > step:
        logger.warning(
            "%s: the books are at step %d but the backend has checkpoint %d, committed before a crash or "
            "by an older run; going on from %d",
            *(where, step, found, found),
        )
        await run_blocking(books.adopt_step, found)
        return
    logger.warning(
        "%s: the books are at step %d but the backend's newest checkpoint is %d (another backend, or a lost "
        "disk); going on from %d, rows of later steps no longer count",
        *(where, step, found, found),
    )
    await run_blocking(books.rewind, found)

"""Which step a model is at: the books account for it, the backend gives evidence."""

from __future__ import annotations

import logging
import operator
from typing import TYPE_CHECKING, Literal

from art.background import run_blocking
from art.errors import ConfigurationError, StepMismatchError

if TYPE_CHECKING:
    from art.backend import AnyModel, AnyTrainableModel
    from art.books.log import Books

logger = logging.getLogger(__name__)


async def current_step(model: AnyModel) -> int:
    """Return the step that a log call without one belongs to, and that `get_step` tells.

    The books know it once a step was trained; a registered model remembers what was settled then. A backend
    is asked only where neither is so: a backend that was attached by hand, or an unregistered model.
    """
    if not model.trainable:
        return 0
    evidence = model._capabilities.step
    if evidence is not None and not model._registered:
        return await evidence._get_step(model)  # type: ignore[arg-type]  # trainable, so a TrainableModel
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
    try:
        number = operator.index(step)  # type: ignore[arg-type]  # its error is what is asked for
    except TypeError:
        raise ConfigurationError(f"step is {step!r}; expected a whole number") from None
    if number < 0:
        raise ConfigurationError(f"step is {number}; steps start at 0")
    return number


async def settle_step(
    model: AnyTrainableModel, on_mismatch: Literal["warn", "error"] = "warn"
) -> int:
    """Return the current step: the books' account, checked against the backend's evidence.

    A backend that is ahead committed a checkpoint before a crash: its step is adopted. One that is behind is
    another backend or lost its disk: the books are rewound, and rows of later steps no longer count.

    Raises:
        StepMismatchError: They disagree and `on_mismatch` is "error"; nothing was written.
    """
    books = model._books()
    recorded = await run_blocking(books.recorded_step)
    step = recorded or 0
    evidence = model._capabilities.step
    found = await evidence._get_step(model) if evidence is not None else step
    if found != step:
        where = f"model {model.name!r} in {books.paths.root}"
        if on_mismatch == "error":
            raise StepMismatchError(
                f"{where}: the books are at step {step}, the backend's newest checkpoint is {found}; "
                'register with on_step_mismatch="warn" to go on from the backend\'s step'
            )
        await _follow_backend(books, step, found, where)
    model._remember_step(found)
    return found


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

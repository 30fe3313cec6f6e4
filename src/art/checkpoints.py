"""Which checkpoints are deleted: the books tell the scores, the rules choose, the backend deletes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from art.background import run_blocking
from art.books.lock import train_lock
from art.errors import InvalidBackendError
from art.rules import retention as rules
from art.steps import as_step_number, settle_step_and_ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from art.backend import AnyTrainableModel
    from art.books.log import Books

logger = logging.getLogger(__name__)


async def delete_checkpoints(
    model: AnyTrainableModel,
    metric: str | None,
    *,
    mode: Literal["max", "min"],
    retention: Callable[[list[rules.StepInfo]], Iterable[int]] | None,
    keep_unscored: int,
    dry_run: bool,
) -> rules.RetentionResult:
    """See `art.TrainableModel.delete_checkpoints`."""
    backend = model.backend()
    books = model._books()
    async with train_lock(books.paths.train_lock):
        listed = await _listed_steps(model)

        def scores_at(latest: int) -> dict[int, float]:
            steps = None if listed is None else [*listed, latest]
            return books.values_by_step(metric, steps) if metric else {}

        latest, scores = await settle_step_and_ask(model, scores_at)
        steps = [
            rules.StepInfo(step=step, metric=scores.get(step), is_latest=step == latest)
            for step in _possible_steps(listed, latest, scores)
        ]
        result = rules.choose(
            steps,
            mode=mode,
            keep_unscored=keep_unscored,
            retention=retention,
            only_latest=metric is None,
        )
        if metric and result.best is None and retention is None:
            await _warn_unknown_metric(books, metric)
        elif not dry_run:
            await backend._delete_checkpoint_files(model, result.kept)
        if listed is None:
            result = _of_steps_that_were_made(result, await run_blocking(books.made_checkpoints))
        if not dry_run:
            books.checkpoints_deleted(result.deleted)
    return result


async def _listed_steps(model: AnyTrainableModel) -> list[int] | None:
    """Return the steps that the backend lists, None where it cannot list them."""
    listing = model._capabilities.listing
    if listing is None:
        return None
    listed: object = await listing._list_checkpoint_steps(model)
    return _checked_listing(listed, type(listing).__name__)


def _possible_steps(listed: list[int] | None, latest: int, scores: dict[int, float]) -> list[int]:
    """Return the steps that a backend has, or may have where it cannot list them.

    More rather than fewer: a step that is not chosen among is deleted, one that is not there does no harm.
    """
    if listed is not None:
        return sorted({*listed, latest})
    return sorted({*range(latest + 1), *(step for step in scores if step <= latest)})


def _of_steps_that_were_made(
    result: rules.RetentionResult, made: set[int]
) -> rules.RetentionResult:
    """Leave out of the deleted ones those that the backend cannot have had."""
    deleted = [step for step in result.deleted if step in made]
    named = {*result.kept, *deleted}
    reasons = {step: reason for step, reason in result.reasons.items() if step in named}
    return dataclasses.replace(result, deleted=deleted, reasons=reasons)


def _checked_listing(listed: object, backend: str) -> list[int]:
    steps = [as_step_number(step) for step in listed] if isinstance(listed, Iterable) else [None]
    if None in steps:
        raise InvalidBackendError(
            f"{backend}._list_checkpoint_steps returned {listed!r}; it must return a list of step numbers"
        )
    return [step for step in steps if step is not None]


async def _warn_unknown_metric(books: Books, metric: str) -> None:
    keys = await run_blocking(books.known_keys)
    scored = await run_blocking(books.values_by_step, metric)
    elsewhere = ", ".join(map(str, list(scored)[:10]))
    logger.warning(
        "no checkpoint was deleted: %s has no value of %r for a step that exists; it has %s",
        books.paths.history,
        metric,
        f"values of it at step {elsewhere}" if elsewhere else ", ".join(keys) or "no metric yet",
    )

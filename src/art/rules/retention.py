"""Which checkpoints are kept when old ones are deleted."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, SupportsIndex

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

Mode = Literal["max", "min"]


@dataclass(frozen=True)
class StepInfo:
    """What is known of one step when checkpoints are chosen.

    Attributes:
        step: The step.
        metric: The metric at this step; None where it was never recorded.
        is_latest: The model stands at this step.
        exists: The backend has a checkpoint of it.
    """

    step: int
    metric: float | None = None
    is_latest: bool = False
    exists: bool = True

    @property
    def is_scored(self) -> bool:
        """Whether the metric is there and finite."""
        return self.metric is not None and math.isfinite(self.metric)


@dataclass(frozen=True)
class RetentionResult:
    """Which checkpoints were kept and deleted, and why.

    Attributes:
        kept: Steps that stay, ascending.
        deleted: Steps that go, ascending.
        reasons: A short sentence for each step.
        best: The step with the best metric, where one was sought and found.
    """

    kept: list[int]
    deleted: list[int]
    reasons: dict[int, str]
    best: int | None = None


def choose(
    steps: Iterable[StepInfo],
    *,
    mode: Mode = "max",
    keep_unscored: int = 0,
    only_latest: bool = False,
    retention: Callable[[list[StepInfo]], Iterable[int | StepInfo]] | None = None,
) -> RetentionResult:
    """Choose which checkpoints stay.

    The latest always stays. Beside it stays the best by the metric (among existing steps, finite values only,
    ties to the newest), and the newest `keep_unscored` steps without the metric, whose evaluations may still be
    running. If no existing step has the metric, nothing can be told to be worse, and everything stays.

    Args:
        steps: All known steps in any order; those that do not exist are ignored.
        mode: Whether a high or a low metric is good.
        keep_unscored: How many of the newest steps without the metric stay.
        only_latest: Keep the latest alone, and look at no metric.
        retention: A rule of the caller's own in place of this one: takes the existing steps, ascending, and
            returns those to keep. Steps that do not exist are ignored; the latest is always added.

    Raises:
        ConfigurationError: An argument, or what the rule returned, cannot be used.
    """
    if mode not in {"max", "min"}:
        raise ConfigurationError(f'mode {mode!r} is unknown; use "max" or "min"')
    if keep_unscored < 0:
        raise ConfigurationError(f"keep_unscored is {keep_unscored}; use 0 or more")
    existing = sorted({info.step: info for info in steps if info.exists}.values(), key=_step)
    if not existing:
        return RetentionResult([], [], {})
    latest = next((info for info in reversed(existing) if info.is_latest), existing[-1])
    best: StepInfo | None = None
    if retention is not None:
        reasons = _apply_rule(retention, existing)
    elif only_latest:
        reasons = {}
    else:
        best = _best(existing, mode)
        reasons = _keep_best(existing, best, keep_unscored)
    reasons[latest.step] = "; ".join(filter(None, ["the latest", reasons.get(latest.step)]))
    return _result(existing, reasons, best, mode)


def _step(info: StepInfo) -> int:
    return info.step


def _best(existing: list[StepInfo], mode: Mode) -> StepInfo | None:
    sign = 1 if mode == "max" else -1
    scored = [info for info in existing if info.is_scored]
    return max(scored, key=lambda info: (sign * (info.metric or 0.0), info.step), default=None)


def _keep_best(
    existing: list[StepInfo], best: StepInfo | None, keep_unscored: int
) -> dict[int, str]:
    if best is None:
        return {
            info.step: "no step has the metric, so none is known to be worse" for info in existing
        }
    unscored = (info for info in reversed(existing) if not info.is_scored)
    reasons = {
        info.step: f"among the newest {keep_unscored} without the metric"
        for info in itertools.islice(unscored, keep_unscored)
    }
    reasons[best.step] = f"the best, with {best.metric:g}"
    return reasons


def _apply_rule(
    rule: Callable[[list[StepInfo]], Iterable[int | StepInfo]], existing: list[StepInfo]
) -> dict[int, str]:
    chosen: object = rule(list(existing))
    if not isinstance(chosen, Iterable):
        raise ConfigurationError(
            f"the retention rule returned a {type(chosen).__name__}; return the steps to keep"
        )
    known = {info.step for info in existing}
    kept: set[int] = set()
    for item in chosen:
        step = item.step if isinstance(item, StepInfo) else item
        # A boolean would pass for step 0 or 1: a rule that returned a mask.
        if isinstance(step, bool) or not isinstance(step, SupportsIndex):
            # Ignoring it would delete a checkpoint that the user meant to keep.
            raise ConfigurationError(
                f"the retention rule returned {item!r} as a step; return the numbers of the steps to keep, "
                "as in [info.step for info in steps if ...]"
            )
        kept.add(operator.index(step))
    return dict.fromkeys(kept & known, "the retention rule keeps it")


def _result(
    existing: list[StepInfo], reasons: dict[int, str], best: StepInfo | None, mode: Mode
) -> RetentionResult:
    kept = [info.step for info in existing if info.step in reasons]
    deleted = [info for info in existing if info.step not in reasons]
    all_reasons = dict(reasons)
    for info in deleted:
        if best is None:
            all_reasons[info.step] = "not among the kept"
        elif info.is_scored:
            worse = "not above" if mode == "max" else "not below"
            all_reasons[info.step] = (
                f"{info.metric:g} is {worse} {best.metric:g} of step {best.step}"
            )
        else:
            all_reasons[info.step] = "has no metric"
    return RetentionResult(
        kept=kept,
        deleted=[info.step for info in deleted],
        reasons=dict(sorted(all_reasons.items())),
        best=best.step if best is not None else None,
    )

"""STATE: any sequence of calls, failures and restarts, against a model in plain values."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from art_conformance.check import check

if TYPE_CHECKING:
    from art_conformance.stage import Stage

# A run that takes longer to start is a real engine's: few sequences are tried, and few restarts.
_SLOW_START_S = 1.0
_SLOW_TRAIN_S = 0.3


@check(
    "STATE-01",
    clause="T4",
    cause="something of an earlier call (a failed train, a deletion, another project) shows in a later one",
    renews=True,
    is_long=True,
)
async def any_sequence_of_calls_keeps_the_account(stage: Stage) -> None:
    """After any sequence of trains, failures, cancellations, logs, deletions and restarts, the books, the step and the checkpoints are as a plain account of the calls has them.

    Two projects that have a model of the same name take turns. Where neither a probe nor a listing shows the
    checkpoints, only the books and the step are compared.
    """
    from art_conformance.instruments.state_machine import Plan, play

    start_s, train_s = await _costs(stage)
    profile, example_s = stage.profile, 2 * start_s + stage.profile.steps * train_s
    is_slow = start_s > _SLOW_START_S or train_s > _SLOW_TRAIN_S
    affordable = int(profile.budget_s / example_s)
    plan = Plan(
        examples=max(1, min(profile.examples, affordable)) if is_slow else profile.examples,
        steps=profile.steps,
        restarts=1 if is_slow else 2,
        shrinks=profile.shrinks and not is_slow,
        seed=stage.seed,
        call_timeout_s=stage.adapter.timeout_s,
    )
    given_up = threading.Event()
    try:
        await asyncio.to_thread(play, stage, plan, asyncio.get_running_loop(), given_up)
    finally:
        given_up.set()


async def _costs(stage: Stage) -> tuple[float, float]:
    """Return how many seconds it takes to register a model, and to train it once, when all is warm."""
    await (await stage.run()).train()
    start = time.monotonic()
    run = await stage.new_run()
    registered = time.monotonic()
    await run.train()
    return registered - start, time.monotonic() - registered

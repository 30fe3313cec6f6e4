"""A hypothesis state machine that plays calls on two runs, and keeps a plain account beside them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from art_conformance.failure import CheckFailed, Unobservable, expect, expect_equal
from art_conformance.instruments.faults import (
    Injected,
    after_the_first_event,
    after_the_last_event,
    before_the_first_event,
)
from art_conformance.instruments.streams import interfering

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Coroutine

    from art_conformance.run import Run
    from art_conformance.stage import Stage

PROJECTS = ("one", "two")


@dataclass(frozen=True)
class Plan:
    """How much is tried.

    Attributes:
        examples: Sequences of calls.
        steps: Most calls in each.
        restarts: Most restarts in each.
        shrinks: Whether a shorter story of a failure is looked for, which takes as long again and longer.
        seed: Chooses the sequences.
        call_timeout_s: Seconds that one call may take.
    """

    examples: int
    steps: int
    restarts: int
    shrinks: bool
    seed: int
    call_timeout_s: float


@dataclass
class Account:
    """What must be true of one project's model.

    Attributes:
        step: The step by the books.
        committed: The newest checkpoint; ahead of the step after a train that broke behind its commit.
        checkpoints: The steps that exist.
        num_rows: Rows of the history.
        ledger: The steps that were counted, in order.
    """

    step: int = 0
    committed: int = 0
    checkpoints: set[int] = field(default_factory=set)
    num_rows: int = 0
    ledger: list[int] = field(default_factory=list)


def play(
    stage: Stage, plan: Plan, loop: asyncio.AbstractEventLoop, given_up: threading.Event
) -> None:
    """Play sequences of calls on the loop, from another thread, until one breaks the account or all are through.

    Args:
        stage: Where they take place.
        plan: How many, and how long.
        loop: The event loop of the backend.
        given_up: Set when nobody waits for the outcome any more: no further call is made.
    """
    names = (f"state-{i}" for i in itertools.count())

    @seed(plan.seed)
    class Machine(_Machine):
        def __init__(self) -> None:
            super().__init__(stage, plan, loop, given_up, next(names))

    phases = [Phase.generate, Phase.shrink] if plan.shrinks else [Phase.generate]
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=plan.examples,
            stateful_step_count=plan.steps,
            deadline=None,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


class _GivenUpError(Exception):
    """Ends a play that nobody waits for any more."""


async def _cancelled_at_the_first_event(stream: Any) -> AsyncIterator[Any]:
    async with aclosing(stream):
        async for event in stream:
            yield event
            task = asyncio.current_task()
            if task is not None:
                task.cancel()
            await asyncio.sleep(0)


FATES = {
    "raises first": before_the_first_event,
    "raises midway": after_the_first_event,
    "raises after the end": after_the_last_event,
    "is cancelled": _cancelled_at_the_first_event,
}
"""How a train ends badly: what the frontend sees instead of the backend's stream."""

projects = st.sampled_from(PROJECTS)


class _Machine(RuleBasedStateMachine):
    """The calls that users make, with everything that may go wrong between."""

    def __init__(
        self,
        stage: Stage,
        plan: Plan,
        loop: asyncio.AbstractEventLoop,
        given_up: threading.Event,
        name: str,
    ) -> None:
        super().__init__()
        self.stage, self.plan, self.name = stage, plan, name
        self.loop, self.given_up = loop, given_up
        self.accounts = {project: Account() for project in PROJECTS}
        self.runs: dict[str, Run] = {}
        self.restarts = 0
        self.story: list[str] = []

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self.given_up.is_set():
            coroutine.close()
            raise _GivenUpError
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        done, _ = concurrent.futures.wait([future], self.plan.call_timeout_s)
        if not done:
            future.cancel()
            got = f"not finished after {self.plan.call_timeout_s:g} s"
            raise CheckFailed(got, expected="its end", sent=self.told("call that came next"))
        return future.result()

    @initialize()
    def begin(self) -> None:
        self.register()
        for project in PROJECTS:
            with contextlib.suppress(Unobservable):
                # Step 0 is a checkpoint, or the base model itself: both are good.
                seen = self.call(self.runs[project].checkpoints())
                self.accounts[project].checkpoints = seen & {0}
        self._compare()

    def register(self) -> None:
        for project in PROJECTS:
            self.runs[project] = self.call(self.stage.new_run(self.name, project=project))

    def teardown(self) -> None:
        for run in self.runs.values():
            self.call(run.model.close())

    @rule(project=projects, has_signal=st.sampled_from([(True,), (False,), (True, True, False)]))
    def train(self, project: str, has_signal: tuple[bool, ...]) -> None:
        for has in has_signal:
            self._train(project, has)
        self._compare()

    def _train(self, project: str, has_signal: bool) -> None:
        run, account = self.runs[project], self.accounts[project]
        self._settle(run, account)
        groups = self.call(run.groups() if has_signal else run.untrainable_groups())
        result = self.call(run.train(groups))
        account.step += 1
        account.committed = account.step
        account.checkpoints.add(account.step)
        account.ledger.append(account.step)
        account.num_rows += 2
        self.story.append(f"train {project}" if has_signal else f"train {project} without signal")
        expect_equal(result.step, account.step, sent=self.told("step returned"))

    @rule(project=projects, fate=st.sampled_from(sorted(FATES)))
    def broken_train(self, project: str, fate: str) -> None:
        run, account = self.runs[project], self.accounts[project]
        self._settle(run, account)
        groups = self.call(run.groups())
        with interfering(run, FATES[fate]):
            ended_well = self.call(_ends_well(run.train(groups)))
        self.story.append(f"train {project}, which {fate}")
        result = self.told("result")
        expect(not ended_well, got="it ended well", expected="an error", sent=result)
        account.num_rows += 1
        if fate == "raises after the end":
            account.committed = account.step + 1
            account.checkpoints.add(account.committed)
        self._compare()

    @rule(project=projects)
    def log(self, project: str) -> None:
        run, account = self.runs[project], self.accounts[project]
        self.call(run.model.log(self.call(run.groups()), split="val"))
        account.num_rows += 1
        self.story.append(f"log {project}")
        self._compare()

    @rule(project=projects, kept=st.sets(st.integers(0, 6), max_size=3))
    def delete(self, project: str, kept: set[int]) -> None:
        run, account = self.runs[project], self.accounts[project]
        self._settle(run, account)
        self.call(
            run.model.delete_checkpoints(
                retention=lambda steps: [info.step for info in steps if info.step in kept]
            )
        )
        account.checkpoints &= {*kept, account.step}
        account.committed = account.step
        self.story.append(f"delete all of {project} but the latest and {sorted(kept)}")
        self._compare()

    @precondition(lambda self: self.restarts < self.plan.restarts)
    @rule()
    def restart(self) -> None:
        self.restarts += 1
        self.call(self.stage.restart())
        self.register()
        for project in PROJECTS:
            self._settle(self.runs[project], self.accounts[project])
        self.story.append("restart")
        self._compare()

    def _settle(self, run: Run, account: Account) -> None:
        """A commit that the books do not know of is adopted where the backend tells its step, else made anew."""
        if account.committed > account.step and run.capabilities.step is not None:
            account.step = account.committed
            account.ledger.append(account.step)

    def _compare(self) -> None:
        for project in PROJECTS:
            run, account = self.runs[project], self.accounts[project]
            rows = self.told(f"rows of the history of {project}")
            expect_equal(len(run.rows()), account.num_rows, sent=rows)
            steps = self.told(f"steps in the ledger of {project}")
            expect_equal(_ledger(run), account.ledger, sent=steps)
            with contextlib.suppress(Unobservable):
                seen, existing = self.call(run.checkpoints()), sorted(account.checkpoints)
                expect_equal(sorted(seen), existing, sent=self.told(f"checkpoints of {project}"))

    def told(self, looked_at: str) -> str:
        """Return what was done so far, and what is looked at now."""
        return f"{'; '.join(['register both', *self.story])}; then a look at the {looked_at}"


def _ledger(run: Run) -> list[int | str]:
    """Return the steps that were counted; a rewind, which no account has, in words."""
    return [e["step"] if "step" in e else f"rewind to {e['rewind_to']}" for e in run.ledger()]


async def _ends_well(train: Coroutine[Any, Any, Any]) -> bool:
    try:
        await train
    except (Injected, asyncio.CancelledError):
        return False
    return True

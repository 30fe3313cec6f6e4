"""Any sequence of calls, failures and restarts, against the same in plain values (`plain_books.py`)."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import art
from art.books.trajectory_file import read_logs
from art.testing import Capability, InMemoryBackend, TrainCall
from tests.art.crash import plain_books
from tests.art.crash.plain_books import PlainBooks, is_trainable
from tests.art.factories import group, model
from tests.profiles import examples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from art.rules.retention import StepInfo

EVENTS = [{"loss": 0.5, "num_tokens": 3.0}, {"loss": 1.0, "num_tokens": 4.0}]
OF_EVENTS = {"loss": 0.75, "num_tokens": 7.0}
# What may happen in a train call, "midway" only where there is something to train on.
FATES = (
    "ends",
    "raises first",
    "raises midway",
    "cancelled midway",
    "raises after",
    "cancelled after",
)
SPLITS = st.sampled_from(["train", "val", "odd/split %"])

rewards = st.sampled_from([0.0, 0.25, 0.5, 1.0, -2.0, math.nan])
groups = st.lists(
    st.builds(
        lambda own, exceptions: group(*own, exceptions=[TimeoutError("late")] * exceptions),
        st.lists(rewards, max_size=3),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=3,
)
trainable_groups = st.lists(
    st.builds(
        lambda own: group(*own),
        st.lists(st.floats(0.0, 1.0, width=16), min_size=2, max_size=4, unique=True),
    ),
    min_size=1,
    max_size=2,
)
numbers = st.dictionaries(
    st.sampled_from(["score", "reward", "reward_std_dev", "loss"]),
    st.floats(0.0, 2.0, width=16),
    min_size=1,
    max_size=2,
)


class BackendBrokeError(Exception):
    pass


class FatefulBackend(InMemoryBackend):
    """Ends its train calls as it is told."""

    fate = "ends"

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        if self.fate == "raises first":
            raise BackendBrokeError
        async for event in super()._train_model(*args, **kwargs):
            yield event
            await self._fail("midway")
        await self._fail("after")

    async def _fail(self, when: str) -> None:
        if self.fate == f"raises {when}":
            raise BackendBrokeError
        if self.fate == f"cancelled {when}":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if when == "midway":
                await asyncio.sleep(0)


def events_of(call: TrainCall) -> list[dict[str, float]]:
    return EVENTS if any(map(is_trainable, call.groups)) else []


def even_steps(steps: list[StepInfo]) -> list[int]:
    return [info.step for info in steps if info.step % 2 == 0]


class Books(RuleBasedStateMachine):
    """The real books of a model on disk, beside the plain ones."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.plain = PlainBooks()
        self.runner = asyncio.Runner()
        self.trained: list[tuple[list[art.TrajectoryGroup], art.TrainResult]] = []
        self.changed: set[tuple[str, int]] = set()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(call)

    def teardown(self) -> None:
        self.changed = set(self.plain.logs)
        self.files_hold_what_was_logged()
        self.runner.close()
        self.directory.cleanup()

    # --- starting ---

    @initialize(tells_step=st.booleans(), lists=st.booleans())
    def start(self, tells_step: bool, lists: bool) -> None:
        self.tells_step, self.lists = tells_step, lists
        self.capabilities: list[Capability] = []
        if tells_step:
            self.capabilities.append("step")
        if lists:
            self.capabilities.append("listing")
        self._connect({0})

    def _connect(self, checkpoints: set[int]) -> None:
        """Begin as a new process does: a new model, backend and event loop on the directory."""
        self.runner.close()
        self.runner = asyncio.Runner()
        self.backend = cast("FatefulBackend", FatefulBackend.supporting(*self.capabilities))
        self.backend.events = events_of
        self.backend.checkpoints["tests", "agent"] = set(checkpoints)
        self.model = model(Path(self.directory.name))
        self.root = art.model_dir(self.model)
        self.run(self.model.register(self.backend))
        self._settle()

    @property
    def checkpoints(self) -> set[int]:
        return self.backend.checkpoints["tests", "agent"]

    def _settle(self) -> None:
        if self.tells_step:
            self.plain.settle(max(self.checkpoints))

    @rule()
    def restart(self) -> None:
        self._connect(self.checkpoints)

    @rule(back=st.integers(-2, 3))
    def swap_backend(self, back: int) -> None:
        """Another backend, which is behind the books or ahead of them."""
        self._connect(set(range(max(0, self.plain.step - back) + 1)))

    @rule(in_history=st.booleans(), in_ledger=st.booleans())
    def die_in_a_line(self, in_history: bool, in_ledger: bool) -> None:
        """A process that dies while it appends leaves a part of a line."""
        for is_torn, name in ((in_history, "history.jsonl"), (in_ledger, "steps.jsonl")):
            if is_torn and (self.root / name).exists():
                with (self.root / name).open("ab") as file:
                    file.write(b'{"step": 7, "train/rew')
        self._connect(self.checkpoints)

    # --- logging ---

    @rule(
        batch=groups, numbers=st.none() | numbers, split=SPLITS, step=st.none() | st.integers(0, 4)
    )
    def log(
        self,
        batch: list[art.TrajectoryGroup],
        numbers: dict[str, float] | None,
        split: str,
        step: int | None,
    ) -> None:
        at = self.plain.step if step is None else step
        self.run(self.model.log(batch, split, metrics=numbers, step=step))
        self._logged(batch, numbers or {}, split, at)

    @rule(numbers=numbers, split=SPLITS, step=st.none() | st.integers(0, 4))
    def log_numbers(self, numbers: dict[str, float], split: str, step: int | None) -> None:
        at = self.plain.step if step is None else step
        self.run(self.model.log(split=split, metrics=numbers, step=step))
        self._logged(None, numbers, split, at)

    @rule(batch=groups, ticks=st.integers(0, 4))
    def cancel_log(self, batch: list[art.TrajectoryGroup], ticks: int) -> None:
        """A log call that is cancelled is done or not, never a part of it."""

        async def cancel_soon() -> None:
            task = asyncio.create_task(self.model.log(batch))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        self.run(cancel_soon())
        if len(self.rows()) > len(self.plain.rows):
            self._logged(batch, {}, "val", self.plain.step)

    @precondition(lambda self: self.trained)
    @rule()
    def log_what_the_backend_trained_on(self) -> None:
        batch, result = self.trained.pop()
        self.run(self.model.log(batch, "train", metrics=result.metrics, step=result.step))
        self._logged(batch, result.metrics, "train", result.step, result.step - 1)

    def _logged(
        self,
        batch: list[art.TrajectoryGroup] | None,
        numbers: dict[str, float],
        split: str,
        step: int,
        policy_step: int | None = None,
    ) -> None:
        self.plain.log(batch, numbers, split, step, policy_step)
        if batch:
            self.changed.add((split, step))

    # --- training and deleting ---

    @rule(
        batch=groups,
        fate=st.sampled_from(FATES),
        scales=st.booleans(),
        is_model_train=st.booleans(),
    )
    def train(
        self, batch: list[art.TrajectoryGroup], fate: str, scales: bool, is_model_train: bool
    ) -> None:
        self._train(batch, fate, scales, is_model_train)

    @rule(batches=st.lists(trainable_groups, min_size=2, max_size=6), is_model_train=st.booleans())
    def learn(self, batches: list[list[art.TrajectoryGroup]], is_model_train: bool) -> None:
        """The usual loop while nothing goes wrong, so that there are trends to follow and scores to be best by."""
        for batch in batches:
            self._train(batch, "ends", True, is_model_train)
            self.run(self.model.log(batch))
            self._logged(batch, {}, "val", self.plain.step)

    def _train(
        self, batch: list[art.TrajectoryGroup], fate: str, scales: bool, is_model_train: bool
    ) -> None:
        self.backend.fate = fate
        self._settle()
        step = self.plain.step
        multiplier = self.plain.multiplier(batch) if scales else None
        if is_model_train:
            config, options = art.TrainConfig(learning_rate=1.0), art.dev.TrainConfig()
            options["scale_learning_rate_by_reward_std_dev"] = scales
            call = self.model.train(batch, config, options)
        else:
            call = self.backend.train(
                self.model,
                batch,
                learning_rate=1.0,
                scale_learning_rate_by_reward_std_dev=scales,
            )
        try:
            result = self.run(call)
        except (BackendBrokeError, asyncio.CancelledError):
            result = None
        if is_model_train:
            self._logged(batch, {}, "train", step)
        can_fail_midway = any(map(is_trainable, batch))
        ends_early = fate == "raises first" or (fate.endswith("midway") and can_fail_midway)
        assert (result is None) == (ends_early or fate.endswith("after"))
        assert (step + 1 in self.checkpoints) or ends_early
        if ends_early or fate == "raises after":
            return
        row = self._row_of_a_train(batch, multiplier)
        self.plain.ledger.append({"step": step + 1})
        if is_model_train:
            self.plain.add_row(row, "train", step + 1)
        if result is not None:
            assert result.step == step + 1
            assert same_numbers(result.metrics, row)
            if not is_model_train:
                self.trained.append((batch, result))

    def _row_of_a_train(
        self, batch: list[art.TrajectoryGroup], multiplier: float | None
    ) -> dict[str, float]:
        trainable = sum(map(is_trainable, batch))
        row = {
            **(OF_EVENTS if trainable else {}),
            "num_groups_submitted": float(len(batch)),
            "num_groups_trainable": float(trainable),
            "learning_rate": 1.0 if multiplier is None else multiplier,
        }
        return row if multiplier is None else {**row, "learning_rate_multiplier": multiplier}

    @rule(
        metric=st.sampled_from([*["val/reward"] * 4, "train/reward", "val/unknown", None]),
        mode=st.sampled_from(["max", "min"]),
        keep_unscored=st.integers(0, 2),
        has_own_rule=st.sampled_from([False, False, False, True]),
        dry_run=st.booleans(),
    )
    def delete(
        self,
        metric: str | None,
        mode: Literal["max", "min"],
        keep_unscored: int,
        has_own_rule: bool,
        dry_run: bool,
    ) -> None:
        self._settle()
        before, latest = set(self.checkpoints), self.plain.step
        scores = {k: mean for k, (mean, _) in self.plain.by_step(metric).items()} if metric else {}
        listed = before if self.lists else {*range(latest), *(k for k in scores if k < latest)}
        existing = sorted({*listed, latest})
        result = self.run(
            self.model.delete_checkpoints(
                metric,
                mode=mode,
                keep_unscored=keep_unscored,
                dry_run=dry_run,
                retention=even_steps if has_own_rule else None,
            )
        )
        own_rule = (lambda steps: [k for k in steps if k % 2 == 0]) if has_own_rule else None
        kept = plain_books.choose(
            existing, latest, scores, metric, mode, keep_unscored, own_rule, result.best
        )
        assert result.kept == sorted(kept)
        gone = set(existing) - kept
        # Of a backend that cannot list its checkpoints it is not known which of them it had.
        assert set(result.deleted) == gone if self.lists else set(result.deleted) <= gone
        # Of a metric that no step has, nothing is asked of the backend, whatever it may have beyond the books.
        is_unknown = metric is not None and result.best is None and not has_own_rule
        assert self.checkpoints == (before if dry_run or is_unknown else before & kept)

    @rule(
        patch=st.dictionaries(
            st.sampled_from("ab"), st.integers() | st.dictionaries(st.sampled_from("cd"), st.text())
        )
    )
    def merge_state(self, patch: dict[str, Any]) -> None:
        self.model.merge_state(patch)
        for key, value in patch.items():
            old = self.plain.state.get(key)
            if isinstance(old, dict) and isinstance(value, dict):
                self.plain.state[key] = {**old, **value}
            else:
                self.plain.state[key] = copy.copy(value)
        assert self.model.read_state() == self.plain.state

    # --- comparing ---

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.root / name
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"}")]

    def rows(self) -> list[dict[str, Any]]:
        return self.lines("history.jsonl")

    @invariant()
    def rows_are_what_was_logged(self) -> None:
        rows = self.rows()
        assert len(rows) == len(self.plain.rows)
        for row, expected in zip(rows, self.plain.rows, strict=True):
            del row["recorded_at"]
            assert row.pop("step") == expected.step
            assert row.pop("policy_step", None) == expected.policy_step
            assert same_numbers(row, expected.metrics), (row, expected)

    @invariant()
    def steps_are_accounted_for(self) -> None:
        ledger = self.lines("steps.jsonl")
        for event in ledger:
            del event["time"]
            event.pop("history_offset", None)
        assert ledger == self.plain.ledger
        assert self.run(self.model.get_step()) == self.plain.step

    @invariant()
    def state_is_what_was_merged(self) -> None:
        assert (self.model.read_state() or {}) == self.plain.state

    @invariant()
    def files_hold_what_was_logged(self) -> None:
        for split, step in self.changed:
            name = split.replace("%", "%25").replace("/", "%2F")
            logs = read_logs(self.root / "trajectories" / name / f"{step:04d}.parquet")
            expected = self.plain.logs[split, step]
            assert list(logs) == list(range(len(expected)))
            for found, logged in zip(logs.values(), expected, strict=True):
                assert art.same_groups(found, logged)
        self.changed.clear()


def same_numbers(found: dict[str, float], expected: dict[str, float]) -> bool:
    return found.keys() == expected.keys() and all(
        math.isclose(found[key], expected[key], rel_tol=1e-9, abs_tol=1e-12) for key in found
    )


@pytest.mark.timeout(1800)  # at night; and a failure takes minutes to be made small
def test_the_books_agree_with_plain_ones_whatever_happens() -> None:
    """After every call, failure and restart: rows, files, steps, checkpoints, best step and learning rate."""
    chosen = settings(max_examples=examples(30), stateful_step_count=25)
    run_state_machine_as_test(Books, settings=chosen)

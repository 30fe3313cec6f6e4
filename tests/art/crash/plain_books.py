"""The books of a model in plain Python values: what the real ones must say after the same calls."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import art

TRAINING_METRICS = {"train/loss", "train/learning_rate"}


@dataclass
class PlainRow:
    """A row of the history; `counts` until its step is taken back."""

    step: int
    policy_step: int | None
    metrics: dict[str, float]
    counts: bool = True

    @property
    def credited(self) -> int:
        return self.step if self.policy_step is None else self.policy_step

    @property
    def weight(self) -> float:
        split = next(iter(self.metrics)).split("/")[0]
        return self.metrics.get(f"{split}/num_trajectories") or 1.0


@dataclass
class PlainBooks:
    """Rows, steps and logged groups of one model."""

    rows: list[PlainRow] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    logs: dict[tuple[str, int], list[list[art.TrajectoryGroup]]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> int:
        last: dict[str, Any] = self.ledger[-1] if self.ledger else {"step": 0}
        step: int = last["step"] if "step" in last else last["rewind_to"]
        return step

    # --- writing ---

    def log(
        self,
        groups: list[art.TrajectoryGroup] | None,
        metrics: dict[str, float],
        split: str,
        step: int,
        policy_step: int | None = None,
    ) -> None:
        values = aggregate(groups) if groups else {}
        if groups:
            self.logs.setdefault((split, step), []).append(groups)
        self.add_row({**values, **metrics}, split, step, policy_step)

    def add_row(
        self, values: dict[str, float], split: str, step: int, policy_step: int | None = None
    ) -> None:
        row = {f"{split}/{key}": value for key, value in values.items()}
        if not self.ledger and TRAINING_METRICS & set(row):
            # A user's row of a training metric must not be taken for a train once there is no account.
            self.ledger.append({"step": 0, "adopted": True})
        self.rows.append(PlainRow(step, policy_step, row))

    def settle(self, found: int) -> None:
        """Follow the newest checkpoint of the backend."""
        if found > self.step:
            self.ledger.append({"step": found, "adopted": True})
        elif found < self.step:
            self.ledger.append({"rewind_to": found})
            for row in self.rows:
                row.counts &= row.step <= found

    # --- asking ---

    def by_step(self, key: str) -> dict[int, tuple[float, float]]:
        """(mean, weight) of a metric at each step that is credited with it."""
        found: dict[int, list[tuple[float, float]]] = {}
        for row in self.rows:
            if row.counts and key in row.metrics:
                found.setdefault(row.credited, []).append((row.metrics[key], row.weight))
        return {step: _weighted(pairs) for step, pairs in found.items()}

    def multiplier(self, groups: list[art.TrajectoryGroup]) -> float:
        """Factor of the learning rate for a batch at the present step."""
        spreads = PlainBooks(
            [row for row in self.rows if row.metrics.get("train/num_groups_scored") != 0]
        )
        points = spreads.by_step("train/reward_std_dev")
        batch = aggregate(groups)
        if batch["num_groups_scored"]:
            own = (batch["reward_std_dev"], batch["num_trajectories"])
            points[self.step] = _weighted([points.get(self.step, (0.0, 0.0)), own])
        return _trend({step: mean for step, (mean, _) in points.items()})


def _weighted(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    total = math.fsum(weight for _, weight in pairs)
    return math.fsum(value * weight for value, weight in pairs) / total, total


def _trend(points: dict[int, float]) -> float:
    """Fitted value at the last step over that at the first, between 0.01 and 10."""
    if len(points) < 2:
        return 1.0
    slope, at_zero = statistics.linear_regression(list(points), list(points.values()))
    first, last = at_zero + slope * min(points), at_zero + slope * max(points)
    if first <= 1e-9:
        return 1.0
    return min(max(last / first, 0.01), 10.0)


def aggregate(groups: list[art.TrajectoryGroup]) -> dict[str, float]:
    """The metrics of a batch."""
    rewards = [[t.reward for t in group if math.isfinite(t.reward)] for group in groups]
    scored = [statistics.pstdev(own) for own in rewards if len(own) > 1]
    num_trajectories = sum(len(group.trajectories) for group in groups)
    num_exceptions = sum(len(group.exceptions) for group in groups)
    num_finite = sum(map(len, rewards))
    values = {
        "exception_rate": num_exceptions / max(1, num_exceptions + num_trajectories),
        "reward_std_dev": statistics.fmean(scored) if scored else 0.0,
        "num_trajectories": float(num_trajectories),
        "num_groups_scored": float(len(scored)),
    }
    if num_finite:
        values["reward"] = statistics.fmean([reward for own in rewards for reward in own])
    if num_finite < num_trajectories:
        values["num_nonfinite"] = float(num_trajectories - num_finite)
    return values


def is_trainable(group: art.TrajectoryGroup) -> bool:
    return len({t.reward for t in group if math.isfinite(t.reward)}) > 1


def choose(
    existing: list[int],
    latest: int,
    scores: dict[int, float],
    metric: str | None,
    mode: Literal["max", "min"],
    keep_unscored: int,
    retention: Callable[[list[int]], list[int]] | None,
    best: int | None,
) -> set[int]:
    """Which checkpoints stay; `best` is the chosen one, which must be among the best by the scores."""
    if retention is not None:
        return {latest, *retention(existing)}
    if metric is None:
        return {latest}
    known = {step: scores[step] for step in existing if step in scores}
    if not known:
        assert best is None
        return set(existing)
    assert best is not None
    top = max(known.values()) if mode == "max" else min(known.values())
    assert math.isclose(known[best], top, rel_tol=1e-9, abs_tol=1e-12), (best, known)
    unscored = [step for step in existing if step not in known]
    return {latest, best, *unscored[len(unscored) - min(keep_unscored, len(unscored)) :]}

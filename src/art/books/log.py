"""One model's books: what is written, in which order, and the questions that are answered from them.

Order of one `log` call: the metrics are checked, the trajectories are written, then the history row, then the
sinks hear of it. The row acknowledges the rest: whatever a row tells of is on disk.

All methods block (files, locks); the frontend calls them in a thread.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from art.books import atomic
from art.books.history import History, clean_metrics
from art.books.ledger import TRAINING_METRICS, Ledger, TrainedStep
from art.books.lock import write_lock
from art.books.metric_index import MetricIndex
from art.books.paths import ModelPaths
from art.books.plain_json import jsonable
from art.books.sinks import SinkContext, SinkDispatcher, resolve_sinks, wandb_run
from art.books.state import StateFile
from art.books.trajectory_rows import NOTHING_WRITTEN
from art.errors import InvalidTrajectoriesError
from art.rules import metrics as metric_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from art.backend import AnyModel
    from art.books.sinks import Sink
    from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 30.0


def open_books(model: AnyModel) -> Books:
    """Return the books of the directory that a model has now, with the sinks that it names."""
    paths = ModelPaths(model.base_path, model.project, model.name)
    context = SinkContext(
        project=model.project,
        name=model.name,
        directory=paths.root,
        entity=model.entity,
        config=_config_for_sinks(model.config),
    )
    return Books(paths, resolve_sinks(model.report_metrics), context)


def _config_for_sinks(config: object) -> dict[str, Any] | None:
    try:
        plain = jsonable(config)
    except ValueError:
        # A model that is never registered may have any config; its rows are logged all the same.
        return None
    return plain if isinstance(plain, dict) else None


def _aggregated(
    groups: Sequence[TrajectoryGroup],
) -> tuple[Sequence[TrajectoryGroup], dict[str, float], list[str]]:
    """Return groups and their aggregates; where one has a bad value, without it, and what was wrong."""
    try:
        return groups, metric_rules.aggregate(groups), []
    except (TypeError, OverflowError):
        from art.books.storable import storable

        kept, problems = storable(groups)
        if not problems:
            raise
        return kept, metric_rules.aggregate(kept) if kept else {}, problems


def _write_groups(
    path: Path, groups: Sequence[TrajectoryGroup], split: str, step: int
) -> tuple[Sequence[TrajectoryGroup], list[str]]:
    """Write groups; return those that were written, and what was wrong with the rest."""
    from art.books.trajectory_file import append_groups

    try:
        append_groups(path, groups, split=split, step=step)
    except InvalidTrajectoriesError:
        from art.books.storable import storable

        kept, problems = storable(groups)
        if not problems:
            raise
        if kept:
            append_groups(path, kept, split=split, step=step)
        return kept, problems
    return groups, []


class Books:
    """The books of one model directory."""

    def __init__(self, paths: ModelPaths, sinks: Sequence[Sink], context: SinkContext) -> None:
        self.paths = paths
        self.history = History(paths.history)
        self.ledger = Ledger(paths.ledger)
        self._index = MetricIndex(paths.history, self.ledger.rewinds)
        self._trained = TrainedStep(paths.history)
        self._deleted: set[int] = set()  # checkpoints that went since these books were opened
        self.sinks = SinkDispatcher(sinks, context)
        self.state = StateFile(paths.state, paths.write_lock)
        self._is_swept = False

    # --- writing ---

    def log(
        self,
        groups: Sequence[TrajectoryGroup] | None,
        metrics: Mapping[str, object] | None,
        *,
        split: str,
        step: int,
        policy_step: int | None = None,
        aggregates: Mapping[str, float] | None = None,
    ) -> None:
        """Write groups and a row of metrics of one split and step.

        Args:
            groups: Written to the trajectory file and aggregated; None for metrics alone.
            metrics: Values by plain name; they win over the aggregates.
            split: "train", "val", ...
            step: The step that the row stands for.
            policy_step: The step of the policy that produced the groups, where it is another one.
            aggregates: Those of the groups, where the caller has them already.

        Raises:
            TypeError: A metric is not a number; nothing was written.
            InvalidTrajectoriesError: Some trajectories cannot be stored; all others were written.
            LogError: A file could not be written.
        """
        problems: list[str] = []
        if groups and aggregates is None:
            groups, aggregates, problems = _aggregated(groups)
        row = clean_metrics({**(aggregates or {}), **(metrics or {})}, split)
        path = self.paths.trajectories(split, step)
        with write_lock(self.paths.write_lock):
            self._sweep_once()
            if groups:
                groups, more_problems = _write_groups(path, groups, split, step)
                if more_problems:
                    aggregates = metric_rules.aggregate(groups) if groups else {}
                    row = clean_metrics({**aggregates, **(metrics or {})}, split)
                    problems += more_problems
            if not groups and not metrics:
                raise InvalidTrajectoriesError("; ".join(problems) + NOTHING_WRITTEN)
            if self.ledger.current_step() is None and not TRAINING_METRICS.isdisjoint(row):
                # Where there is no account, the step is taken from such rows; a user's must not move it.
                self.ledger.commit(self._trained.step(), adopted=True)
            self.history.append(row, step=step, policy_step=policy_step)
        self.sinks.log(row, step)
        if problems:
            raise InvalidTrajectoriesError(
                f"left out of {path}: {'; '.join(problems)}. All other rollouts of the call were written there"
            )

    def _sweep_once(self) -> None:
        """Remove the half-written files of killed processes. Under the write lock, no other writer is at work."""
        if self._is_swept:
            return
        root = self.paths.root
        for leftover in [*root.glob(".*.json.*.tmp"), *root.glob("trajectories/*/.*.tmp")]:
            with contextlib.suppress(OSError):  # the write that follows tells what is wrong here
                leftover.unlink()
        self._is_swept = True

    def commit_train(self, step: int, metrics: Mapping[str, object] | None) -> None:
        """Record that a train call ended cleanly at `step`, and its metrics row where there is one."""
        row = clean_metrics(metrics, "train") if metrics is not None else None
        with write_lock(self.paths.write_lock):
            self.ledger.commit(step)
            self._deleted.discard(step)
            if row is not None:
                self.history.append(row, step=step)
        if row is not None:
            self.sinks.log(row, step)

    def adopt_step(self, step: int) -> None:
        """Record a step that the backend committed and the books do not know (a crash in between)."""
        with write_lock(self.paths.write_lock):
            self.ledger.commit(step, adopted=True)

    def rewind(self, step: int) -> None:
        """Record that the backend is back at an earlier step; later rows written so far no longer count."""
        with write_lock(self.paths.write_lock):
            self.ledger.rewind(step, self.history.size())

    def write_model_file(self, description: dict[str, Any]) -> None:
        """Write model.json."""
        with write_lock(self.paths.write_lock):
            atomic.write_json(self.paths.model_file, description)

    # --- asking ---

    def recorded_step(self) -> int | None:
        """Return the step of the ledger, or of the history where there is no ledger; None if neither knows one."""
        step = self.ledger.current_step()
        return step if step is not None else self._trained.step() or None

    def values_by_step(self, key: str, steps: Sequence[int] | None = None) -> dict[int, float]:
        """Return the value of a metric ("val/reward") for each of these steps, or of all, that it is credited to."""
        return self._index.means(key, steps)

    def known_keys(self) -> list[str]:
        """Return every metric key of the history, sorted."""
        return sorted(self.history.keys())

    def learning_rate_multiplier(
        self, step: int | None = None, batch: Mapping[str, float] | None = None
    ) -> float:
        """Return the factor for the learning rate from the trend of the rewards' spread.

        Rows without a group that could have a spread hold 0.0 by convention; they are no observation.

        Args:
            step: The policy step of the batch in hand.
            batch: Its aggregates, not logged yet; None if all is logged.
        """
        if step is None or not batch or batch["num_groups_scored"] == 0:
            trend = self._index.spread()
        else:
            spread, weight = batch["reward_std_dev"], batch["num_trajectories"]
            trend = self._index.spread_with(step, spread, weight)
        return trend.multiplier() if trend is not None else 1.0

    def made_checkpoints(self) -> set[int]:
        """Return the steps whose checkpoints were made, without those known to be deleted.

        Step 0 is there from register on. What another process deleted is not known to be.
        """
        return {0, *self.ledger.committed_steps()} - self._deleted

    def checkpoints_deleted(self, steps: Iterable[int]) -> None:
        """Take note that the backend has deleted these."""
        self._deleted.update(steps)

    # --- sinks ---

    def wandb_run(self) -> Any:
        """Return the wandb run that metrics go to, started if need be, or None when wandb is off."""
        return wandb_run(self.sinks)

    def close(self) -> None:
        """Flush and close the sinks within a bounded time."""
        self.sinks.close(_CLOSE_TIMEOUT_S)

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
from art.books.history import History, clean_metrics, metric_by_step
from art.books.ledger import TRAINING_METRICS, Ledger, step_without_ledger
from art.books.lock import write_lock
from art.books.paths import ModelPaths
from art.books.plain_json import jsonable
from art.books.sinks import SinkContext, SinkDispatcher, WandbSink, resolve_sinks
from art.books.state import StateFile
from art.rules import metrics as metric_rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from art.backend import AnyModel
    from art.books.sinks import Sink
    from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

_STD_DEV = "train/reward_std_dev"
_SCORED = "train/num_groups_scored"

_WANDB_START_S = 35.0
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
    except (
        ValueError
    ):  # a model that is never registered may have any config; its rows are logged all the same
        return None
    return plain if isinstance(plain, dict) else None


class Books:
    """The books of one model directory."""

    def __init__(self, paths: ModelPaths, sinks: Sequence[Sink], context: SinkContext) -> None:
        self.paths = paths
        self.history = History(paths.history)
        self.ledger = Ledger(paths.ledger)
        self._sinks = list(sinks)
        self.sinks = SinkDispatcher(self._sinks, context)
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
    ) -> None:
        """Write groups and a row of metrics of one split and step.

        Args:
            groups: Written to the trajectory file and aggregated; None for metrics alone.
            metrics: Values by plain name; they win over the aggregates.
            split: "train", "val", ...
            step: The step that the row stands for.
            policy_step: The step of the policy that produced the groups, where it is another one.

        Raises:
            TypeError: A metric is not a number; nothing was written.
            InvalidTrajectoriesError: The groups cannot be stored; nothing was written.
            LogError: A file could not be written.
        """
        values: dict[str, object] = dict(metric_rules.aggregate(groups)) if groups else {}
        values.update(metrics or {})
        row = clean_metrics(values, split)
        with write_lock(self.paths.write_lock):
            self._sweep_once()
            if groups:
                from art.books.trajectory_file import append_groups

                append_groups(self.paths.trajectories(split, step), groups, split=split, step=step)
            if self.ledger.current_step() is None and not TRAINING_METRICS.isdisjoint(row):
                # Where there is no account, the step is taken from such rows; a user's must not move it.
                self.ledger.commit(step_without_ledger(self.history.rows()), adopted=True)
            self.history.append(row, step=step, policy_step=policy_step)
        self.sinks.log(row, step)

    def _sweep_once(self) -> None:
        """Remove the half-written files of killed processes. Under the write lock, no other writer is at work."""
        if self._is_swept:
            return
        root = self.paths.root
        for leftover in [*root.glob(".state.json.*.tmp"), *root.glob("trajectories/*/.*.tmp")]:
            with contextlib.suppress(OSError):  # the write that follows tells what is wrong here
                leftover.unlink()
        self._is_swept = True

    def commit_train(self, step: int, metrics: Mapping[str, object] | None) -> None:
        """Record that a train call ended cleanly at `step`, and its metrics row where there is one."""
        row = clean_metrics(metrics, "train") if metrics is not None else None
        with write_lock(self.paths.write_lock):
            self.ledger.commit(step)
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
        atomic.write_json(self.paths.model_file, description)

    # --- asking ---

    def recorded_step(self) -> int | None:
        """Return the step of the ledger, or of the history where there is no ledger; None if neither knows one."""
        step = self.ledger.current_step()
        if step is None:
            step = step_without_ledger(self.history.rows()) or None
        return step

    def values_by_step(self, key: str) -> dict[int, float]:
        """Return the value of a metric ("val/reward") for each step that it is credited to."""
        by_step = metric_by_step(self.history.rows(), key, self.ledger.rewinds())
        return {step: mean for step, (mean, _) in by_step.items()}

    def known_keys(self) -> list[str]:
        """Return every metric key of the history, sorted."""
        return sorted({key for row in self.history.rows() for key in row.metrics})

    def reward_std_devs(self) -> dict[int, tuple[float, float]]:
        """Return (mean, weight) of `train/reward_std_dev` for each policy step that has one.

        Rows without a group that could have a spread hold 0.0 by convention; they are no observation.
        """
        rows = [row for row in self.history.rows() if row.metrics.get(_SCORED) != 0]
        return metric_by_step(rows, _STD_DEV, self.ledger.rewinds())

    # --- sinks ---

    def wandb_run(self) -> Any:
        """Return the wandb run that metrics go to, started if need be, or None when wandb is off."""
        for sink in self._sinks:
            if isinstance(sink, WandbSink):
                self.sinks.open(_WANDB_START_S)
                return sink.run
        return None

    def close(self) -> None:
        """Flush and close the sinks within a bounded time."""
        self.sinks.close(_CLOSE_TIMEOUT_S)

"""One script of calls, played on the adapter and on `art.testing.InMemoryBackend`: the books must be the same.

The batches are sampled once. What may differ is taken out before anything is compared: times, and the metrics that
a backend yielded itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import art
from art.testing import InMemoryBackend
from art_conformance import rollouts
from art_conformance.adapter import Probe
from art_conformance.failure import CheckFailed, SetupError, Unobservable
from art_conformance.instruments.faults import Injected, after_the_first_event, failure_of
from art_conformance.instruments.snapshot import books_of, changes
from art_conformance.instruments.streams import interfering
from art_conformance.recorder import recording
from art_conformance.run import Run

if TYPE_CHECKING:
    from art_conformance.adapter import AnyModel
    from art_conformance.recorder import RecordedTrain
    from art_conformance.stage import Stage

SENT = "a script of trains, logs and a deletion, as on art.testing.InMemoryBackend"
LEARNING_RATE = 1e-4
SCALED: Any = {"scale_learning_rate_by_reward_std_dev": True}

_FRONTEND_METRICS = frozenset(
    {"num_groups_submitted", "num_groups_trainable", "learning_rate", "learning_rate_multiplier"}
)


@dataclass
class Play:
    """What one playing of the script left behind.

    Attributes:
        trains: What passed at each train call.
        results: What the calls returned, or raised.
        calls_of_logs: The backend's methods that were called while `log` ran.
        changed_by_register: The files of the books that registration added or changed.
        trajectories: The contents of every trajectory file.
        rows: The rows of history.jsonl.
        ledger: The lines of steps.jsonl.
        sink: What the metric sink was told.
        documents: model.json without the backend's name, and state.json.
        files: Names of all files of the books.
    """

    trains: list[RecordedTrain] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    calls_of_logs: list[str] = field(default_factory=list)
    changed_by_register: list[str] = field(default_factory=list)
    trajectories: dict[str, bytes] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    sink: list[dict[str, Any]] = field(default_factory=list)
    documents: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    @property
    def own_metrics(self) -> set[str]:
        """The names of the metrics that the backend yielded."""
        events = [event for train in self.trains for event in train.copies if event is not None]
        return {str(name) for event in events for name in event} - _FRONTEND_METRICS


def without_own(rows: list[dict[str, Any]], *plays: Play) -> list[dict[str, Any]]:
    """Return rows without times and without what the backends of some plays yielded themselves."""
    own = set().union(*(play.own_metrics for play in plays))

    def is_own(row: dict[str, Any], key: str) -> bool:
        # Elsewhere the same name is the frontend's, or the user's.
        is_training = not {"train/num_groups_submitted", "num_groups_submitted"}.isdisjoint(row)
        return is_training and key.removeprefix("train/") in own

    return [
        {k: v for k, v in row.items() if k not in {"recorded_at", "time"} and not is_own(row, k)}
        for row in rows
    ]


def numbered(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return rows by number, so that a row too many is told as such."""
    return {f"row {i:02}": row for i, row in enumerate(rows)}


@dataclass(frozen=True)
class Plays:
    """The script on the adapter, and on the reference."""

    adapter: Play
    reference: Play


_played: WeakKeyDictionary[Stage, Plays | Exception] = WeakKeyDictionary()


async def plays(stage: Stage) -> Plays:
    """Return both plays. They are made once for a stage; where that failed, every check is told the same."""
    if stage not in _played:
        # What stays if this call is given up.
        _played[stage] = CheckFailed(
            "it did not end in time", expected="the script's end", sent=SENT
        )
        try:
            batch = await (await stage.run()).groups()
            model = stage.model()
            reference = stage.model(model.name, books="reference")
            _played[stage] = Plays(
                adapter=await Script(stage, model, stage.backend, batch).play(),
                reference=await Script(stage, reference, InMemoryBackend(), batch).play(),
            )
        except Exception as error:  # noqa: BLE001 - raised below, now and for every later check
            _played[stage] = error
    played = _played[stage]
    if isinstance(played, Exception):
        raise played
    return played


class Script:
    """The calls, on one backend.

    Args:
        stage: Where it takes place.
        model: A model that is not registered yet and has no books.
        backend: What it is registered with.
        batch: Groups that can be trained; they are copied for each use.
    """

    def __init__(
        self, stage: Stage, model: AnyModel, backend: Any, batch: list[art.TrajectoryGroup]
    ) -> None:
        sink: Any = (model.report_metrics or [None])[0]
        self.run = Run(stage, model, backend, recording(backend), sink, Probe(backend))
        self.model = model
        self._batch = batch
        self._record = Play(trains=self.run.recorder.trains)
        self._at = ""

    async def play(self) -> Play:
        """Play it, and return what it left behind.

        Raises:
            CheckFailed: A call did not do what it should; the message tells which.
        """
        try:
            await self._calls()
            await self.model.close()
            self._read()
        except (CheckFailed, SetupError, Unobservable):
            raise
        except Exception as error:
            raise CheckFailed(
                f"{type(error).__name__}: {error}",
                expected=f"that it runs through: {self._at}",
                sent=SENT,
            ) from error
        finally:
            await self.model.close()
        return self._record

    async def _calls(self) -> None:
        await self._log("val", metrics={"reward": 0.25}, at="log before register")
        await self._register()
        await self._log("test", at="log before the first train")
        await self._train(self._groups(), at="train with scaling of the learning rate", **SCALED)
        await self._log("val", metrics={"reward": 0.75, "note": 3}, at="log with metrics")
        await self._train(self._groups(spread=2.0), at="train on a wider spread", **SCALED)
        await self._train(self._groups(spread=0.0), at="train on a batch without a signal")
        self.model.overwrite_state({"offset": 7})
        await self._log("odd", rollouts.odd(), at="log odd groups")
        await self._train_by_the_backend()
        await self._delete()
        # The last train: a backend that has committed by then may be asked for its step by the next one.
        await self._break()
        self.model.merge_state({"more": {"nested": [1, None]}})
        await self._log("val", metrics={"reward": 0.5}, at="log after a train that broke")

    # --- its calls

    def _groups(self, spread: float = 1.0) -> list[art.TrajectoryGroup]:
        groups = [group.model_copy(deep=True) for group in self._batch]
        for trajectory in (t for group in groups for t in group.trajectories):
            trajectory.reward *= spread
        return groups

    async def _register(self) -> None:
        self._at = "register"
        before = books_of(self.run.directory)
        await self.model.register(self.run.recorder)
        self._record.changed_by_register = changes(before, books_of(self.run.directory))

    async def _log(
        self,
        split: str,
        groups: list[art.TrajectoryGroup] | None = None,
        *,
        at: str,
        metrics: dict[str, Any] | None = None,
    ) -> None:
        self._at = at
        num_calls = len(self.run.recorder.calls)
        await self.model.log(groups or self._groups(), split=split, metrics=metrics)
        self._record.calls_of_logs += self.run.recorder.calls[num_calls:]

    async def _train(self, groups: list[art.TrajectoryGroup], *, at: str, **options: Any) -> None:
        self._at = at
        self._returned(await self.run.train(groups, LEARNING_RATE, **options))

    async def _train_by_the_backend(self) -> None:
        self._at = "art.backend_train, and a log of its groups"
        groups = self._groups()
        result = await art.backend_train(self.model, groups, learning_rate=LEARNING_RATE)
        self._returned(result)
        await self.model.log(groups, split="train", metrics=result.metrics, step=result.step)

    async def _delete(self) -> None:
        self._at = "delete_checkpoints(dry_run=True)"
        result = await self.model.delete_checkpoints("val/reward", dry_run=True)
        self._record.results.append({"best": result.best, "kept": sorted(result.kept)})

    async def _break(self) -> None:
        self._at = "train on a stream that breaks after its first event"
        with interfering(self.run, after_the_first_event):
            error = await failure_of(self.run.train(self._groups(), LEARNING_RATE))
        if error is not None and not isinstance(error, Injected):
            raise error
        self._record.results.append({"raised": type(error).__name__})

    def _returned(self, result: art.TrainResult) -> None:
        self._record.results.append({"step": result.step, **result.metrics})

    # --- what it left

    def _read(self) -> None:
        record, directory = self._record, self.run.directory
        record.files = sorted(books_of(directory))
        record.trajectories = {
            name: (directory / name).read_bytes()
            for name in record.files
            if name.startswith("trajectories/")
        }
        record.rows = self.run.rows()
        lines = (directory / "steps.jsonl").read_text().splitlines()
        record.ledger = [json.loads(line) for line in lines]
        record.sink = [{**metrics, "step": step} for metrics, step in self.run.sink.rows]
        for name in ("model.json", "state.json"):
            record.documents[name] = json.loads((directory / name).read_text())
        del record.documents["model.json"]["backend"]

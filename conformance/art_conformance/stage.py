"""What a check has in hand: the adapter's backend, models registered with it, and batches that it can train.

A backend may need many seconds to start. So the backend, and one model that is registered with it, are shared by
all checks, which therefore reckon from the step that they find. A check that fails, or that leaves the backend
in a state that no other should see, ends their life: the next one gets new ones, in new directories.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import itertools
import logging
import random
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import art
from art.adapter_kit.advantages import is_trainable
from art.backend import Capabilities
from art_conformance import rollouts
from art_conformance.adapter import Probe
from art_conformance.failure import SetupError
from art_conformance.recorder import recording, two_methods_of
from art_conformance.run import RecordingSink, Run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from art_conformance.adapter import Adapter, AnyModel
    from art_conformance.profile import Profile

T = TypeVar("T")

_CLOSE_S = 30.0


class Stage:
    """Where checks take place.

    Args:
        adapter: What is checked.
        directory: An empty directory for everything that is written.
        profile: How much is tried.
        seed: Everything that is chosen at random is chosen by it.
        target: What `load_adapter` makes the same adapter of in another process, where that is known.

    Attributes:
        logged: The log records of the present check, of all loggers.
    """

    def __init__(
        self,
        adapter: Adapter,
        directory: Path,
        *,
        profile: Profile,
        seed: int = 0,
        target: str | None = None,
    ) -> None:
        self.adapter, self.profile, self.seed, self.target = adapter, profile, seed, target
        self.logged: list[logging.LogRecord] = []
        self._directory = directory
        self._generations = itertools.count()
        self._names = itertools.count()
        self._backend: Any = None
        self._run: Run | None = None
        self._runs: list[Run] = []
        self._sampled: list[art.TrajectoryGroup] | None = None
        self._new_generation()

    def _new_generation(self) -> None:
        self.workspace = self._directory / str(next(self._generations))
        self.workspace.mkdir(parents=True)

    def warnings(self) -> list[str]:
        """Return what the frontend has warned of during the present check."""
        return [
            record.getMessage()
            for record in self.logged
            if record.levelno >= logging.WARNING and record.name.startswith("art.")
        ]

    # --- backends

    def new_backend(self, state: str = "state") -> Any:
        """Return a new backend with a state of its own, by a name for it. The check closes it."""
        return self.adapter.new_backend(self.workspace / state)

    @property
    def backend(self) -> Any:
        """The backend that checks share."""
        if self._backend is None:
            self._backend = self.new_backend()
        return self._backend

    async def restart(self) -> Any:
        """Put in the shared backend's place one as a new process would build it, and return it.

        Earlier runs end with it.
        """
        old, self._backend, self._run = self.backend, None, None
        await self._close_runs()
        await close_backend(old)
        self._backend = self.adapter.restarted(old, self.workspace / "state")
        return self._backend

    async def renew(self) -> None:
        """Forget the shared backend and all it knew: the next check begins on empty directories."""
        backend, self._backend, self._run = self._backend, None, None
        try:
            await self._close_runs()
        finally:
            if backend is not None:
                await close_backend(backend)
            self._new_generation()

    def abandon(self) -> None:
        """Forget everything at once, without closing what may hang."""
        self._backend, self._run, self._runs = None, None, []
        self._new_generation()

    async def _close_runs(self) -> None:
        runs, self._runs = self._runs, []
        for run in runs:
            await run.model.close()

    # --- models

    async def run(self) -> Run:
        """Return the run that checks share: its model has been trained by earlier checks, or not.

        An earlier check may have broken a train behind its commit. So the books are brought to the backend's
        step first, as they are before every train.
        """
        if self._run is None:
            self._run = await self.new_run()
        else:
            await self._run.settle()
        return self._run

    def model(
        self, name: str | None = None, *, project: str = "conformance", books: str = "books"
    ) -> AnyModel:
        """Return a model that is not registered yet; with a name that none had before, where none is given."""
        return art.TrainableModel(
            name=name or f"agent-{next(self._names)}",
            project=project,
            base_model=self.adapter.base_model,
            base_path=str(self.workspace / books),
            report_metrics=[RecordingSink()],
        )

    async def new_run(
        self,
        name: str | None = None,
        *,
        project: str = "conformance",
        backend: Any = None,
        only_two_methods: bool = False,
    ) -> Run:
        """Register a model and return its run.

        Args:
            name: The model's name; one that none had before, where none is given.
            project: The model's project.
            backend: Another backend than the shared one.
            only_two_methods: Hide all that the backend can do beyond the two methods.
        """
        backend = self.backend if backend is None else backend
        model, recorder = self.model(name, project=project), recording(backend)
        registered = two_methods_of(recorder) if only_two_methods else recorder
        await model.register(registered)
        sink: Any = (model.report_metrics or [None])[0]
        probe = self._probe_of(backend)
        run = Run(self, model, backend, recorder, sink, probe)
        self._runs.append(run)
        return run

    def _probe_of(self, backend: Any) -> Probe:
        try:
            return (self.adapter.probe or Probe)(backend)
        except Exception as error:
            raise SetupError(f"the probe raised {type(error).__name__}: {error}") from error

    # --- rollouts

    async def groups(self, model: AnyModel) -> list[art.TrajectoryGroup]:
        """Return a batch that the adapter can train, sampled once and copied at every call.

        Raises:
            SetupError: `make_groups` fails, or returns nothing that can be trained.
        """
        if self._sampled is None:
            self._sampled = await self._sample(model)
        return copy.deepcopy(self._sampled)

    async def _sample(self, model: AnyModel) -> list[art.TrajectoryGroup]:
        if self.adapter.make_groups is None:
            return rollouts.made_up(random.Random(self.seed))
        try:
            made: Any = self.adapter.make_groups(model)
            groups = list(await made if inspect.isawaitable(made) else made)
        except Exception as error:
            raise SetupError(f"make_groups raised {type(error).__name__}: {error}") from error
        if not any(map(is_trainable, groups)):
            raise SetupError(
                "make_groups returned no group that can be trained: at least two different rewards are needed"
            )
        return groups


def once_a_stage(look: Callable[[Stage], Awaitable[T]]) -> Callable[[Stage], Awaitable[T]]:
    """Let checks share what was seen: a real backend may need long for it. A failure is not kept."""
    seen: WeakKeyDictionary[Stage, T] = WeakKeyDictionary()

    async def shared(stage: Stage) -> T:
        if stage not in seen:
            seen[stage] = await look(stage)
        return seen[stage]

    return shared


async def close_backend(backend: Any) -> None:
    """Close a backend that can be closed, within a bounded time."""
    close = Capabilities.of(backend).close
    if close is not None:
        async with asyncio.timeout(_CLOSE_S):
            await close.close()

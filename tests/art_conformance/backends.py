"""Backends that tests name by `tests.art_conformance.backends:...`."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from art_conformance import Adapter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class TwoMethods:
    """The least that a backend can be: checkpoints are numbers in a dict."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str], set[int]] = {}

    async def _train_model(
        self,
        model: Any,
        trajectory_groups: Any,
        config: Any,
        dev_config: Any,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        if any(len({t.reward for t in group.trajectories}) > 1 for group in trajectory_groups):
            yield {"loss": 0.1}
        self._of(model).add(config.target_step)

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        if not steps_to_keep:
            raise ValueError("steps_to_keep is empty")
        self._of(model).intersection_update(steps_to_keep)

    def _of(self, model: Any) -> set[int]:
        return self._steps.setdefault((model.project, model.name), {0})


class Lists(TwoMethods):
    """Can list its checkpoints, too."""

    async def _list_checkpoint_steps(self, model: Any) -> list[int]:
        return sorted(self._of(model))


class NeedsAKey(TwoMethods):
    """Cannot be made without a key."""

    def __init__(self) -> None:
        raise ValueError("set TOY_API_KEY")


undeclared = Adapter(TwoMethods)
not_an_adapter = 7


class HangsInAThread(TwoMethods):
    """Waits in a thread for what never comes, which no cancellation ends."""

    async def _train_model(
        self,
        model: Any,
        trajectory_groups: Any,
        config: Any,
        dev_config: Any,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        await asyncio.to_thread(threading.Event().wait)
        yield {"loss": 0.1}


hangs = Adapter(HangsInAThread, timeout_s=0.5)

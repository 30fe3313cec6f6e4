"""Mutants of the shape: objects that the frontend cannot call as it does, or that do more than they should."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from typing import TYPE_CHECKING, Any

from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@mutant(killed_by=("SHAPE-01",))
class DeletesSynchronously(ReferenceBackend):
    """Deletion is a plain function, not a coroutine function."""

    def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:  # type: ignore[override]
        """Do nothing."""


@mutant(killed_by=("SHAPE-01", "SHAPE-02"))
class TrainsInACoroutine(ReferenceBackend):
    """Training is a coroutine that returns its events when all is done."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> list[dict[str, float]]:  # type: ignore[override]
        return [event async for event in super()._train_model(*args, **kwargs)]


@mutant(killed_by=("SHAPE-02",))
class ReturnsAList(ReferenceBackend):
    """Training says that it returns an async iterator, and returns a list."""

    def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        del args, kwargs
        return [{"loss": 0.5}]  # type: ignore[return-value]


@mutant(killed_by=("SHAPE-03",))
class NamesItsOwnParameters(ReferenceBackend):
    """The groups have another name than in the protocol."""

    def _train_model(
        self, model: Any, groups: Any, config: Any, dev_config: Any, verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        return super()._train_model(model, groups, config, dev_config, verbose)


@mutant(killed_by=("SHAPE-03",))
class TakesVerboseByNameOnly(ReferenceBackend):
    """One parameter is keyword-only, though the frontend gives all by position."""

    def _train_model(  # type: ignore[override]
        self,
        model: Any,
        trajectory_groups: Any,
        config: Any,
        dev_config: Any,
        *,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        return super()._train_model(model, trajectory_groups, config, dev_config, verbose)


@mutant(killed_by=("SHAPE-04",))
class ReturnsWhatIsLeft(ReferenceBackend):
    """Deletion returns the steps that are left."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> list[int]:  # type: ignore[override]
        await super()._delete_checkpoint_files(model, steps_to_keep)
        return await self._list_checkpoint_steps(model)


@mutant(killed_by=("SHAPE-05",))
class ConnectsWhenMade(ReferenceBackend):
    """The constructor calls its service."""

    def __init__(self) -> None:
        super().__init__()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", 9), timeout=1.0).close()


@mutant(killed_by=("SHAPE-05",))
class StartsAProcessWhenMade(ReferenceBackend):
    """The constructor starts its worker."""

    def __init__(self) -> None:
        super().__init__()
        with contextlib.suppress(OSError):
            subprocess.run(["true"], check=False)  # noqa: S607 - whatever is called so


@mutant(killed_by=("SHAPE-06",))
class ReliesOnBeingAsked(ReferenceBackend):
    """Training goes on from the step that `_get_step` was asked for just before."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[str, int] = {}

    async def _get_step(self, model: Any) -> int:
        self._asked[model.name] = await super()._get_step(model)
        return self._asked[model.name]

    async def _train_model(
        self, model: Any, trajectory_groups: Any, config: Any, *rest: Any
    ) -> AsyncIterator[dict[str, float]]:
        target = self._asked.pop(model.name) + 1
        config = config.model_copy(update={"target_step": target})
        async for event in super()._train_model(model, trajectory_groups, config, *rest):
            yield event


@mutant(killed_by=("SHAPE-07",))
class ForgetsFineTuning(ReferenceBackend):
    """An optional capability is neither implemented nor declined."""

    _train_sft = None  # type: ignore[assignment]


@mutant(killed_by=("SHAPE-07",), declines={"listing": "not implemented"})
class DeclinesWhatItHas(ReferenceBackend):
    """An optional capability is declined, though it is implemented."""


@mutant(killed_by=("SHAPE-08",))
class TellsItsStepAtOnce(ReferenceBackend):
    """`_get_step` is a plain function."""

    def _get_step(self, model: Any) -> int:  # type: ignore[override]
        del model
        return 0


@mutant(killed_by=("SHAPE-08",))
class NamesInACoroutine(ReferenceBackend):
    """`_model_inference_name` is a coroutine function."""

    async def _model_inference_name(self, model: Any, step: int | None = None) -> str:  # type: ignore[override]
        return super()._model_inference_name(model, step)


@mutant(killed_by=("SHAPE-08",))
class FineTunesInACoroutine(ReferenceBackend):
    """`_train_sft` is a coroutine that returns its events when all is done."""

    async def _train_sft(self, *args: Any, **kwargs: Any) -> list[dict[str, float]]:  # type: ignore[override]
        return [event async for event in super()._train_sft(*args, **kwargs)]

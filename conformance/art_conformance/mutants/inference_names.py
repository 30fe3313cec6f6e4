"""Mutants of the names: endpoints where a name leads to the wrong weights, or where it should not lead at all."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import httpx

from art.adapter_kit.served_names import Served, ServedNames
from art_conformance.mutants import mutant
from art_conformance.mutants.answer_editor import answering, serving
from art_conformance.reference import ReferenceBackend
from art_conformance.reference.endpoint import Endpoint, NumberEngine

if TYPE_CHECKING:
    from pathlib import Path

    from art.backend import AnyModel, AnyTrainableModel


# --- which weights a name means


class _BaseForTheRest(ServedNames):
    def resolve(self, name: str) -> Served:
        return super().resolve(name) or self.base


@mutant(killed_by=("INF-07", "INF-10"))
class AnswersWithTheBaseModel(ReferenceBackend):
    """Unknown names, and deleted steps, are answered by the base model."""

    endpoint_class = serving(names_class=_BaseForTheRest)


class _LatestForTheRest(ServedNames):
    def resolve(self, name: str) -> Served | None:
        is_step = self.step_of(name) is not None
        return super().resolve(name) or (super().resolve(self.model_name) if is_step else None)


@mutant(killed_by=("INF-07", "INF-10"))
class AnswersWithTheLatest(ReferenceBackend):
    """Unknown and deleted steps are answered by the latest."""

    endpoint_class = serving(names_class=_LatestForTheRest)


class _FirstIsLatest(ServedNames):
    def publish(self, name: str, adapter: str, *, latest: bool) -> Served | None:
        is_first = self.resolve(self.model_name) is None
        return super().publish(name, adapter, latest=latest and is_first)


@mutant(killed_by=("INF-04",))
class LatestStaysTheFirst(ReferenceBackend):
    """After a train the bare name goes on meaning the checkpoint that it meant before."""

    endpoint_class = serving(names_class=_FirstIsLatest)


@mutant(killed_by=("INF-04",))
class NeverPublishes(ReferenceBackend):
    """A new checkpoint is served after a restart only."""

    async def _publish(self, model: AnyModel, step: int) -> None:
        pass


@mutant(killed_by=("INF-03",))
class ServesNoStep0(ReferenceBackend):
    """Before its first train a model is not served at all."""

    async def _start(self, model: AnyTrainableModel) -> Endpoint:
        endpoint = await super()._start(model)
        await endpoint.withdraw(0)
        return endpoint


@mutant(killed_by=("INF-05",))
class NamesAreNotPinned(ReferenceBackend):
    """The name of every step is the bare name."""

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        del step
        return model.name


@mutant(killed_by=("INF-09",))
class ServesTheLatestOnly(ReferenceBackend):
    """A new checkpoint takes the place of the one before."""

    async def _publish(self, model: AnyModel, step: int) -> None:
        await super()._publish(model, step)
        await self._withdraw(model, step - 1)


# --- how a name is read


class _PlainNumbers(ServedNames):
    def step_of(self, name: str) -> int | None:
        step = super().step_of(name)
        return step if name == f"{self.model_name}@{step}" else None


@mutant(killed_by=("INF-06",))
class RefusesPadding(ReferenceBackend):
    """A step with leading zeros is unknown."""

    endpoint_class = serving(names_class=_PlainNumbers)


class _KindlyRead(ServedNames):
    def step_of(self, name: str) -> int | None:
        prefix, _, digits = name.rpartition("@")
        try:
            return int(digits) if prefix == self.model_name else None
        except ValueError:
            return None


@mutant(killed_by=("INF-07",))
class ReadsOddNumbers(ReferenceBackend):
    """Whatever Python's `int` takes for a number is the step of a name."""

    endpoint_class = serving(names_class=_KindlyRead)


class _CaseFolding(ServedNames):
    def resolve(self, name: str) -> Served | None:
        return super().resolve(name.casefold())


@mutant(killed_by=("INF-07",))
class AnswersInAnyCase(ReferenceBackend):
    """Capitals and small letters of a name are the same."""

    endpoint_class = serving(names_class=_CaseFolding)


# --- the base model


class _NoBase(ServedNames):
    def resolve(self, name: str) -> Served | None:
        served = super().resolve(name)
        return None if served is self.base else served


@mutant(killed_by=("INF-08",))
class ServesNoBaseModel(ReferenceBackend):
    """The base model is unknown to the endpoint."""

    endpoint_class = serving(names_class=_NoBase)


def _stamp_the_base(choice: dict[str, Any]) -> None:
    if choice["checkpoint_step"] is None:
        choice["checkpoint_step"] = 0


@mutant(killed_by=("INF-08",))
class BaseModelIsStep0(ReferenceBackend):
    """The base model's answers are stamped as those of step 0."""

    endpoint_class = answering(choice=_stamp_the_base)


# --- deletion


@mutant(killed_by=("INF-10",))
class KeepsServingTheDeleted(ReferenceBackend):
    """The files of a deleted checkpoint are gone, but it is served on from memory."""

    async def _withdraw(self, model: AnyModel, step: int) -> None:
        pass


@mutant(killed_by=("INF-10",))
class WithdrawsLater(ReferenceBackend):
    """A deleted checkpoint is unknown only a while after the deletion."""

    async def _withdraw(self, model: AnyModel, step: int) -> None:
        async def later() -> None:
            await asyncio.sleep(0.5)
            with contextlib.suppress(httpx.HTTPError):  # the endpoint may be closed by now
                await ReferenceBackend._withdraw(self, model, step)

        self._later = asyncio.create_task(later())


class _ListsAll(ServedNames):
    def __init__(self, model_name: str, base_model_name: str) -> None:
        super().__init__(model_name, base_model_name)
        self._ever: list[tuple[str, Served]] = []

    def retire(self, name: str) -> Served | None:
        served = super().retire(name)
        self._ever += [] if served is None else [(served.name, served)]
        return served

    def listing(self) -> list[tuple[str, Served]]:
        return [*super().listing(), *self._ever]


@mutant(killed_by=("INF-10",))
class ListsTheDeleted(ReferenceBackend):
    """Deleted checkpoints stay in the list of models."""

    endpoint_class = serving(names_class=_ListsAll)


# --- several models


class _AnyModel(ServedNames):
    def resolve(self, name: str) -> Served | None:
        if name == self.base.name:
            return self.base
        _, at, step = name.partition("@")
        return super().resolve(f"{self.model_name}{at}{step}")


@mutant(killed_by=("INF-20",))
class AnswersForOtherModels(ReferenceBackend):
    """Of a name only the step is looked at: any model's name is answered."""

    endpoint_class = serving(names_class=_AnyModel)


@mutant(killed_by=("INF-26",))
class ServesByNameAlone(ReferenceBackend):
    """Two models of one name share an endpoint, whatever their projects are."""

    async def _start(self, model: AnyTrainableModel) -> Endpoint:
        for (_, name), endpoint in self._endpoints.items():
            if name == model.name:
                return endpoint
        return await super()._start(model)


# --- the weights behind the name


class _NeverReads(NumberEngine):
    async def load_adapter(self, adapter: str, path: str) -> None:
        loaded = list(self._weights.values())
        await super().load_adapter(adapter, path)
        if loaded:
            self._weights[adapter] = loaded[0]


@mutant(killed_by=("INF-24",))
class ServesStaleWeights(ReferenceBackend):
    """The new name is stamped on the answers of the weights that were loaded first."""

    endpoint_class = serving(engine_class=_NeverReads)


class _PublishesOnce(Endpoint):
    def __init__(self, model_name: str, base_model: str) -> None:
        super().__init__(model_name, base_model)
        self._published: set[int] = set()

    async def publish(self, step: int, path: Path) -> None:
        if step not in self._published:
            self._published.add(step)
            await super().publish(step, path)


@mutant(killed_by=("INF-25",))
class DoesNotLoadAgain(ReferenceBackend):
    """A checkpoint that is replaced is not loaded again, since its name is served already."""

    endpoint_class = _PublishesOnce

"""Mutants of the endpoint: where it is, who may ask, and what goes on beside a train or a deletion."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from art.errors import InferenceError
from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend, checkpoints
from art_conformance.reference.endpoint import Endpoint, NumberEngine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    import art
    from art.adapter_kit.engine_protocol import GenerateRequest, TokenEvent
    from art.adapter_kit.gateway import Gateway
    from art.backend import AnyModel, AnyTrainableModel


# --- where it is, and who may ask


@mutant(killed_by=("INF-01",))
class ForgetsTheV1(ReferenceBackend):
    """The address is the server's, without the path of the API."""

    async def _prepare_backend_for_training(
        self, model: AnyTrainableModel, config: art.dev.OpenAIServerConfig | None
    ) -> tuple[str, str]:
        base_url, api_key = await super()._prepare_backend_for_training(model, config)
        return base_url.removesuffix("/v1"), api_key


class _Open(Endpoint):
    """Takes a key for the right one, if `is_enough` says so."""

    def is_enough(self, shown: str) -> bool:
        del shown
        return True

    def _front(self, gateway: Gateway) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            headers = dict(scope["headers"])
            shown = headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
            if self.is_enough(shown):
                headers[b"authorization"] = f"Bearer {self.api_key}".encode()
            await gateway.app({**scope, "headers": list(headers.items())}, receive, send)

        return app


@mutant(killed_by=("INF-02",))
class NeedsNoKey(ReferenceBackend):
    """Whoever knows the address may ask."""

    endpoint_class = _Open


class _Prefix(_Open):
    def is_enough(self, shown: str) -> bool:
        return shown.startswith(self.api_key)


@mutant(killed_by=("INF-02",))
class ComparesTheKeysBeginning(ReferenceBackend):
    """A key that only begins with the right one is taken for it."""

    endpoint_class = _Prefix


@mutant(killed_by=("INF-17",))
class StartsAnotherServer(ReferenceBackend):
    """Asked for the endpoint again it starts another one, that knows the latest checkpoint only."""

    async def _prepare_backend_for_training(
        self, model: AnyTrainableModel, config: art.dev.OpenAIServerConfig | None
    ) -> tuple[str, str]:
        await self.close()
        address = await super()._prepare_backend_for_training(model, config)
        for step in (await self._list_checkpoint_steps(model))[:-1]:
            await self._withdraw(model, step)
        return address


@mutant(killed_by=("INF-18",))
class AlwaysReportsAFailure(ReferenceBackend):
    """The health of the endpoint is the end of its log, whether something failed or not."""

    def _inference_failure(self, model: AnyModel) -> str | None:
        del model
        return "the log ends with: Uvicorn running"


@mutant(killed_by=("INF-21",))
class RestartsWithTheLatestOnly(ReferenceBackend):
    """A start publishes the latest checkpoint, and none of the earlier ones."""

    async def _start(self, model: AnyTrainableModel) -> Endpoint:
        endpoint = await super()._start(model)
        for step in (await self._list_checkpoint_steps(model))[:-1]:
            await endpoint.withdraw(step)
        return endpoint


# --- several requests


class _OneAtATime(Endpoint):
    def _front(self, gateway: Gateway) -> ASGIApp:
        in_flight = 0

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal in_flight
            if in_flight:
                refusal = JSONResponse({"error": {"message": "busy"}}, status_code=429)
                return await refusal(scope, receive, send)
            in_flight += 1
            try:
                await asyncio.sleep(0.02)
                await gateway.app(scope, receive, send)
            finally:
                in_flight -= 1

        return app


@mutant(killed_by=("INF-13",))
class RefusesASecondRequest(ReferenceBackend):
    """While a request is answered others are refused as too many."""

    endpoint_class = _OneAtATime


class _NoDrain(Endpoint):
    """Unloads at once, under requests that take their time."""

    def __init__(self, model_name: str, base_model: str) -> None:
        super().__init__(model_name, base_model, drain_s=0.0)


class _Slow(NumberEngine):
    """Takes a while for each token, and does `when_unloaded` where its weights are gone meanwhile."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        async for event in super().generate(request):
            yield event
            await asyncio.sleep(0.02)
            if request.adapter is not None and request.adapter not in self._weights:
                await self.when_unloaded()
                return

    async def when_unloaded(self) -> None:
        """Break off."""


class _Stuck(_Slow):
    async def when_unloaded(self) -> None:
        await asyncio.Event().wait()


class _NoDrainBreaksOff(_NoDrain):
    engine_class = _Slow


class _NoDrainGetsStuck(_NoDrain):
    engine_class = _Stuck


@mutant(killed_by=("INF-14",))
class BreaksOffAtADeletion(ReferenceBackend):
    """A deletion ends the answers in flight in the middle, as if they were whole."""

    endpoint_class = _NoDrainBreaksOff


@mutant(killed_by=("INF-14",), timeout_s=2.0)
class HangsAtADeletion(ReferenceBackend):
    """Requests in flight on a checkpoint that is deleted are never answered."""

    endpoint_class = _NoDrainGetsStuck


class _UnloadsAll(_Slow):
    async def unload_adapter(self, adapter: str) -> None:
        del adapter
        self._weights.clear()

    async def when_unloaded(self) -> None:
        raise InferenceError("the adapter is unloaded")


class _NoDrainUnloadsAll(_NoDrain):
    engine_class = _UnloadsAll


@mutant(killed_by=("INF-14",))
class DisturbsOthersAtADeletion(ReferenceBackend):
    """To be rid of one checkpoint the engine drops all of them."""

    endpoint_class = _NoDrainUnloadsAll


# --- beside a train


class _MayBeBusy(Endpoint):
    is_busy = False

    def _front(self, gateway: Gateway) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            refusal = JSONResponse({"error": {"message": "training"}}, status_code=503)
            is_refused = self.is_busy and "chat" in scope["path"]
            await (refusal if is_refused else gateway.app)(scope, receive, send)

        return app


@mutant(killed_by=("INF-15",))
class RefusesWhileItTrains(ReferenceBackend):
    """During a train the engine sleeps, and requests are refused."""

    endpoint_class = _MayBeBusy

    async def _train_model(self, model: AnyTrainableModel, *args: Any) -> AsyncIterator[Any]:
        endpoint: Any = self._endpoints[model.project, model.name]
        endpoint.is_busy = True
        try:
            await asyncio.sleep(0.1)
            async for event in super()._train_model(model, *args):
                yield event
        finally:
            endpoint.is_busy = False


class _Early(ReferenceBackend):
    async def _publish_early(self, model: AnyModel, step: int) -> None:
        """Serve a step that is not there yet, by the weights of the one before."""
        endpoint = self._endpoints[model.project, model.name]
        await endpoint.publish(step, checkpoints.step_dir(self._directory(model), step - 1))


@mutant(killed_by=("INF-16", "INF-23"))
class PublishesTooEarly(_Early):
    """The new name is served from the first event on, before there is a checkpoint."""

    async def _train_model(
        self, model: AnyTrainableModel, groups: Any, config: art.TrainConfig, *args: Any
    ) -> AsyncIterator[Any]:
        await self._publish_early(model, self._target_step(config))
        async for event in super()._train_model(model, groups, config, *args):
            yield event


@mutant(killed_by=("INF-23",))
class PublishesWhatFailed(_Early):
    """The new name is served after a train that failed, too."""

    async def _train_model(
        self, model: AnyTrainableModel, groups: Any, config: art.TrainConfig, *args: Any
    ) -> AsyncIterator[Any]:
        try:
            async for event in super()._train_model(model, groups, config, *args):
                yield event
        except Exception:
            await self._publish_early(model, self._target_step(config))
            raise

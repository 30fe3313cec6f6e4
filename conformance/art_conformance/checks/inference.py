"""INF, continued: an endpoint that answers those who may ask."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from art_conformance.check import FRONTEND_AT_FAULT, GUARDS_THE_FRONTEND, check
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.endpoint_client import (
    endpoint_of,
    expect_refused,
    expect_step,
    latest_name,
)
from art_conformance.recorder import recording, two_methods_of
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from art_conformance.stage import Stage

_INFERENCE = ("inference",)


@check(
    "INF-01",
    clause="names",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="the address lacks its /v1, or is given before something listens there",
)
async def register_brings_an_endpoint(stage: Stage) -> None:
    """`register` sets the model's base_url and api_key, and `GET {base_url}/models` answers."""
    model = (await stage.run()).model
    for field in ("inference_base_url", "inference_api_key"):
        value = getattr(model, field)
        is_set = isinstance(value, str) and bool(value)
        expected = f"{field}: some text"
        expect(is_set, got=f"{type(value).__name__}", expected=expected, sent="register(backend)")
    async with endpoint_of(await stage.run()) as endpoint:
        await endpoint.listed()


@check(
    "INF-02",
    clause="names",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="the engine was started without a key, or compares only a part of it",
)
async def the_key_is_needed(stage: Stage) -> None:
    """A request without the key, or with a wrong one, gets a 401 or 403, and no text."""
    run = await stage.run()
    key = run.model.inference_api_key or ""
    for shown, in_words in (
        ("", "no key"),
        ("wrong", "a wrong key"),
        (f"{key}x", "the key and a letter more"),
    ):
        async with endpoint_of(run, api_key=shown) as endpoint:
            answer = await endpoint.ask(latest_name(run), f"the latest name, with {in_words}")
            expect_refused(answer, (401, 403))


@check(
    "INF-13",
    clause="names",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="requests that come at once are refused or lost, where they should queue",
)
async def requests_at_once_are_answered(stage: Stage) -> None:
    """Eight requests at once are all answered."""
    run = await stage.run()
    step = await run.step()
    name = run.model.get_inference_name(step)
    async with endpoint_of(run) as endpoint:
        answers = await asyncio.gather(
            *(endpoint.ask(name, "name@N, one of eight at once") for _ in range(8))
        )
    for answer in answers:
        expect_step(answer, step, of=step)


@check(
    "INF-17",
    clause="names",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="a second call starts another server, which knows the latest checkpoint only",
)
async def an_endpoint_can_be_asked_for_again(stage: Stage) -> None:
    """`_prepare_backend_for_training` can be called again: what it returns answers, with the same steps."""
    run = await stage.run()
    first = await run.step()
    await run.train()
    address = await run.backend._prepare_backend_for_training(run.model, None)
    sent = "after a second _prepare_backend_for_training"
    async with endpoint_of(run, address=address) as endpoint:
        for step, in_words in ((first, "N"), (first + 1, "N+1")):
            name = run.model.get_inference_name(step)
            expect_step(await endpoint.ask(name, f"name@{in_words}, {sent}"), step, of=first)
        latest = await endpoint.ask(latest_name(run), f"the latest name, {sent}")
        expect_step(latest, first + 1, of=first)
    run.model.inference_base_url, run.model.inference_api_key = address


@check(
    "INF-18",
    clause="names",
    level=Level.INFERENCE,
    needs=("inference", "inference_health"),
    cause="it tells the last failure there was, or the end of a log that has no failure in it",
)
async def a_healthy_endpoint_has_no_failure(stage: Stage) -> None:
    """`_inference_failure` is None while the endpoint answers."""
    run = await stage.run()
    async with endpoint_of(run) as endpoint:
        answer = await endpoint.ask(latest_name(run), "the latest name")
    failure = run.backend._inference_failure(run.model)
    expect_step(answer, await run.step())
    sent = f"_inference_failure(model), after {answer.sent} was answered"
    expect(failure is None, got="a failure", expected="None", sent=sent)


@check(
    "INF-21",
    clause="T4",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    renews=True,
    cause="what is served is kept in memory only, or a start loads the latest checkpoint alone",
)
async def a_restart_serves_all_steps(stage: Stage) -> None:
    """After a restart the latest and the earlier steps are served again."""
    before = await stage.run()
    first = await before.step()
    await before.train()
    await stage.restart()
    run = await stage.new_run(before.model.name)
    async with endpoint_of(run) as endpoint:
        for step, in_words in ((first, "N"), (first + 1, "N+1")):
            name = run.model.get_inference_name(step)
            sent = f"name@{in_words}, after a restart"
            expect_step(await endpoint.ask(name, sent), step, of=first)
        latest = await endpoint.ask(latest_name(run), "the latest name, after a restart")
        expect_step(latest, first + 1, of=first)


@check(
    "INF-27",
    clause="names",
    cause=FRONTEND_AT_FAULT,
    redundant=GUARDS_THE_FRONTEND,
)
async def an_own_endpoint_is_left_alone(stage: Stage) -> None:
    """Where a backend serves nothing, the user's own endpoint stays on the model as it was."""
    model = stage.model()
    own = ("http://127.0.0.1:1/v1", "own-key", "own-name")
    model.inference_base_url, model.inference_api_key, model.inference_model_name = own
    await model.register(two_methods_of(recording(stage.backend)))
    kept = (model.inference_base_url, model.inference_api_key, model.inference_model_name)
    await model.close()
    expect_equal(kept, own, sent="register with the two methods alone; address, key, name")
    name = model.get_inference_name()
    expect_equal(name, "own-name", sent="get_inference_name(), with a name of the user's own")

"""INF: an endpoint that serves every checkpoint under its name, with all that training needs."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from art_conformance.check import check
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.endpoint_client import MAX_TOKENS, endpoint_of, latest_name
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from art_conformance.instruments.endpoint_client import EndpointClient
    from art_conformance.stage import Stage

_INFERENCE = ("inference",)
_SENT = "a chat completion that asks for nothing but the text"
# Of a probability that is rounded to more than 1.
_ROUNDING = 1e-6
# So low that only the likeliest token is left, however flat the distribution.
_GREEDY_TOP_P = 1e-6


@check(
    "INF-11",
    clause="choice",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="the engine's extras are dropped on the way, or come only where they are asked for",
)
async def a_choice_carries_what_training_needs(stage: Stage) -> None:
    """A choice carries prompt_token_ids, token_ids, logprobs, checkpoint_step and temperature, without being asked.

    `logprobs` has OpenAI's shape: one entry for each of `token_ids`, each a finite `logprob` of at most 0.
    """
    run = await stage.run()
    async with endpoint_of(run) as endpoint:
        choice = (await endpoint.ask(latest_name(run), "the latest name")).choice
    for field in ("prompt_token_ids", "token_ids"):
        is_right = _are_token_ids(choice.get(field))
        expect(is_right, got=_kind(choice, field), expected=f"{field}: ids, some", sent=_SENT)
    logprobs = _logprobs(choice)
    expected = "logprobs.content: an entry with a logprob for each token"
    expect(logprobs is not None, got=_kind(choice, "logprobs"), expected=expected, sent=_SENT)
    assert logprobs is not None
    expect_equal(len(logprobs), len(choice["token_ids"]), sent=f"{_SENT}; entries of logprobs")
    wrong = [value for value in logprobs if not (math.isfinite(value) and value <= _ROUNDING)]
    expected = "log-probabilities: finite, at most 0"
    expect(
        not wrong,
        got=f"{len(wrong)} of {len(logprobs)} that are not",
        expected=expected,
        sent=_SENT,
    )
    step, temperature = choice.get("checkpoint_step"), choice.get("temperature")
    is_right = type(step) is int
    expect(
        is_right,
        got=_kind(choice, "checkpoint_step"),
        expected="checkpoint_step: an int",
        sent=_SENT,
    )
    is_right = type(temperature) in {int, float}
    expect(is_right, got=_kind(choice, "temperature"), expected="temperature: a number", sent=_SENT)


def _are_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(i) is int and i >= 0 for i in value)


def _kind(choice: dict[str, Any], field: str) -> str:
    value = choice.get(field)
    if value is None:
        return f"{field}: none"
    return f"{field}: {type(value).__name__}{', empty' if value in ([], {}) else ''}"


def _logprobs(choice: dict[str, Any]) -> list[float] | None:
    """The log-probability of each token; None where the shape is not OpenAI's."""
    content = (choice.get("logprobs") or {}).get("content")
    if not isinstance(content, list):
        return None
    values: list[Any] = [entry.get("logprob") for entry in content if isinstance(entry, dict)]
    if len(values) < len(content) or not all(type(value) in {int, float} for value in values):
        return None
    return values


@check(
    "INF-12",
    clause="choice",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="the choice is stamped with the engine's own temperature, not with the request's",
)
async def a_choice_tells_its_temperature(stage: Stage) -> None:
    """A choice's `temperature` is the one that was asked for."""
    run = await stage.run()
    async with endpoint_of(run) as endpoint:
        for asked in (0.25, 0.75):
            sent = f"the latest name at temperature {asked}"
            answer = await endpoint.ask(latest_name(run), sent, temperature=asked)
            expect_equal(answer.choice.get("temperature"), asked, sent=answer.sent)


@check(
    "INF-22",
    clause="choice",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="log-probabilities are the raw model's (vLLM's default), or are taken after top_p",
)
async def logprobs_are_of_the_sampled_distribution(stage: Stage) -> None:
    """Log-probabilities are those of logits / temperature, before top_p.

    So the likeliest token has a lower one at a high temperature than at a low one, and not 0 where a low
    top_p leaves no other.
    """
    run = await stage.run()
    fell = []
    async with endpoint_of(run) as endpoint:
        for prompt in ("Say a.", "Hello", "1 2 3"):
            cool = await _likeliest(endpoint, latest_name(run), prompt, temperature=0.5)
            warm = await _likeliest(endpoint, latest_name(run), prompt, temperature=2.0)
            # A token that is certain at any temperature tells nothing.
            fell += [warm < cool] if warm < -_ROUNDING else []
    expect(
        fell and all(fell),
        got="the same, or 0",
        expected="a lower logprob at temperature 2 than at 0.5, both before top_p",
        sent=f"chat completions at either temperature, with top_p={_GREEDY_TOP_P:g}",
    )


async def _likeliest(
    endpoint: EndpointClient, name: str, prompt: str, *, temperature: float
) -> float:
    """Return the log-probability of the first token, which is the likeliest one."""
    answer = await endpoint.ask(
        name,
        f"the latest name at temperature {temperature}",
        messages=[{"role": "user", "content": prompt}],
        temperature=temperature,
        top_p=_GREEDY_TOP_P,
    )
    logprobs = _logprobs(answer.choice)
    expect(logprobs, got=_kind(answer.choice, "logprobs"), expected="logprobs", sent=answer.sent)
    assert logprobs
    return logprobs[0]


@check(
    "INF-19",
    clause="choice",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="chunks are cut or repeated, or the last one brings no finish_reason",
)
async def a_stream_brings_the_same(stage: Stage) -> None:
    """A streamed answer is the same as a whole one, by `model.openai_client()`, and ends properly."""
    run = await stage.run()
    name = run.model.get_inference_name()
    whole: tuple[str, ...] = ()
    streamed: tuple[str, ...] = ("nothing",)
    for _ in range(3):  # engines that compute in batches do not always decide alike
        whole = await _whole(run.model.openai_client(), name)
        streamed = await _streamed(run.model.openai_client(), name)
        if whole == streamed:
            break
    sent = "the same chat completion twice, greedily: whole, and streamed"
    expect_equal(streamed, whole, sent=f"{sent}; (role, text, finish_reason)")
    async with endpoint_of(run) as endpoint:
        raw = await endpoint.stream(name, "get_inference_name()", asyncio.Event())
    expected = "chunks, the last one with a finish_reason, then data: [DONE]"
    expect(raw.is_finished, got="no such end", expected=expected, sent=raw.sent)


async def _whole(client: AsyncOpenAI, name: str) -> tuple[str, ...]:
    completion = await client.chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": "Say a."}],
        max_tokens=MAX_TOKENS,
        temperature=0,
    )
    choice = completion.choices[0]
    return choice.message.role, choice.message.content or "", choice.finish_reason


async def _streamed(client: AsyncOpenAI, name: str) -> tuple[str, ...]:
    role, text, finish_reason = "", "", ""
    stream = await client.chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": "Say a."}],
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=True,
    )
    async for chunk in stream:
        for choice in chunk.choices:
            role = role or choice.delta.role or ""
            text += choice.delta.content or ""
            finish_reason = choice.finish_reason or finish_reason
    return role, text, finish_reason

"""Mutants of the choice: answers that lack what training needs, or tell it wrongly."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from art_conformance.mutants import mutant
from art_conformance.mutants.answer_editor import answering, serving
from art_conformance.reference import ReferenceBackend
from art_conformance.reference.endpoint import NumberEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from art.adapter_kit.engine_protocol import GenerateRequest


def _without(field: str) -> Callable[[dict[str, Any]], None]:
    def drop(choice: dict[str, Any]) -> None:
        choice.pop(field)

    return drop


@mutant(killed_by=("INF-11",))
class DropsPromptTokenIds(ReferenceBackend):
    """A choice does not tell the prompt's tokens."""

    endpoint_class = answering(choice=_without("prompt_token_ids"))


@mutant(killed_by=("INF-11",))
class DropsTokenIds(ReferenceBackend):
    """A choice does not tell its tokens."""

    endpoint_class = answering(choice=_without("token_ids"))


@mutant(killed_by=("INF-11",))
class DropsLogprobs(ReferenceBackend):
    """A choice has no log-probabilities unless they are asked for."""

    endpoint_class = answering(choice=_without("logprobs"))


@mutant(killed_by=("INF-11",))
class DropsTheTemperature(ReferenceBackend):
    """A choice does not tell its temperature."""

    endpoint_class = answering(choice=_without("temperature"))


@mutant(killed_by=("INF-11",))
class DropsTheStep(ReferenceBackend):
    """A choice does not tell which checkpoint it comes from."""

    endpoint_class = answering(choice=_without("checkpoint_step"))


def _one_logprob_less(choice: dict[str, Any]) -> None:
    choice["logprobs"]["content"].pop()


@mutant(killed_by=("INF-11",))
class ForgetsTheLastLogprob(ReferenceBackend):
    """The last token, which ends the text, has no log-probability."""

    endpoint_class = answering(choice=_one_logprob_less)


def _probabilities(choice: dict[str, Any]) -> None:
    for entry in choice["logprobs"]["content"]:
        entry["logprob"] = math.exp(entry["logprob"])


@mutant(killed_by=("INF-11",))
class GivesProbabilities(ReferenceBackend):
    """Probabilities are given for log-probabilities."""

    endpoint_class = answering(choice=_probabilities)


def _always_1(choice: dict[str, Any]) -> None:
    choice["temperature"] = 1.0


@mutant(killed_by=("INF-12",))
class TemperatureIsAlways1(ReferenceBackend):
    """A choice tells the default temperature, whatever was asked for."""

    endpoint_class = answering(choice=_always_1)


def _step_before(choice: dict[str, Any]) -> None:
    if choice["checkpoint_step"]:
        choice["checkpoint_step"] -= 1


@mutant(killed_by=("INF-04", "INF-05", "INF-09"))
class TellsTheStepBefore(ReferenceBackend):
    """A choice tells the step that the train of its weights began from."""

    endpoint_class = answering(choice=_step_before)


class _RawLogprobs(NumberEngine):
    def _logprob(self, weight: float | None, request: GenerateRequest) -> float:
        return super()._logprob(weight, dataclasses.replace(request, temperature=1.0))


@mutant(killed_by=("INF-22",))
class GivesRawLogprobs(ReferenceBackend):
    """Log-probabilities are those at temperature 1, whatever was asked for."""

    endpoint_class = serving(engine_class=_RawLogprobs)


class _AfterTopP(NumberEngine):
    def _logprob(self, weight: float | None, request: GenerateRequest) -> float:
        return 0.0 if request.top_p < 0.5 else super()._logprob(weight, request)


@mutant(killed_by=("INF-22",))
class TakesLogprobsAfterTopP(ReferenceBackend):
    """Log-probabilities are those among the tokens that top_p leaves."""

    endpoint_class = serving(engine_class=_AfterTopP)


# --- streams


def _never_done(event: bytes) -> bytes:
    return b"" if event.startswith(b"data: [DONE]") else event


@mutant(killed_by=("INF-19",))
class StreamsWithoutAnEnd(ReferenceBackend):
    """A stream is not ended by `[DONE]`."""

    endpoint_class = answering(event=_never_done)


def _twice(event: bytes) -> bytes:
    return 2 * event if b'"content":"e"' in event else event


@mutant(killed_by=("INF-19",))
class StreamsAChunkTwice(ReferenceBackend):
    """A chunk of a stream comes twice."""

    endpoint_class = answering(event=_twice)


def _no_reason(event: bytes) -> bytes:
    return event.replace(b'"finish_reason":"length"', b'"finish_reason":null')


@mutant(killed_by=("INF-19",))
class StreamsWithoutAReason(ReferenceBackend):
    """No chunk of a stream tells why it ended."""

    endpoint_class = answering(event=_no_reason)

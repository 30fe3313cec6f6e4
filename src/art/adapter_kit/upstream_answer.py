"""Turns the answers of an OpenAI-compatible server into those that training needs. Pure.

The server was asked for `return_token_ids` and `logprobs`. It gives the prompt's tokens once, beside the choices;
here each choice gets them, and with them the step that answered and the temperature. A choice that lacks tokens or
log-probabilities is refused: it could not be trained on, and nobody would notice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.adapter_kit.api_error import ApiError

if TYPE_CHECKING:
    from art.adapter_kit.served_names import Served

# What vLLM writes for a log-probability that it does not have, in nats.
_NO_LOGPROB = -9999.0


def rewrite_completion(answer: object, served: Served, temperature: float) -> dict[str, Any]:
    """Stamp a whole answer.

    Args:
        answer: The server's answer, parsed; it is changed.
        served: The weights that answered.
        temperature: That was asked for.

    Raises:
        ApiError: 502 when a choice lacks what training needs, 503 when it was broken off.
    """
    if not isinstance(answer, dict) or not answer.get("choices"):
        raise _untrainable("choices")
    prompt = _prompt(answer.pop("prompt_token_ids", None))
    for choice in answer["choices"]:
        _check_tokens(choice)
        choice["prompt_token_ids"] = prompt
        choice["checkpoint_step"] = served.step
        choice["temperature"] = temperature
    answer["model"] = served.name
    return answer


@dataclass
class ChunkRewriter:
    """Stamps the chunks of one streamed answer.

    Put together they hold what the whole answer holds: `prompt_token_ids` come in the first chunk of each choice,
    `token_ids` and `logprobs` with the text, `checkpoint_step` and `temperature` in the last.

    Attributes:
        served: The weights that answer.
        temperature: That was asked for.
    """

    served: Served
    temperature: float
    _prompt: list[int] | None = None
    _open: set[int] = field(default_factory=set)
    _ended: set[int] = field(default_factory=set)

    def rewrite(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Stamp a chunk, which is changed; ApiError 502 when it lacks what training needs."""
        given = chunk.pop("prompt_token_ids", None)
        self._prompt = given or self._prompt  # a server may send it once for all choices
        for choice in chunk.get("choices", ()):
            self._rewrite_choice(choice)
        chunk["model"] = self.served.name
        return chunk

    def _rewrite_choice(self, choice: dict[str, Any]) -> None:
        index = choice["index"]
        if index not in self._open:
            self._open.add(index)
            choice["prompt_token_ids"] = _prompt(self._prompt)
        is_last = choice.get("finish_reason") is not None
        has_tokens = choice.get("token_ids") is not None or choice.get("logprobs") is not None
        if has_tokens or is_last:
            _check_tokens(choice)
        if is_last:
            self._ended.add(index)
            choice["checkpoint_step"] = self.served.step
            choice["temperature"] = self.temperature

    @property
    def is_complete(self) -> bool:
        """Whether there was a choice, and each one came to its end."""
        return bool(self._open) and self._open == self._ended


def _prompt(token_ids: object) -> list[int]:
    if not isinstance(token_ids, list) or not token_ids:
        raise _untrainable("prompt_token_ids")
    return token_ids


def _check_tokens(choice: dict[str, Any]) -> None:
    if choice.get("finish_reason") == "abort":
        # What is cut off by the server is no sample of the policy.
        message = "The inference engine broke off this answer, as it was put to sleep; ask again."
        raise ApiError(503, message, code="aborted")
    token_ids = choice.get("token_ids")
    if not isinstance(token_ids, list):
        raise _untrainable("token_ids")
    entries = (choice.get("logprobs") or {}).get("content")
    if not isinstance(entries, list) or len(entries) != len(token_ids):
        raise _untrainable("logprobs of every token")
    if not all(_is_logprob(entry.get("logprob")) for entry in entries):
        raise _untrainable("logprobs of every token")


def _is_logprob(value: object) -> bool:
    return isinstance(value, (int, float)) and value > _NO_LOGPROB


def _untrainable(missing: str) -> ApiError:
    message = (
        f"The inference engine's answer lacks {missing}, so it could not be trained on. The engine must answer "
        "`return_token_ids` and `logprobs` as vLLM does; options that hide a part of the output, such as "
        "`include_reasoning`, take them away."
    )
    return ApiError(502, message, code="untrainable_answer")

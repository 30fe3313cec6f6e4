"""The requests of the engine, as its thread sees them: a generation, and one row for each completion."""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING, Literal

from art.adapter_kit.engine_protocol import TokenEvent
from art.adapter_kit.text_stream import TextStream
from art.errors import InferenceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art.adapter_kit.engine_protocol import GenerateRequest
    from art_local.vocabulary import Vocabulary


class Generation:
    """One request, and the way its events take from the engine's thread to the caller's loop.

    Args:
        request: What is asked.
        vocabulary: Bytes of the tokens.
        end_ids: Tokens that end a completion.

    Attributes:
        rows: One for each completion.
        cancelled: Set by the caller's side; its rows leave at the next step.
    """

    def __init__(
        self, request: GenerateRequest, vocabulary: Vocabulary, end_ids: frozenset[int]
    ) -> None:
        self.request = request
        self.cancelled = False
        self.rows = [Row(self, index, vocabulary, end_ids) for index in range(request.n)]
        self._unfinished = request.n
        self._pending: list[TokenEvent] = []
        self._loop = asyncio.get_running_loop()
        self._batches: asyncio.Queue[list[TokenEvent] | InferenceError] = asyncio.Queue()

    async def next_events(self) -> list[TokenEvent]:
        """Wait for the next events. Called on the caller's loop.

        Raises:
            InferenceError: The generation failed.
        """
        events = await self._batches.get()
        if isinstance(events, InferenceError):
            raise events
        return events

    def add(self, event: TokenEvent) -> None:
        """Take an event of one of the rows."""
        self._pending.append(event)
        self._unfinished -= event.finish_reason is not None

    def flush(self) -> None:
        """Hand events over after a step. Callers that do not stream are woken once, at the end."""
        if self._pending and (self.request.stream or self._unfinished == 0):
            self._send(self._pending)
            self._pending = []

    def fail(self, message: str) -> None:
        """End the generation with an error."""
        self.cancelled = True
        self._send(InferenceError(message))

    def _send(self, events: list[TokenEvent] | InferenceError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._batches.put_nowait, events)
        except RuntimeError:  # the caller's loop is closed: nobody waits any more
            self.cancelled = True


class Row:
    """One completion in the making.

    Attributes:
        generation: The request it belongs to.
        last_token: The newest token.
        finished: Whether it has ended.
    """

    def __init__(
        self, generation: Generation, index: int, vocabulary: Vocabulary, end_ids: frozenset[int]
    ) -> None:
        request = generation.request
        self.generation = generation
        self.last_token = -1
        self.finished = False
        self._index = index
        self._vocabulary = vocabulary
        self._end_ids = end_ids
        self._text = TextStream(request.stop)
        self._left = request.max_tokens
        # A string seed is hashed whole, so neighbouring seeds and choices share no numbers.
        self._random = random.Random(None if request.seed is None else f"{request.seed}/{index}")  # noqa: S311 - sampling, no secret

    @property
    def request(self) -> GenerateRequest:
        """What is asked."""
        return self.generation.request

    def uniform(self) -> float:
        """The random number of this row's next draw, in [0, 1)."""
        return self._random.random()

    def accept(self, token_id: int, logprob: float, top: Sequence[tuple[int, float]]) -> None:
        """Take the token that was sampled, and report it.

        Raises:
            InferenceError: The log-probability is not finite.
        """
        if not math.isfinite(logprob):
            raise InferenceError(
                "the model's logits are not finite; the checkpoint has probably diverged"
            )
        self.last_token = token_id
        self._left -= 1
        special = token_id in self._vocabulary.special_ids or token_id in self._end_ids
        text, stopped = self._text.add(b"" if special else self._vocabulary.token_bytes(token_id))
        ended = token_id in self._end_ids
        self.finished = stopped or ended or self._left == 0
        reason: Literal["stop", "length"] | None = None
        if self.finished:
            reason = "stop" if stopped or ended else "length"
            text += "" if stopped else self._text.finish()
        self.generation.add(
            TokenEvent(
                index=self._index,
                token_id=token_id,
                logprob=logprob,
                text=text,
                top_logprobs=tuple(top),
                finish_reason=reason,
            )
        )

"""Chat completions and their chunks, in OpenAI's shape, with what training needs on every choice.

Each choice carries `prompt_token_ids`, `token_ids`, `logprobs`, `checkpoint_step` and `temperature` without
being asked: a rollout whose tokens are lost cannot be trained on.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.adapter_kit.tool_calls import ToolCallStream, split_tool_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from art.adapter_kit.chat_request import ChatRequest
    from art.adapter_kit.engine_protocol import GenerateRequest, TokenEvent
    from art.adapter_kit.served_names import Served


@dataclass
class Reply:
    """Builds the answer to one request.

    Attributes:
        chat: What the user asked.
        request: What the engine was asked.
        served: The weights that answer.
        token_bytes: The engine's table of token bytes.
    """

    chat: ChatRequest
    request: GenerateRequest
    served: Served
    token_bytes: Callable[[int], bytes]
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def provenance(self) -> dict[str, Any]:
        """Which weights answered, and how their logits were scaled."""
        return {"checkpoint_step": self.served.step, "temperature": self.request.temperature}

    def completion(self, events: Iterable[TokenEvent]) -> dict[str, Any]:
        """The whole answer, from every event of every choice."""
        by_index: list[list[TokenEvent]] = [[] for _ in range(self.request.n)]
        for event in events:
            by_index[event.index].append(event)
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(index, own) for index, own in enumerate(by_index)],
            "usage": self.usage(sum(map(len, by_index))),
        }

    def _choice(self, index: int, events: list[TokenEvent]) -> dict[str, Any]:
        content = "".join(event.text for event in events)
        finish_reason: str | None = events[-1].finish_reason
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        calls: list[dict[str, Any]] = []
        if self.chat.template_tools is not None:
            message["content"], calls = split_tool_calls(content)
        if calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = calls
            finish_reason = "tool_calls"
        return {
            "index": index,
            "message": message,
            "finish_reason": finish_reason,
            "logprobs": self.logprobs(events),
            "prompt_token_ids": list(self.request.prompt_token_ids),
            "token_ids": [event.token_id for event in events],
            **self.provenance,
        }

    def stream(self) -> list[ChoiceStream]:
        """One builder of chunks for each choice."""
        return [ChoiceStream(self, index) for index in range(self.request.n)]

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A chunk of a streamed answer."""
        return {**self._head("chat.completion.chunk"), "choices": choices, **more}

    def usage(self, completion_tokens: int) -> dict[str, int]:
        """The token counts."""
        prompt_tokens = len(self.request.prompt_token_ids)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}

    def logprobs(self, events: list[TokenEvent]) -> dict[str, Any]:
        """Tokens with their log-probabilities, in OpenAI's shape."""
        return {"content": [self._token_entry(event) for event in events], "refusal": None}

    def _token_entry(self, event: TokenEvent) -> dict[str, Any]:
        top = [self._token(token_id, logprob) for token_id, logprob in event.top_logprobs]
        return {**self._token(event.token_id, event.logprob), "top_logprobs": top}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self.token_bytes(token_id)
        as_id = self.chat.return_tokens_as_token_ids
        token = f"token_id:{token_id}" if as_id else data.decode("utf-8", errors="replace")
        return {"token": token, "logprob": logprob, "bytes": list(data)}


class ChoiceStream:
    """Builds the chunks of one choice of a streamed answer: one per token, and one before the first.

    Together they hold what the whole choice holds: `prompt_token_ids` come in the first, `token_ids` and
    `logprobs` with each token, `finish_reason`, `checkpoint_step` and `temperature` in the last.
    """

    def __init__(self, reply: Reply, index: int) -> None:
        self._reply = reply
        self._index = index
        self._tools = ToolCallStream() if reply.chat.template_tools is not None else None

    def first(self) -> dict[str, Any]:
        """The chunk that opens the choice."""
        prompt = list(self._reply.request.prompt_token_ids)
        delta = {"role": "assistant", "content": ""}
        return self._chunk(delta, finish_reason=None, logprobs=None, prompt_token_ids=prompt)

    def next(self, event: TokenEvent) -> dict[str, Any]:
        """The chunk of one token."""
        text = event.text if self._tools is None else self._tools.add(event.text)
        calls: list[dict[str, Any]] = []
        if self._tools is not None and event.finish_reason is not None:
            rest, calls = self._tools.finish()
            text += rest
        delta: dict[str, Any] = {"content": text} if text else {}
        if calls:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        last = {} if event.finish_reason is None else self._reply.provenance
        return self._chunk(
            delta,
            finish_reason="tool_calls" if calls else event.finish_reason,
            logprobs=self._reply.logprobs([event]),
            token_ids=[event.token_id],
            **last,
        )

    def _chunk(self, delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return self._reply.chunk([{"index": self._index, "delta": delta, **fields}])

"""A chat engine made of a token engine: checks the request, renders it, and words the answer."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from art.adapter_kit.api_error import ApiError
from art.adapter_kit.chat_request import ChatRequest, parse_chat_request, template_messages
from art.adapter_kit.chat_response import Reply
from art.adapter_kit.engine_protocol import GenerateRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from art.adapter_kit.engine_protocol import Engine
    from art.adapter_kit.served_names import Served


class EngineChat:
    """Answers chats with a token engine.

    Args:
        engine: What generates.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # One thread: tokenizers are not made for several at once.
        self._renderer = ThreadPoolExecutor(1, "render")

    @property
    def failure(self) -> str | None:
        """Why the engine can answer nothing any more, or None while it works."""
        return self._engine.failure

    async def prepare(self, body: dict[str, Any]) -> _EngineReply:
        """Check and render a request; ApiError 400 where it cannot be served as asked."""
        chat = parse_chat_request(body)
        prompt = await self._render(chat)
        return _EngineReply(self._engine, chat, self._generate_request(chat, prompt))

    async def load_adapter(self, adapter: str, path: str) -> None:
        """Make an adapter directory known under a new id."""
        await self._engine.load_adapter(adapter, path)

    async def unload_adapter(self, adapter: str) -> None:
        """Forget an adapter; requests still running on it fail."""
        await self._engine.unload_adapter(adapter)

    async def sleep(self) -> None:
        """Nothing to do: an idle token engine takes no memory that training would miss."""

    async def wake(self) -> None:
        """Nothing to do."""

    async def _render(self, chat: ChatRequest) -> list[int]:
        """The prompt's tokens. A long one takes a while, in which other requests go on."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._renderer,
                self._engine.render,
                template_messages(chat.messages),
                chat.template_tools,
                chat.chat_template_kwargs or {},
            )
        except ValueError as error:
            raise ApiError(
                400, f"The chat template refuses the messages: {error}", param="messages"
            ) from error

    def _generate_request(self, chat: ChatRequest, prompt: list[int]) -> GenerateRequest:
        room = self._engine.max_context - len(prompt)
        if room < 1:
            message = (
                f"The prompt has {len(prompt)} tokens; this model's context of {self._engine.max_context} tokens "
                "leaves no room for a completion. Shorten the messages."
            )
            raise ApiError(400, message, param="messages", code="context_length_exceeded")
        wanted = chat.max_completion_tokens or chat.max_tokens or room
        return GenerateRequest(
            prompt_token_ids=tuple(prompt),
            adapter=None,  # the weights that answer are known only when they are asked
            max_tokens=min(wanted, room),
            n=chat.n or 1,
            temperature=1.0 if chat.temperature is None else chat.temperature,
            top_p=1.0 if chat.top_p is None else chat.top_p,
            stop=chat.stop_strings,
            seed=chat.seed,
            top_logprobs=chat.top_logprobs or 0,
            stream=bool(chat.stream),
        )


@dataclass(frozen=True)
class _EngineReply:
    """A rendered request, ready for the weights that answer it."""

    engine: Engine
    chat: ChatRequest
    request: GenerateRequest

    @property
    def is_streamed(self) -> bool:
        return self.request.stream

    async def completion(self, served: Served) -> dict[str, Any]:
        reply = self._reply(served)
        async with aclosing(self.engine.generate(reply.request)) as events:
            return reply.completion([event async for event in events])

    async def chunks(self, served: Served) -> AsyncGenerator[dict[str, Any], None]:
        reply = self._reply(served)
        streams = reply.stream()
        for stream in streams:
            yield stream.first()
        count = 0
        async with aclosing(self.engine.generate(reply.request)) as events:
            async for event in events:
                count += 1
                yield streams[event.index].next(event)
        options = self.chat.stream_options
        if options is not None and options.include_usage:
            yield reply.chunk([], usage=reply.usage(count))

    def _reply(self, served: Served) -> Reply:
        request = replace(self.request, adapter=served.adapter)
        return Reply(self.chat, request, served, self.engine.token_bytes)

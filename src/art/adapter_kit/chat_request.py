"""The body of `/v1/chat/completions`: what is accepted, what is refused, and how messages are normalised."""

from __future__ import annotations

import json
from typing import Any

import pydantic

from art.adapter_kit.api_error import ApiError

# Fields that would change what is sampled, and that this front does not implement, with the values that ask
# for nothing. Ignoring them silently would give a user other text than was asked for.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "top_k": (-1, 0),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "continue_final_message": (False,),
    "echo": (False,),
    "tool_choice": ("auto", "none"),
}


class StreamOptions(pydantic.BaseModel):
    """Options of a streamed answer.

    Attributes:
        include_usage: Send a last chunk with the token counts.
    """

    include_usage: bool | None = None


class ChatRequest(pydantic.BaseModel):
    """A chat completion request, in OpenAI's words; `null` means "not given" in each field.

    Attributes:
        model: Name of the weights that answer.
        messages: The conversation; content is a string, null, or a list of text parts.
        n: Number of choices.
        temperature: 0 is greedy.
        top_p: Nucleus sampling.
        max_tokens: Older name of `max_completion_tokens`.
        max_completion_tokens: Most tokens to generate; by default, and at most, what the context leaves room for.
        stop: Strings that end a completion.
        seed: Makes sampling repeatable.
        logprobs: Accepted; log-probabilities come always.
        top_logprobs: Alternatives to report per token.
        tools: Handed to the chat template, and make tool calls in the answer be recognised.
        tool_choice: "none" withholds the tools from the template.
        stream: Answer in server-sent events.
        stream_options: Options of the stream.
        chat_template_kwargs: Further variables of the chat template, such as `enable_thinking`; nothing else.
        return_tokens_as_token_ids: Spell tokens in the logprobs as `token_id:N`.
    """

    model: str
    messages: list[dict[str, Any]] = pydantic.Field(min_length=1)
    n: int | None = pydantic.Field(None, ge=1, le=128)
    temperature: float | None = pydantic.Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = pydantic.Field(None, gt=0, le=1)
    max_tokens: int | None = pydantic.Field(None, ge=1)
    max_completion_tokens: int | None = pydantic.Field(None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = pydantic.Field(None, ge=0, le=20)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_tokens_as_token_ids: bool | None = None

    @pydantic.field_validator("temperature")
    @classmethod
    def _not_vanishing(cls, temperature: float | None) -> float | None:
        # Logits divided by less lose their precision, here and again in training.
        if temperature is not None and 0 < temperature < 0.01:
            raise ValueError("must be 0 (greedy) or at least 0.01")
        return temperature

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings; empty ones ask for nothing."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in given if stop)

    @property
    def template_tools(self) -> list[dict[str, Any]] | None:
        """The tools that the chat template is to show; None rather than an empty list."""
        return None if self.tool_choice == "none" else self.tools or None


def parse_chat_request(body: object) -> ChatRequest:
    """Check a request's body.

    Raises:
        ApiError: 400, naming the field at fault.
    """
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object.")
    for name, neutral in UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            raise ApiError(
                400, f"{name}={value!r} is not supported by this server; leave it out.", param=name
            )
    try:
        return ChatRequest.model_validate(body)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # Branches of a union appear in the location; the field is what stands before them.
        param = str(first["loc"][0]) if first["loc"] else None
        raise ApiError(400, f"{param}: {first['msg']}", param=param) from None


def template_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bring messages into the form that chat templates take.

    Content becomes a string (text parts are joined by newlines, null is empty) and the arguments of tool
    calls become objects where they are the JSON text of one. All else is kept.

    Raises:
        ApiError: 400, for a message without a role, or with a content part that is not text.
    """
    return [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _template_message(message: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise ApiError(400, f"{where} has no role.", param=where)
    message = {**message, "content": _text(message.get("content"), where)}
    calls = message.get("tool_calls")
    if calls is None:
        message.pop("tool_calls", None)
    elif isinstance(calls, list) and all(isinstance(call, dict) for call in calls):
        message["tool_calls"] = [_template_call(call) for call in calls]
    else:
        raise ApiError(400, f"{where}.tool_calls must be a list of objects.", param=where)
    return message


def _text(content: object, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        strings = [text for text in texts if isinstance(text, str)]
        if len(strings) == len(texts):
            return "\n".join(strings)
    raise ApiError(
        400, f"{where}.content must be text; this server takes no other parts.", param=where
    )


def _template_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}

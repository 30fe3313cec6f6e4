"""One turn of a conversation, a message dict or a Choice, as the row struct of the trajectory file and back.

Typed columns are for queries; exactness comes from one rule. A column *captures* a value when decoding the
column gives back exactly that value. Whatever is not captured (unknown provider keys, nulls, odd types, text
with lone surrogates) stays in `extra`, and `extra` wins over the columns. So a null, a missing key, `[]` and
`""` are told apart, and nothing is lost for want of a column.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import pydantic

from art.books.plain_json import (
    NotPlainError,
    exact_text,
    json_text,
    parse_exact,
    plain,
    plain_scalar,
    shown,
    written_fields,
)
from art.messages import choice_from_dict, is_choice, normalise_item

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

    from art.types import MessageOrChoice, MessagesAndChoices

_INT32 = range(-(2**31), 2**31)


def encode_messages(items: MessagesAndChoices) -> list[dict[str, Any]]:
    """Turn the items of one history into row structs.

    Raises:
        NotPlainError: An item holds something that has no JSON form; the message starts with `[index]`.
    """
    structs = []
    context: list[int] = []  # the token ids of the conversation up to and including the last Choice
    for i, item in enumerate(items):
        try:
            struct = _encode(normalise_item(item, "it"), context)
        except (NotPlainError, TypeError) as error:
            raise NotPlainError(f"[{i}]: {error}") from error
        context = _context_after(struct, context)
        structs.append(struct)
    return structs


def decode_messages(structs: Iterable[Mapping[str, Any]]) -> MessagesAndChoices:
    """Turn the row structs of one history back into its items. Absent columns count as null."""
    items = []
    context: list[int] = []
    for struct in structs:
        items.append(_decode(struct, context))
        context = _context_after(struct, context)
    return items


def _encode(item: MessageOrChoice, context: Sequence[int]) -> dict[str, Any]:
    struct: dict[str, Any] = {"trainable": is_choice(item)}
    if is_choice(item):
        rest = _capture_choice(written_fields(item), struct, context)
    else:
        rest = _capture_message(dict(item), struct)
    struct["extra"] = exact_text(rest) if rest else None
    return struct


def _decode(struct: Mapping[str, Any], context: Sequence[int]) -> MessageOrChoice:
    extra = parse_exact(struct["extra"]) if struct.get("extra") else {}
    message = _captured_message(struct)
    if not struct.get("trainable"):
        return cast("MessageOrChoice", _overridden(message, extra))
    fields = _captured_choice(struct, context)
    reply = extra.pop("message", {})
    fields["message"] = _overridden(message, reply) if isinstance(reply, dict) else reply
    return choice_from_dict(_overridden(fields, extra))


def _overridden(captured: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    # Keys of `extra` keep their own order, so that encoding the result gives the same text again.
    return {**{key: captured[key] for key in captured if key not in extra}, **extra}


def _plain_field(key: str, value: object) -> Any:
    try:
        return plain({key: value}, models=True)[key]
    except NotPlainError as error:
        raise NotPlainError(f"{key!r} {error}") from error


# --- what a message and the message of a Choice have in common ---


def _capture_message(fields: Mapping[str, Any], struct: dict[str, Any]) -> dict[str, Any]:
    """Fill the columns of `struct`; return the fields that they do not capture."""
    rest = {key: _plain_field(key, value) for key, value in fields.items()}
    _capture_text(rest, "role", struct)
    _capture_text(rest, "tool_call_id", struct)
    _capture_text(rest, "content", struct)
    parts = rest.get("content")
    if isinstance(parts, list):
        struct["content"] = shown("".join(map(_text_of_part, parts)))
        _capture_json(rest, "content", struct, "content_parts")
    calls = rest.get("tool_calls")
    if isinstance(calls, list) and calls:  # upstream writes null for an empty list
        struct["calls"] = [_queryable_call(call) for call in calls]
        _capture_json(rest, "tool_calls", struct, "tool_calls")
    return rest


def _captured_message(struct: Mapping[str, Any]) -> dict[str, Any]:
    columns = ("role", "content", "tool_call_id")
    message = {name: struct[name] for name in columns if struct.get(name) is not None}
    if struct.get("content_parts") is not None:
        message["content"] = json.loads(struct["content_parts"])
    if struct.get("tool_calls") is not None:
        message["tool_calls"] = json.loads(struct["tool_calls"])
    return message


def _capture_text(rest: dict[str, Any], key: str, struct: dict[str, Any]) -> None:
    value = rest.get(key)
    if isinstance(value, str):
        struct[key] = shown(value)
        if struct[key] == value:
            del rest[key]


def _capture_json(rest: dict[str, Any], key: str, struct: dict[str, Any], column: str) -> None:
    text = json_text(rest[key])
    struct[column] = shown(text)
    if struct[column] == text:
        del rest[key]


def _text_of_part(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


def _queryable_call(call: object) -> dict[str, str | None]:
    """Return id, name and arguments of a tool call; the arguments are never parsed."""
    fields = call if isinstance(call, dict) else {}
    function, custom = fields.get("function"), fields.get("custom")
    name = arguments = None
    if isinstance(function, dict):
        name, arguments = function.get("name"), function.get("arguments")
    elif isinstance(custom, dict):
        name, arguments = custom.get("name"), custom.get("input")
    columns = {"id": fields.get("id"), "name": name, "arguments": arguments}
    return {key: _as_text(value) for key, value in columns.items()}


def _as_text(value: object) -> str | None:
    if value is None:
        return None
    return shown(value if isinstance(value, str) else json_text(value))


# --- what only a Choice has ---


def _capture_choice(
    fields: dict[str, Any], struct: dict[str, Any], context: Sequence[int]
) -> dict[str, Any]:
    """Fill the columns of `struct`; return the fields that they do not capture."""
    if _capture_logprobs(fields.get("logprobs"), struct):
        del fields["logprobs"]
    reply = fields.pop("message", None)
    # Lists of token ids are long and mostly plain already.
    rest = {
        key: value if _are_token_ids(value) else _plain_field(key, value)
        for key, value in fields.items()
    }
    _capture_text(rest, "finish_reason", struct)
    if _are_token_ids(rest.get("token_ids")):
        struct["token_ids"] = rest.pop("token_ids")
    if _are_token_ids(rest.get("prompt_token_ids")):
        prompt = rest.pop("prompt_token_ids")
        struct["prompt_shared_length"] = _shared_length(prompt, context)
        struct["prompt_suffix"] = prompt[struct["prompt_shared_length"] :]
    if isinstance(reply, pydantic.BaseModel):
        reply = written_fields(reply)
    if isinstance(reply, dict):
        reply = _capture_message(dict(sorted(reply.items())), struct)
    if reply != {}:
        rest["message"] = _plain_field("message", reply)
    return rest


def _captured_choice(struct: Mapping[str, Any], context: Sequence[int]) -> dict[str, Any]:
    fields = {
        "finish_reason": struct.get("finish_reason"),
        "token_ids": struct.get("token_ids"),
        "prompt_token_ids": _prompt(struct, context),
        "logprobs": _captured_logprobs(struct),
    }
    return {key: value for key, value in fields.items() if value is not None}


def _are_token_ids(value: object) -> TypeGuard[list[int]]:
    if type(value) is not list or not set(map(type, value)) <= {int}:
        return False
    return not value or (min(value) in _INT32 and max(value) in _INT32)


def _shared_length(prompt: Sequence[int], context: Sequence[int]) -> int:
    if prompt[: len(context)] == context:
        return len(context)
    pairs = enumerate(zip(prompt, context, strict=False))
    shorter = min(len(prompt), len(context))
    return next((i for i, (ours, theirs) in pairs if ours != theirs), shorter)


def _prompt(struct: Mapping[str, Any], context: Sequence[int]) -> list[int] | None:
    if struct.get("prompt_suffix") is None:
        return None
    return [*context[: struct["prompt_shared_length"]], *struct["prompt_suffix"]]


def _context_after(struct: Mapping[str, Any], context: list[int]) -> list[int]:
    prompt = _prompt(struct, context)
    return context if prompt is None else prompt + (struct.get("token_ids") or [])


# --- logprobs in the OpenAI shape ---


def _capture_logprobs(logprobs: object, struct: dict[str, Any]) -> bool:
    """Fill the three columns of logprobs where every entry is token, logprob and bytes and no more.

    Where there is more (alternatives, refusals), `logprobs` is filled for queries but captures nothing.
    """
    from openai.types.chat.chat_completion import ChoiceLogprobs

    if type(logprobs) is not ChoiceLogprobs or not isinstance(logprobs.content, list):
        return False
    entries = logprobs.content
    if not all(map(_is_entry, entries)):
        return False
    struct["logprobs"] = [plain_scalar(entry.logprob) for entry in entries]
    if logprobs.refusal is not None or logprobs.model_extra:
        return False
    if not all(map(_is_regular, entries)):
        return False
    struct["tokens"] = [entry.token for entry in entries]
    struct["token_bytes"] = [None if e.bytes is None else bytes(e.bytes) for e in entries]
    return True


def _is_entry(entry: object) -> TypeGuard[ChatCompletionTokenLogprob]:
    from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

    return type(entry) is ChatCompletionTokenLogprob and isinstance(entry.logprob, float)


def _is_regular(entry: ChatCompletionTokenLogprob) -> bool:
    return (
        entry.top_logprobs == []
        and type(entry.token) is str
        and shown(entry.token) == entry.token
        and (entry.bytes is None or _are_bytes(entry.bytes))
        and not entry.model_extra
    )


def _are_bytes(value: object) -> bool:
    if type(value) is not list or not set(map(type, value)) <= {int}:
        return False
    return not value or (min(value) >= 0 and max(value) < 256)


def _captured_logprobs(struct: Mapping[str, Any]) -> dict[str, Any] | None:
    if struct.get("tokens") is None:
        return None
    columns = zip(struct["tokens"], struct["logprobs"], struct["token_bytes"], strict=True)
    return {
        "content": [
            {
                "token": token,
                "logprob": logprob,
                "bytes": None if raw is None else list(raw),
                "top_logprobs": [],
            }
            for token, logprob, raw in columns
        ]
    }

"""Tool calls in the text of a model: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

This is the format that Qwen and Hermes models are trained to write. Only the message shown to the user is
split; token ids and logprobs stay what the model generated.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from art.adapter_kit.text_stream import overlap

OPENING = "<tool_call>"
_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def split_tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Split a finished text into what is said and the tool calls in OpenAI's shape.

    A block that is not a well-formed call, or never closed, stays in the text as it is.
    """
    calls: list[dict[str, Any]] = []

    def take(match: re.Match[str]) -> str:
        call = _parse(match.group(1))
        if call is None:
            return match.group(0)
        calls.append(call)
        return ""

    content = _BLOCK.sub(take, text)
    return (content.strip(), calls) if calls else (text, [])


def _parse(body: str) -> dict[str, Any] | None:
    try:
        call = json.loads(body)
        json.dumps(call, ensure_ascii=False).encode()  # JSON can spell what is no Unicode text
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": call["name"], "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


class ToolCallStream:
    """Holds streamed text back from where a tool call may begin, until the completion is finished."""

    def __init__(self) -> None:
        self._held = ""

    def add(self, text: str) -> str:
        """Take the next piece of text; returns what surely belongs to no tool call."""
        self._held += text
        at = self._held.find(OPENING)
        keep_from = at if at >= 0 else len(self._held) - overlap(self._held, OPENING)
        released, self._held = self._held[:keep_from], self._held[keep_from:]
        return released

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """The rest of the text and the tool calls in it."""
        return split_tool_calls(self._held)

"""What upstream's releases wrote into the files of `tests/art/books/data/upstream`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import art
from art.messages import choice_from_dict
from art.trajectories import History, PydanticException

DIRECTORY = Path(__file__).parent / "books" / "data" / "upstream"

_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"place": "Zürich"}'},
}
_PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
_TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": _PARAMETERS}}]
_LOGPROBS = {
    "content": [{"token": "a", "bytes": [97], "logprob": -0.25, "top_logprobs": []}],
    "refusal": None,
}
_NULLS_OF_V2 = ("annotations", "audio", "function_call", "refusal")


def groups_in(name: str) -> list[art.TrajectoryGroup]:
    """The groups that a file must give back: what was logged, less what its format does not hold."""
    is_v1 = "v1" in name
    holds_all = "0.5.23" in name
    holds_group_metadata = holds_all or name in {"2025-06.yaml", "0.5.18-v1.parquet"}
    holds_group = holds_all or name == "0.5.18-v1.parquet"
    holds_tools = name != "2025-06.yaml"
    holds_histories = holds_all or name in {"0.5.18.jsonl", "0.5.18-v1-migrated.parquet"}

    def choice(content: str | None, calls: list[Any] | None = None, *, is_v1: bool = is_v1) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = calls
        if is_v1:
            return choice_from_dict({"message": message})
        if name == "0.5.23-v2.parquet":
            message = {**dict.fromkeys((*_NULLS_OF_V2, "tool_calls")), **message}
        reason = "tool_calls" if calls else "stop"
        fields = {"finish_reason": reason, "index": 0, "message": message}
        return choice_from_dict({**fields, "logprobs": _LOGPROBS} if holds_all else fields)

    question: dict[str, Any] = {"role": "user", "content": "Where?"}
    if not is_v1:
        question["name"] = "ada"
    history = History(
        # The migration of 0.5.18 kept these as the JSON they were.
        messages_and_choices=[{"role": "user", "content": "sub"}, choice("b", is_v1=False)],
        tools=_TOOLS,
    )
    first = art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "Be brief. 😀"},
            question,  # type: ignore[list-item]
            choice(None, [_CALL]),
            {"role": "tool", "content": "here\u2028there", "tool_call_id": "c1"},
            choice("a"),
        ],
        tools=_TOOLS if holds_tools else None,
        additional_histories=[history] if holds_histories else [],
        reward=0.5,
        metrics={"turns": 2, "won": True, "score": 0.1},
        metadata={"id": "t1", "n": 3, "x": None},
        logs=["one", "two"],
    )
    second = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "q2"}, choice("é")], reward=1e-05
    )
    third = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "null"}],
        reward=-1.0,
        metrics={"turns": math.nan},
    )
    error = PydanticException(
        type="<class 'ValueError'>", message="lost", traceback="ValueError: lost\n"
    )
    group = art.TrajectoryGroup(
        [first, second],
        exceptions=[error] if holds_all else [],
        metadata={"scenario": "s1"} if holds_group_metadata else {},
        metrics={"judge": 0.5} if holds_group else {},
        logs=["g"] if holds_group else [],
    )
    return [group, art.TrajectoryGroup([third])]

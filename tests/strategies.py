"""Hypothesis strategies for trajectories and groups: whatever the types can hold, odd values first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

import art
from art.messages import choice_from_dict
from art.trajectories import History, PydanticException

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice

ODD_TEXTS = [
    "",
    "\x00",
    "\ud800",
    "\udfff",
    "\ud83d\ude00",
    "😀",
    "\\ud800",
    '"\\',
    "é\u2028",
    "null",
]

texts = st.one_of(
    st.text(max_size=8), st.sampled_from(ODD_TEXTS), st.text("\ud83d\ude00\\ud8", max_size=6)
)
ints = st.one_of(st.integers(-3, 3), st.integers(), st.integers(2**63, 2**70), st.just(10**400))
numbers = st.one_of(st.booleans(), ints, st.floats())
scalars = st.one_of(st.none(), numbers, texts)
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)
metrics = st.dictionaries(texts, numbers, max_size=3)
logs = st.lists(texts, max_size=3)

token_ids = st.lists(st.integers(0, 5), max_size=5)  # few values, so that prompts share prefixes
odd_token_ids = st.lists(st.integers(-1, 2**40) | st.booleans() | st.none(), max_size=3)

tool_calls = st.fixed_dictionaries(
    {
        "id": texts,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": texts, "arguments": texts}),
    },
    optional={"index": st.integers(0, 3), "provider_note": json_values},
)
custom_calls = st.fixed_dictionaries(
    {
        "id": texts,
        "type": st.just("custom"),
        "custom": st.fixed_dictionaries({"name": texts, "input": texts}),
    }
)
calls = st.lists(tool_calls | custom_calls, max_size=2)
tools = st.none() | st.lists(json_objects, max_size=2)

content_parts = st.lists(
    st.one_of(
        st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
        st.fixed_dictionaries(
            {"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": texts})}
        ),
        json_values,
    ),
    max_size=3,
)


def _unlike_a_choice(message: dict[str, Any]) -> bool:
    """Leave out what is taken for a choice, or refused as a whole response."""
    is_choice = "finish_reason" in message and isinstance(message.get("message"), dict)
    is_response = "choices" in message and "role" not in message
    return not is_choice and not is_response


messages = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | texts},
        optional={
            "content": st.none() | texts | content_parts,
            "tool_calls": st.none() | calls,
            "tool_call_id": st.none() | texts,
            "name": texts,
            "reasoning_content": st.none() | texts,
            "provider_note": json_values,
            "extra": json_values,
            "trainable": json_values,
        },
    ),
    st.dictionaries(
        st.sampled_from(["role", "content", "tool_calls", "finish_reason"]) | texts, json_values
    ),
).filter(_unlike_a_choice)

_logprob_entries = st.fixed_dictionaries(
    {
        "token": texts,
        "logprob": st.floats(),
        "bytes": st.none() | st.lists(st.integers(0, 255), max_size=4),
        "top_logprobs": st.just([])
        | st.lists(
            st.fixed_dictionaries(
                {"token": texts, "logprob": st.floats(), "bytes": st.none()}, optional={"id": ints}
            ),
            max_size=2,
        ),
    },
    optional={"provider_note": json_values},
)
_regular_entries = st.fixed_dictionaries(
    {
        "token": st.sampled_from(["a", " the", "token_id:17", "\ufffd"]),
        "logprob": st.floats(max_value=0.0, allow_nan=False),
        "bytes": st.none() | st.lists(st.integers(0, 255), max_size=4),
        "top_logprobs": st.just([]),
    }
)
logprobs = st.none() | st.fixed_dictionaries(
    {
        "content": st.none()
        | st.lists(_regular_entries, max_size=4)
        | st.lists(_logprob_entries, max_size=2)
    },
    optional={"refusal": st.none() | st.lists(_logprob_entries, max_size=1), "note": json_values},
)
_replies = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none() | texts},
    optional={
        "refusal": st.none() | texts,
        "tool_calls": st.none() | calls,
        "tool_call_id": texts,
        "reasoning_content": st.none() | texts,
        "provider_note": json_values,
    },
)
choices: st.SearchStrategy[Choice] = st.fixed_dictionaries(
    {
        "finish_reason": st.sampled_from(["stop", "length", "tool_calls", None, "abort"]) | texts,
        "index": st.integers(0, 3),
        "message": _replies,
    },
    optional={
        "logprobs": logprobs,
        "token_ids": token_ids | odd_token_ids | st.none(),
        "prompt_token_ids": token_ids | odd_token_ids | st.none(),
        "checkpoint_step": st.integers(0, 9),
        "temperature": st.floats() | st.integers(),
        "provider_note": json_values,
    },
).map(choice_from_dict)

items = st.lists(messages | choices, max_size=4)
histories = st.builds(History, messages_and_choices=items, tools=tools)
versions = st.none() | ints
trajectories = st.builds(
    art.Trajectory,
    messages_and_choices=items,
    tools=tools,
    additional_histories=st.lists(histories, max_size=2),
    reward=st.floats(),
    initial_policy_version=versions,
    final_policy_version=versions,
    metrics=metrics,
    auto_metrics=metrics,
    metadata=json_objects,
    logs=logs,
)
exceptions = st.builds(PydanticException, type=texts, message=texts, traceback=texts)


def _group(
    trajectories: list[art.Trajectory], exceptions: list[PydanticException], **fields: Any
) -> art.TrajectoryGroup:
    return art.TrajectoryGroup(trajectories, exceptions=exceptions, **fields)


groups = st.builds(
    _group,
    st.lists(trajectories, max_size=2),
    st.lists(exceptions, max_size=2),
    metadata=json_objects,
    metrics=metrics,
    logs=logs,
)
group_lists = st.lists(groups, max_size=3)

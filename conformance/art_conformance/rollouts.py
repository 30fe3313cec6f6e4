"""Made-up rollouts for backends that train on any token ids, and odd ones for the books."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import art

if TYPE_CHECKING:
    import random

_TOKENS = 64


def _choice(text: str, token_ids: list[int], *, prompt_token_ids: list[int]) -> dict[str, Any]:
    """Return a choice as an endpoint gives it, with all that training needs."""
    content: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "logprob": -0.5, "bytes": None, "top_logprobs": []}
        for token in token_ids
    ]
    return {
        "finish_reason": "stop",
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": content, "refusal": None},
        "prompt_token_ids": prompt_token_ids,
        "token_ids": token_ids,
        "checkpoint_step": 0,
        "temperature": 1.0,
    }


def made_up(random: random.Random) -> list[art.TrajectoryGroup]:
    """Return two groups of three rollouts with different rewards."""
    return [
        art.TrajectoryGroup([_trajectory(random, question, reward) for reward in (0.0, 0.5, 1.0)])
        for question in ("Name a letter.", "Name a number.")
    ]


def _trajectory(random: random.Random, question: str, reward: float) -> art.Trajectory:
    prompt = [random.randrange(_TOKENS) for _ in range(4)]
    answer = [random.randrange(_TOKENS) for _ in range(3)]
    messages: list[Any] = [
        {"role": "user", "content": question},
        _choice(f"answer {answer[0]}", answer, prompt_token_ids=prompt),
    ]
    return art.Trajectory(
        messages_and_choices=messages, reward=reward, metrics={"length": float(len(answer))}
    )


def odd() -> list[art.TrajectoryGroup]:
    """Return groups that are hard to keep: exceptions, odd text, tool calls, missing content, not a number."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"word": "\u4f60\u597d"}'},
    }
    messages: list[Any] = [
        {"role": "system", "content": "\u0000 \u202e \U0001f600 \ud83d"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1\r\n2"},
        _choice("done", [1, 2], prompt_token_ids=[3, 4, 5]),
    ]
    trajectories = [
        art.Trajectory(
            messages_and_choices=messages,
            reward=reward,
            metrics={"turns": 2, "is_right": reward > 0},
            metadata={"split": "odd", "empty": ""},
            logs=["a line"],
        )
        for reward in (0.0, 1.0, float("nan"))
    ]
    return [
        art.TrajectoryGroup([*trajectories, TimeoutError("late")], metadata={"task": 1}),
        art.TrajectoryGroup([]),
    ]

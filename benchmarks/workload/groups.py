"""The same rollouts in every environment, from a seed.

Groups of 8 trajectories of 20 messages: system, user, 9 Choices (8 of them with a tool call), 8 tool results
and a last user message; 7.5 KB of JSON each. With `tokens` every Choice carries 50 logprobs, `token_ids` and
`prompt_token_ids` as an inference server gives them: the prompt of a turn repeats all turns before it.
"""

from __future__ import annotations

import json
import random
from typing import Any

from openai.types.chat.chat_completion import Choice

import art

GROUP_SIZE = 8
TURNS = 9
TOKENS_PER_TURN = 50
VOCABULARY = 150_000

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the corpus for documents",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["query"],
            },
        },
    }
]


def make_groups(
    num_trajectories: int, *, tokens: bool = False, seed: int = 0
) -> list[art.TrajectoryGroup]:
    """Return groups that hold so many trajectories, a multiple of 8."""
    writer = _Writer(random.Random(seed), tokens)
    return [writer.group(index) for index in range(num_trajectories // GROUP_SIZE)]


class _Writer:
    def __init__(self, rng: random.Random, tokens: bool) -> None:
        self._rng = rng
        self._tokens = tokens
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(rng.choices(letters, k=rng.randint(3, 9))) for _ in range(6000)]

    def group(self, index: int) -> art.TrajectoryGroup:
        opening = [
            {"role": "system", "content": self._text(55)},
            {"role": "user", "content": self._text(40)},
        ]
        opening_ids = self._ids(160)
        return art.TrajectoryGroup(
            [self._trajectory(index, opening, opening_ids) for _ in range(GROUP_SIZE)],
            metadata={"scenario": index},
        )

    def _trajectory(
        self, group: int, opening: list[dict[str, Any]], opening_ids: list[int]
    ) -> art.Trajectory:
        items: list[Any] = [dict(message) for message in opening]
        prompt_ids = opening_ids
        for turn in range(TURNS):
            call = self._call() if turn < TURNS - 1 else None
            choice, completion_ids = self._choice(call, prompt_ids)
            content = self._text(24)
            items.append(choice)
            if call is None:
                items.append({"role": "user", "content": content})
            else:
                items.append({"role": "tool", "tool_call_id": call["id"], "content": content})
            prompt_ids = prompt_ids + completion_ids + self._ids(TOKENS_PER_TURN)
        reward = self._rng.random()
        return art.Trajectory(
            messages_and_choices=items,
            tools=TOOLS,
            reward=reward,
            metrics={"correct": reward > 0.5, "num_turns": TURNS, "latency": reward * 3},
            metadata={"task_id": f"task-{group}", "difficulty": "hard"},
        )

    def _choice(
        self, call: dict[str, Any] | None, prompt_ids: list[int]
    ) -> tuple[Choice, list[int]]:
        reply: dict[str, Any] = {"role": "assistant", "content": self._text(24), "refusal": None}
        fields: dict[str, Any] = {"index": 0, "message": reply, "logprobs": None}
        fields["finish_reason"] = "stop" if call is None else "tool_calls"
        if call is not None:
            reply["tool_calls"] = [call]
        completion_ids = self._ids(TOKENS_PER_TURN)
        if self._tokens:
            fields["logprobs"] = {"content": [self._logprob(i) for i in completion_ids]}
            fields["token_ids"] = completion_ids
            fields["prompt_token_ids"] = prompt_ids
        return Choice.model_validate(fields), completion_ids

    def _call(self) -> dict[str, Any]:
        arguments = {"query": self._text(3), "limit": self._rng.randint(1, 9)}
        return {
            "id": f"call_{self._rng.getrandbits(48):012x}",
            "type": "function",
            "function": {"name": "search", "arguments": json.dumps(arguments)},
        }

    def _logprob(self, token_id: int) -> dict[str, Any]:
        return {
            "token": f"token_id:{token_id}",
            "logprob": -self._rng.expovariate(2),
            "bytes": list(self._words[token_id % len(self._words)].encode()),
            "top_logprobs": [],
        }

    def _ids(self, count: int) -> list[int]:
        return self._rng.choices(range(VOCABULARY), k=count) if self._tokens else []

    def _text(self, num_words: int) -> str:
        return " ".join(self._rng.choices(self._words, k=num_words))

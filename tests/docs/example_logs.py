"""Real logs of a small run, with everything in them that a reader of logs can meet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import art
from art.messages import choice_from_dict
from art.testing import InMemoryBackend

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = "data:image/png;base64,iVBORw0KGgo="


def answer(text: str, logprob: float | None = None, calls: list[Any] | None = None) -> Any:
    """A turn of the model, with logprobs of two tokens and tool calls where given."""
    fields: dict[str, Any] = {
        "finish_reason": "tool_calls" if calls else "stop",
        "index": 0,
        "message": {"role": "assistant", "content": text, "tool_calls": calls},
    }
    if logprob is not None:
        entry = {"token": "t", "logprob": logprob, "bytes": None, "top_logprobs": []}
        fields |= {"logprobs": {"content": [entry, entry]}, "token_ids": [1, 2]}
    return choice_from_dict(fields)


def call(name: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": '{"q": 1}'}}


def rollout(reward: float, text: str, logprob: float, *tools: str) -> art.Trajectory:
    messages: list[Any] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": IMAGE}},
            ],
        }
    ]
    for name in tools:
        messages += [
            answer("", logprob, [call(name)]),
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
        ]
    return art.Trajectory(
        messages_and_choices=[*messages, answer(text, logprob)],
        reward=reward,
        metrics={"turns": 1 + len(tools)},
        metadata={"task": "name it"},
    )


async def make_logs(base_path: Path | None = None) -> art.TrainableModel[Any, Any]:
    """Train from step 0 to 3, and evaluate at steps 0 and 2, the latter in two parts.

    Mean rewards by step: train 0.25 (one more is NaN), 0.5, 0.75; val 0.5 at step 0, (1 + 0 + 0) / 3 at step 2.
    """
    model = art.TrainableModel(
        name="agent-001",
        project="reading",
        base_model="none",
        base_path=None if base_path is None else str(base_path),
        report_metrics=[],
    )
    backend = InMemoryBackend.supporting("step", "listing")
    # No group has two rewards, so there is nothing to train on: events come all the same.
    backend.events = lambda _: [{"loss": 0.5, "grad_norm": 1.0}]
    await model.register(backend)
    await model.log([art.TrajectoryGroup([rollout(0.5, "eval", -1.0)])])
    for step in range(3):
        good, bad = 0.25 * step + 0.5, 0.25 * step
        failed: Any = TimeoutError("the server is slow") if step else KeyError("q")
        groups = [
            art.TrajectoryGroup(
                [rollout(good, f"good {step}", -0.5 * (step + 1), "search", "search")],
                metadata={"task": "first"},
            ),
            art.TrajectoryGroup(
                [rollout(bad, f"bad {step}", -0.5 * (step + 1), "read"), failed],
                metadata={"task": "second"},
            ),
            art.TrajectoryGroup([]),
        ]
        if step == 0:
            groups.append(art.TrajectoryGroup([rollout(math.nan, "unscored", -0.5)]))
        await model.train(groups, art.TrainConfig(learning_rate=1e-5))
    await model.log([art.TrajectoryGroup([rollout(1.0, "eval a", -1.0)])], step=2)
    await model.log([art.TrajectoryGroup([rollout(0.0, "eval b", -1.0)] * 2)], step=2)
    await model.close()
    return model

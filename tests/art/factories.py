"""Small trajectories, groups and models for tests of the frontend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import art

if TYPE_CHECKING:
    from pathlib import Path


def trajectory(reward: float, **fields: Any) -> art.Trajectory:
    messages: list[Any] = [
        {"role": "user", "content": "Say a."},
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "a"}},
    ]
    return art.Trajectory(messages_and_choices=messages, reward=reward, **fields)


def group(*rewards: float, **fields: Any) -> art.TrajectoryGroup:
    return art.TrajectoryGroup([trajectory(reward) for reward in rewards], **fields)


def model(base_path: Path, name: str = "agent", **fields: Any) -> art.TrainableModel[Any, Any]:
    return art.TrainableModel(
        name=name,
        project="tests",
        base_model="none",
        base_path=str(base_path),
        report_metrics=[],
        **fields,
    )

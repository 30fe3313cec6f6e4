"""Looks for what must not be told: API keys and prompts, in exceptions and log records."""

from __future__ import annotations

import logging
import os
import traceback
from typing import TYPE_CHECKING, Any

import art
from art_conformance.instruments.faults import failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from art_conformance.run import Run

_PROMPT = "A prompt that nobody else may read."
_SHORTEST = 10  # shorter texts turn up by chance


def plain_groups() -> list[art.TrajectoryGroup]:
    """Return a group of plain messages, without the tokens that most trainers need."""

    def trajectory(reward: float) -> art.Trajectory:
        messages: list[Any] = [
            {"role": "user", "content": _PROMPT},
            {"role": "assistant", "content": "It stays here."},
        ]
        return art.Trajectory(messages_and_choices=messages, reward=reward)

    return [art.TrajectoryGroup([trajectory(0.0), trajectory(1.0)])]


async def told_secrets(run: Run, calls: Iterable[Callable[[], Any]]) -> list[str]:
    """Make calls, that may fail, and return where a secret was told; not the secret."""
    keys, prompts = _keys(run), {_PROMPT, *_prompts_of(await run.groups())}
    root, told = logging.getLogger(), []
    level, num_records = root.level, len(run.stage.logged)
    root.setLevel(logging.DEBUG)
    try:
        for call in calls:
            error = await failure_of(call())
            if error is not None:
                text = "".join(traceback.format_exception(error))
                told += _found(text, keys, prompts, f"a {type(error).__name__}")
    finally:
        root.setLevel(level)
    for record in run.stage.logged[num_records:]:
        seen = prompts if record.levelno >= logging.INFO else set()
        text = logging.Formatter().format(record)
        told += _found(text, keys, seen, f"a log record of {record.name}")
    return sorted(set(told))


def _keys(run: Run) -> set[str]:
    keys = {value for name, value in os.environ.items() if name.endswith("_API_KEY")}
    return {key for key in {*keys, run.model.inference_api_key or ""} if len(key) >= _SHORTEST}


def _prompts_of(groups: list[art.TrajectoryGroup]) -> set[str]:
    messages = [message for group in groups for t in group.trajectories for message in t.messages()]
    texts = [str(message.get("content")) for message in messages if message["role"] != "assistant"]
    return {text for text in texts if len(text) >= _SHORTEST}


def _found(text: str, keys: set[str], prompts: set[str], where: str) -> list[str]:
    found = [f"an API key in {where}" for key in keys if key in text]
    return found + [f"a prompt in {where}" for prompt in prompts if prompt in text]

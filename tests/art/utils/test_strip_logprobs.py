from __future__ import annotations

import art
from art.messages import choice_from_dict
from art.utils.strip_logprobs import strip_logprobs

CHOICE = {
    "finish_reason": "stop",
    "index": 0,
    "message": {"role": "assistant", "content": "a"},
    "logprobs": {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": []}]},
    "vendor": {"logprobs": [1], "kept": 2},
}


def test_dicts_lists_and_tuples_lose_their_logprobs_at_any_depth() -> None:
    """Keys go, everything else stays, and the original is untouched."""
    data = {"a": [{"logprobs": 1, "b": 2}], "t": ({"logprobs": 1},), "logprobs": []}
    assert strip_logprobs(data) == {"a": [{"b": 2}], "t": ({},)}
    assert data["a"] == [{"logprobs": 1, "b": 2}]


def test_choices_in_trajectories_lose_their_logprobs() -> None:
    """Attributes become None, a provider's extra fields are searched too, the original keeps its own."""
    trajectory = art.Trajectory(messages_and_choices=[choice_from_dict(CHOICE)], reward=1)
    untouched = trajectory.model_copy(deep=True)
    stripped = strip_logprobs(trajectory)
    choice = stripped.messages_and_choices[0]
    assert choice.logprobs is None
    assert choice.message.content == "a"
    assert choice.model_extra == {"vendor": {"kept": 2}}
    assert stripped.reward == 1.0
    assert trajectory == untouched


def test_plain_objects_and_scalars_pass() -> None:
    """An object's attribute becomes None; numbers, text, classes and None are returned as they are."""

    class Response:
        def __init__(self) -> None:
            self.logprobs = [1]
            self.text = "a"

    response = Response()
    assert vars(strip_logprobs(response)) == {"logprobs": None, "text": "a"}
    assert response.logprobs == [1]
    assert [strip_logprobs(value) for value in (1, "a", None, Response)] == [1, "a", None, Response]

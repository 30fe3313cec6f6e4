from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import art
from art.books import long_texts
from art.books.long_texts import LongTexts, TakenKeyError, put_back
from art.books.trajectory_file import append_groups, read_groups
from art.equality import same_groups, same_values
from art.trajectories import History
from tests.strategies import json_values

IMAGE = "data:image/png;base64," + "iVBORw0KGgo" * 5_000


def screenshot(url: str = IMAGE, text: str = "look") -> Any:
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    return {"role": "user", "content": parts}


@given(st.data())
def test_what_is_set_apart_can_be_put_back(data: st.DataObject) -> None:
    """Any value comes back, whichever of its texts count as long."""
    value = data.draw(json_values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "_MIN_CHARACTERS", data.draw(st.integers(0, 5)))
        apart = LongTexts()
        referred = apart.set_apart(value)

    assert same_values(put_back(referred, apart.texts() or []), value)


def test_equal_texts_are_kept_once() -> None:
    """A text that several parts hold has one number."""
    apart = LongTexts()

    referred = apart.set_apart([IMAGE, {"again": IMAGE}, "short"])

    assert referred == [{"$long_text": 0}, {"again": {"$long_text": 0}}, "short"]
    assert apart.texts() == [IMAGE]
    assert apart.size == len(IMAGE)


def test_a_reference_of_the_users_own_is_not_mistaken() -> None:
    """Parts that look as if they referred to something are refused, so that they are stored as they are."""
    with pytest.raises(TakenKeyError, match="taken"):
        LongTexts().set_apart([{"$long_text": 0}])


def test_images_survive_in_every_history_and_beside_odd_parts(tmp_path: Path) -> None:
    """Images of messages, of further histories and of messages with odd parts come back."""
    path = tmp_path / "0001.parquet"
    odd: Any = {"role": "user", "content": [{"$long_text": 0}, IMAGE]}
    surrogate = screenshot(text="\ud800")
    half_an_image = screenshot(url=IMAGE + "\udfff")
    trajectories = [
        art.Trajectory(messages_and_choices=[screenshot(), odd, surrogate, half_an_image]),
        art.Trajectory(messages_and_choices=[{"role": "user", "content": "none"}]),
        art.Trajectory(
            messages_and_choices=[screenshot("other" + IMAGE)],
            additional_histories=[
                History(messages_and_choices=[screenshot(), screenshot("third" + IMAGE)]),
                History(messages_and_choices=[]),
                History(messages_and_choices=[screenshot("other" + IMAGE)]),
            ],
        ),
    ]
    groups = [art.TrajectoryGroup(trajectories)]

    append_groups(path, groups, split="train", step=1)

    assert same_groups(read_groups(path), groups)
    rows = pq.read_table(path)["long_texts"].to_pylist()
    assert rows[1:] == [None, ["other" + IMAGE, IMAGE, "third" + IMAGE]]


def test_c031_an_image_that_is_repeated_is_stored_once(tmp_path: Path) -> None:
    """An image that every turn of every rollout repeats takes the room of one."""
    path = tmp_path / "0001.parquet"
    noise = random.Random(1).randbytes(1_500_000).hex()  # beyond what a compressor looks back
    rollout = art.Trajectory(messages_and_choices=[screenshot(noise, f"{i}") for i in range(5)])
    groups = [art.TrajectoryGroup([rollout] * 4)]

    append_groups(path, groups, split="train", step=1)

    assert path.stat().st_size < len(noise)
    assert same_groups(read_groups(path), groups)

from __future__ import annotations

import asyncio

import pytest

from art.adapter_kit.served_names import Served, ServedNames


def names_with(*steps: int, latest: int | None = None) -> ServedNames:
    names = ServedNames("m", "base/model")
    for step in steps:
        names.publish(f"m@{step}", names.new_adapter_id(), latest=step == latest)
    return names


def resolved(names: ServedNames, name: str) -> str | None:
    served = names.resolve(name)
    return None if served is None else served.name


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ("m@5", "m@5"),
        ("m@0005", "m@5"),
        ("m", "m@12"),
        ("base/model", "base/model"),
    ],
)
def test_known_names_resolve(asked: str, answers: str) -> None:
    """A pinned name, zero-padded or not, the bare name and the base model's lead to their weights."""
    assert resolved(names_with(5, 12, latest=12), asked) == answers


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "m@",
        "m@6",
        "m@-5",
        "m@5.0",
        "m@ 5",
        "m@\u0665",
        "m@5@5",
        "m@" + "9" * 5000,
        "M@5",
        "x@5",
        "@5",
        "base/model@5",
    ],
)
def test_other_names_lead_nowhere(asked: str) -> None:
    """Anything that is not exactly a served name resolves to nothing, never to other weights."""
    assert resolved(names_with(5, latest=5), asked) is None


def test_a_model_name_may_hold_an_at_sign() -> None:
    """Only what follows the last @ is the step."""
    names = ServedNames("team@home", "base")
    names.publish("team@home@3", "slot0", latest=True)
    assert resolved(names, "team@home@3") == "team@home@3"
    assert resolved(names, "team@home") == "team@home@3"


def test_a_model_named_like_its_base_means_the_trained_model() -> None:
    """The name never answers with the base model's text, not even before anything is published."""
    names = ServedNames("same", "same")
    assert resolved(names, "same") is None
    names.publish("same@0", "slot0", latest=True)
    assert resolved(names, "same") == "same@0"
    assert [name for name, _ in names.listing()] == ["same", "same@0"]


def test_the_latest_is_what_was_published_as_the_latest() -> None:
    """Publishing moves the bare name only when asked, whatever the numbers."""
    names = names_with(9, 3, latest=3)
    assert resolved(names, "m") == "m@3"
    names.publish("m@4", "slot7", latest=False)
    assert resolved(names, "m") == "m@3"


def test_publishing_again_replaces() -> None:
    """The name and, where it was the latest, the bare name mean the new weights; the old ones are retired."""
    names = names_with(3, latest=3)
    old = names.resolve("m@3")
    assert names.publish("m@03", "slot9", latest=False) is old
    new = names.resolve("m@3")
    assert old is not None
    assert new is not None
    assert old.retired
    assert (new.name, new.adapter) == ("m@3", "slot9")
    assert names.resolve("m") is new


def test_a_retired_name_is_gone_at_once_and_says_why() -> None:
    """After `retire` the name and the bare name that meant it lead nowhere; the message tells a deletion."""
    names = names_with(2, 3, latest=3)
    retired = names.retire("m@3")
    assert retired is not None
    assert retired.retired
    assert resolved(names, "m@3") is None
    assert resolved(names, "m") is None
    assert resolved(names, "m@2") == "m@2"
    assert "deleted" in names.why_unknown("m@3")
    assert "does not exist" in names.why_unknown("m@4")
    assert "latest" in names.why_unknown("m")
    assert names.retire("m@3") is None


@pytest.mark.parametrize("name", ["m", "base/model", "m@7", "x@3"])
def test_only_served_steps_retire(name: str) -> None:
    """The base model, the bare name and unknown names cannot be retired."""
    names = names_with(3, latest=3)
    assert names.retire(name) is None
    assert len(names.listing()) == 3


def test_only_step_names_can_be_published() -> None:
    """A name without a step would shadow the bare name or the base model."""
    with pytest.raises(ValueError, match="m@STEP"):
        names_with().publish("m", "slot0", latest=True)


def test_the_listing_is_the_base_the_bare_name_and_the_steps_in_order() -> None:
    """Steps are listed in numeric order."""
    names = names_with(10000, 9, 10, latest=10000)
    assert [name for name, _ in names.listing()] == ["base/model", "m", "m@9", "m@10", "m@10000"]


def test_adapter_ids_are_new_and_have_no_dots() -> None:
    """Each id is given out once."""
    names = names_with(1, 2)
    ids = [names.new_adapter_id() for _ in range(3)]
    assert len({*ids, "slot0", "slot1"}) == 5
    assert all(name.isalnum() for name in ids)


async def test_drained_waits_for_the_requests_in_flight() -> None:
    """`drained` returns when the last lease ends, and False when that takes too long."""
    served = Served("m@1", 1, "slot0")
    assert await served.requests.drained(0)
    with served.requests.lease():
        with served.requests.lease():
            assert not await served.requests.drained(0.001)
            assert served.requests.count == 2
        waiting = asyncio.create_task(served.requests.drained(60))
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting
    assert served.requests.count == 0

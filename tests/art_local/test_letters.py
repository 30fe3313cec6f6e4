from __future__ import annotations

import pytest

from art_local.letters import LETTERS, TRAIN_PHRASINGS, VAL_PHRASINGS, Scenario, reward, scenarios


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c", 1.0),
        ("a", 0.0),
        ("C", 0.0),
        (" c", 0.0),
        ("c\n", 0.0),
        ("cc", 0.0),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_only_exactly_the_letter_is_rewarded(text: str | None, expected: float) -> None:
    """Anything around the letter counts as wrong, as does an answer without content."""
    assert reward("c", text) == expected


def test_scenarios_are_each_phrasing_with_each_letter() -> None:
    """Every question comes once, so that each letter is asked for equally often."""
    questions = [scenario.question for scenario in scenarios(TRAIN_PHRASINGS)]
    assert len(set(questions)) == len(questions) == len(TRAIN_PHRASINGS) * len(LETTERS)
    assert scenarios(["Pick {}."])[2] == Scenario("Pick {}.", "c")
    assert scenarios(["Pick {}."])[2].question == "Pick c."


def test_validation_never_asks_what_training_asked() -> None:
    """A rise on the validation questions is not learned by heart."""
    trained = {scenario.question for scenario in scenarios(TRAIN_PHRASINGS)}
    assert trained.isdisjoint(scenario.question for scenario in scenarios(VAL_PHRASINGS))

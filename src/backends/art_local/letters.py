"""The letter task: a tiny job with a clear rise, for the demo and for looking at a backend.

The model is asked for one of four letters ("Pick c.") and is rewarded for answering with exactly it. The
built-in base model (`builtin:letters`) was taught this with noise and is right about half of the time;
reinforcement learning sharpens it. Evaluation uses phrasings that training never shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import art

if TYPE_CHECKING:
    from collections.abc import Iterable

    from art.types import Messages

BASE_MODEL = "builtin:letters"
LETTERS = "abcd"
TRAIN_PHRASINGS = ("Answer with {}.", "Reply with {}.", "Choose {}.", "Write {}.")
VAL_PHRASINGS = ("Please say {}.", "Pick {}.")
MAX_TOKENS = 8  # a right answer takes two: the letter and the end of the turn


@dataclass(frozen=True)
class Scenario:
    """One question.

    Attributes:
        phrasing: A template with one `{}` for the letter.
        letter: The letter to be asked for, and the right answer.
    """

    phrasing: str
    letter: str

    @property
    def question(self) -> str:
        """The text that the user says."""
        return self.phrasing.format(self.letter)


def scenarios(phrasings: Iterable[str]) -> list[Scenario]:
    """Return every question: each phrasing with each letter."""
    return [Scenario(phrasing, letter) for phrasing in phrasings for letter in LETTERS]


def reward(letter: str, text: str | None) -> float:
    """Return 1.0 for exactly the letter, else 0.0."""
    return float(text == letter)


async def rollout(
    model: art.Model[Any, Any], scenario: Scenario, seed: int | None = None
) -> art.Trajectory:
    """Ask the model once, at temperature 1, and score the answer.

    Args:
        model: A model that is registered with a backend.
        scenario: What to ask.
        seed: Seed of the sampling, for engines that take one.
    """
    messages: Messages = [{"role": "user", "content": scenario.question}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=messages,
        max_tokens=MAX_TOKENS,
        temperature=1.0,
        seed=seed,
    )
    choice = completion.choices[0]
    return art.Trajectory(
        messages_and_choices=[*messages, choice],
        reward=reward(scenario.letter, choice.message.content),
        metadata={"letter": scenario.letter, "phrasing": scenario.phrasing},
    )

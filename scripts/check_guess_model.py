"""Check that reinforcement learning works on `builtin:guess`, whatever the seed.

    python -m scripts.check_guess_model [--model DIR] [--steps N] [--learning-rate LR] [--seeds N]

A LoRA adapter is trained in process, on the recipe of `examples/guess_the_number.py`. The mean reward at the
start and at the end is computed over every state of a game, not sampled. Prints a row for each seed,
and fails unless every seed reaches `--target`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils import logging as transformers_logging

from examples.guess_the_number import (
    LEARNING_RATE,
    MAX_GUESSES,
    MAX_TOKENS,
    NUMBERS,
    SAMPLES,
    STEPS,
    guess,
    reward,
)
from scripts.build_base_model import sample
from scripts.build_guess_model import OUT, Prompts, call_probabilities, expected
from scripts.check_base_model import gradient_step, load_with_adapter

if TYPE_CHECKING:
    from scripts.build_guess_model import History


@dataclass
class Game:
    """One game in the making.

    Attributes:
        secret: The hidden number.
        history: The guesses so far, each with its answer.
        turns: Prompt and completion of each turn.
        reward: What it is worth.
        over: Whether it has ended.
    """

    secret: int
    history: History = ()
    turns: list[tuple[list[int], list[int]]] = field(default_factory=list)
    reward: float = 0.0
    over: bool = False


def play(model: Any, tokenizer: Any, prompts: Prompts) -> list[Game]:
    """Play every hidden number `SAMPLES` times, all games side by side."""
    number_of = {tuple(call): number for number, call in prompts.calls.items()}
    games = [Game(secret) for secret in NUMBERS for _ in range(SAMPLES)]
    for guesses in range(1, MAX_GUESSES + 1):
        going = [game for game in games if not game.over]
        if not going:
            break
        asked = [prompts.of_game(game.history) for game in going]
        for game, prompt, completion in zip(
            going, asked, sample(model, tokenizer, asked, MAX_TOKENS), strict=True
        ):
            game.turns.append((prompt, completion))
            number = number_of.get(tuple(completion))
            game.over = number is None or number == game.secret
            if number == game.secret:
                game.reward = reward(guesses)
            elif number is not None:
                game.history = (*game.history, (number, guess(game.secret, number)))
    return games


def train_step(
    model: Any, tokenizer: Any, prompts: Prompts, optimizer: torch.optim.Optimizer
) -> float:
    """Play a batch of games and take one gradient step on it; returns the mean reward."""
    games = play(model, tokenizer, prompts)
    rewards = torch.tensor([game.reward for game in games]).view(-1, SAMPLES)
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True, unbiased=False)
    advantages = ((rewards - mean) / (std + 1e-6)).flatten()
    turns = torch.tensor([len(game.turns) for game in games])
    pairs = [turn for game in games for turn in game.turns]
    gradient_step(model, tokenizer, optimizer, pairs, advantages.repeat_interleave(turns))
    return float(rewards.mean())


def main() -> None:
    """Run all seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--seeds", type=int, default=8, help="seeds 0 .. N-1 are run")
    parser.add_argument("--target", type=float, default=0.85)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    print("seed  computed: start    end  malformed   seconds   sampled, every 5th step")
    ends = []
    for seed in range(args.seeds):
        started = time.monotonic()
        model, tokenizer, optimizer = load_with_adapter(args.model, seed, args.learning_rate)
        prompts = Prompts(tokenizer)
        start = expected(call_probabilities(model, tokenizer))
        curve = [train_step(model, tokenizer, prompts, optimizer) for _ in range(args.steps)]
        probabilities = call_probabilities(model, tokenizer)
        ends.append(expected(probabilities))
        malformed = 1 - sum(map(sum, probabilities.values())) / len(probabilities)
        print(
            f"{seed:4}{start:17.3f}{ends[-1]:7.3f}{malformed:11.4f}{time.monotonic() - started:10.1f}"
            f"   {' '.join(f'{value:.2f}' for value in curve[::5])}",
            flush=True,
        )
    print(f"worst of {args.seeds} seeds after {args.steps} steps: {min(ends):.3f}")
    assert min(ends) >= args.target, f"a seed ended at {min(ends):.3f}, below {args.target}"


if __name__ == "__main__":
    main()

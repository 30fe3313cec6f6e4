"""Check that reinforcement learning works on the built-in base model, whatever the seed.

    python -m scripts.check_base_model [--model DIR] [--steps N] [--learning-rate LR] [--seeds N]

A LoRA adapter is trained in process, on the recipe of `art demo`: each of the 16 questions 8 times at temperature 1,
advantages divided by the group's standard deviation, one gradient step a batch. Accuracy is exact (the
probability of the right answer, no sampling noise), on phrasings that training never shows. Prints a table
of one row a seed, and fails unless every seed reaches `--target` at `--steps`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from art_local.letters import TRAIN_PHRASINGS, VAL_PHRASINGS, scenarios
from scripts.build_base_model import (
    IM_END,
    OUT,
    accuracies,
    answer_probabilities,
    completion_logprobs,
    prompt_ids,
    sample,
    sampled_accuracy,
)

SAMPLES = 8
CHECKPOINTS = (5, 10, 15, 20, 25, 30, 40)


@dataclass
class Run:
    """What one seed did: accuracy on unseen phrasings after each step, from step 0 on."""

    exact: list[float]
    sampled: float
    seconds: float


def rewards_and_batch(
    model: Any, tokenizer: Any
) -> tuple[torch.Tensor, list[tuple[list[int], list[int]]]]:
    """Sample one step's rollouts: rewards float32[questions, SAMPLES] and token ids, question by question."""
    questions = [question for question in scenarios(TRAIN_PHRASINGS) for _ in range(SAMPLES)]
    prompts = [prompt_ids(tokenizer, question) for question in questions]
    completions = sample(model, tokenizer, prompts)
    rewards = [
        float(completion == tokenizer.encode(question.letter + IM_END))
        for question, completion in zip(questions, completions, strict=True)
    ]
    return torch.tensor(rewards).view(-1, SAMPLES), list(zip(prompts, completions, strict=True))


def train_step(model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer) -> None:
    """Sample a batch and take one gradient step on it."""
    rewards, pairs = rewards_and_batch(model, tokenizer)
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True, unbiased=False)
    advantages = ((rewards - mean) / (std + 1e-6)).flatten()
    gradient_step(model, tokenizer, optimizer, pairs, advantages)


def gradient_step(
    model: Any,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    pairs: list[tuple[list[int], list[int]]],
    advantages: torch.Tensor,
) -> None:
    """Take one gradient step on completions with their advantages, float32[completions]."""
    kept = [i for i in range(len(pairs)) if advantages[i].abs() > 1e-6]
    if not kept:
        return  # every group agrees: nothing to learn from
    logprobs = completion_logprobs(model, tokenizer, [pairs[i] for i in kept])
    lengths = torch.tensor([len(pairs[i][1]) for i in kept])
    token_advantages = advantages[kept].repeat_interleave(lengths)
    # The batch was sampled by these very weights, so the importance ratio of CISPO or PPO is 1.
    loss = -(token_advantages * logprobs).mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def load_with_adapter(
    directory: Path, seed: int, learning_rate: float
) -> tuple[Any, Any, torch.optim.Optimizer]:
    """Return (model with a fresh LoRA adapter, tokenizer, optimizer), as the backend makes them."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    base = AutoModelForCausalLM.from_pretrained(directory)
    torch.manual_seed(seed)
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear")
    model = get_peft_model(base, lora)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    return model, tokenizer, optimizer


def train(directory: Path, seed: int, steps: int, learning_rate: float) -> Run:
    """Run the whole job once."""
    started = time.monotonic()
    model, tokenizer, optimizer = load_with_adapter(directory, seed, learning_rate)
    exact = []
    for step in range(steps + 1):
        probabilities = answer_probabilities(model, tokenizer, VAL_PHRASINGS)
        exact.append(float(accuracies(probabilities).mean()))
        if step < steps:
            train_step(model, tokenizer, optimizer)
    sampled = sampled_accuracy(model, tokenizer, VAL_PHRASINGS, count=256)
    return Run(exact, sampled, time.monotonic() - started)


def main() -> None:
    """Run all seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seeds", type=int, default=8, help="seeds 0 .. N-1 are run")
    parser.add_argument("--target", type=float, default=0.97)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    shown = [step for step in CHECKPOINTS if step <= args.steps]
    heads = "".join(f"{f'step {step}':>9}" for step in [0, *shown])
    print(f"seed{heads}   at {args.target} from   sampled at the end   seconds")
    runs = []
    for seed in range(args.seeds):
        run = train(args.model, seed, args.steps, args.learning_rate)
        runs.append(run)
        reached = next((i for i, a in enumerate(run.exact) if a >= args.target), None)
        values = "".join(f"{run.exact[step]:9.3f}" for step in [0, *shown])
        print(f"{seed:4}{values}{reached!s:>15}{run.sampled:21.3f}{run.seconds:10.1f}", flush=True)
    worst = min(run.exact[-1] for run in runs)
    print(f"worst of {args.seeds} seeds after {args.steps} steps: {worst:.3f}")
    assert worst >= args.target, f"a seed ended at {worst:.3f}, below {args.target}"


if __name__ == "__main__":
    main()

"""Build the weights of the built-in base model `builtin:guess` from a fixed seed.

    python -m scripts.build_guess_model [--seed S] [--out DIR]

It is the model of `builtin:letters` with another tokenizer, template and teacher, for
`examples/guess_the_number.py`: several turns, each a call of a tool.

How it is taught, said plainly: cross entropy on a noisy teacher. The form of a call is taught without noise. The
number in it halves what the answers so far leave possible in 30% of the cases, and is otherwise any of the
eight, be it possible or not. So the base model knows the format and half-knows the task; reinforcement learning
sharpens what is there. As for the letters, one further question is taught without noise and used nowhere else
("Guess 5."), so that the model has a way of being sure of a number.

Every fixed piece of the conversation is one token, and the number is the only token of a call that is a choice.
"""

from __future__ import annotations

import argparse
import random
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from transformers.utils import logging as transformers_logging

from examples.guess_the_number import MAX_GUESSES, NUMBERS, QUESTION, TOOLS, guess, reward
from scripts.build_base_model import (
    IM_END,
    build_tokenizer,
    build_untrained_model,
    minimise,
    next_token_logprobs,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

History: TypeAlias = tuple[tuple[int, str], ...]
"""The guesses of a game so far, each with its answer."""

OUT = Path(__file__).parents[1] / "src/backends/art_local/base_models/guess"
BASE_SEED = 0

WARM_UP_STEPS = 600
WARM_UP_LEARNING_RATE = 3e-3
GAMES = 48  # played by the teacher for each step
TEACHER_IS_SURE = 0.3  # else uniform over the eight numbers
SURE_QUESTION = "Guess {}."

REWARD_BAND = (0.45, 0.6)
MAX_MALFORMED = 0.01

# A call is rendered as the model writes it, and every turn is closed before the next begins, so a longer
# conversation always starts with the tokens of a shorter one. Of a tool only what is told to a model is shown,
# in one order: engines pass tools on with keys added or moved.
CHAT_TEMPLATE = """\
{%- if tools %}
  {{- '<|im_start|>system\\n' }}
  {%- for tool in tools %}
    {%- set function = tool.function %}
    {{- {'name': function.name, 'description': function.description, 'parameters': function.parameters}
        | tojson(sort_keys=true) + '\\n' }}
  {%- endfor %}
  {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
  {{- '<|im_start|>' + message.role + '\\n' }}
  {%- if message.content is string %}
    {{- message.content }}
  {%- else %}
    {%- for part in message.content or [] %}{{- part.text or '' }}{%- endfor %}
  {%- endif %}
  {%- for call in message.tool_calls or [] %}
    {%- set arguments = call.function.arguments %}
    {{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
    {{- arguments if arguments is string else arguments | tojson }}
    {{- '}\\n</tool_call>' }}
  {%- endfor %}
  {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

CALL_HEAD = '<tool_call>\n{"name": "guess", "arguments": {"number": '
CALL_TAIL = "}}\n</tool_call>"
ROLES = ("system", "user", "assistant", "tool")
ANSWERS = ("higher", "lower", "correct")


def render(
    tokenizer: Any, messages: list[dict[str, Any]], tools: Sequence[Any] | None = TOOLS
) -> str:
    """Render messages, up to where the assistant begins to speak."""
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True
    )
    return text


def build_guess_tokenizer() -> Any:
    """Return a byte tokenizer with a token for each fixed piece of the conversation."""
    shown = render(build_tokenizer(CHAT_TEMPLATE), [{"role": "user", "content": ""}])
    tool = shown.removeprefix("<|im_start|>system\n").partition(IM_END)[0]
    roles = [f"{role}\n" for role in ROLES]
    return build_tokenizer(CHAT_TEMPLATE, [CALL_HEAD, CALL_TAIL, tool, QUESTION, *roles, *ANSWERS])


def conversation(history: History, question: str = QUESTION) -> list[dict[str, Any]]:
    """Return the messages of a game, as an engine hands them to the template."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for i, (number, answer) in enumerate(history):
        function = {"name": "guess", "arguments": {"number": number}}
        call = {"id": f"call_{i}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{i}", "content": answer},
        ]
    return messages


class Prompts:
    """Token ids of what the model is shown and of what it answers.

    Args:
        tokenizer: The tokenizer of the model.
    """

    def __init__(self, tokenizer: Any) -> None:
        def of_game(history: History, question: str = QUESTION) -> list[int]:
            text = render(tokenizer, conversation(history, question))
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
            return ids

        self.of_game = lru_cache(maxsize=None)(of_game)
        self.calls: dict[int, list[int]] = {
            number: tokenizer.encode(f"{CALL_HEAD}{number}{CALL_TAIL}{IM_END}")
            for number in NUMBERS
        }
        self.number_ids = [self.calls[number][1] for number in NUMBERS]


def possible(history: History) -> list[int]:
    """Return the numbers that no answer excludes."""
    return [n for n in NUMBERS if all(guess(n, number) == answer for number, answer in history)]


def teacher(history: History) -> list[float]:
    """Return the probability of each number as the next guess."""
    left = possible(history)
    middle = {left[(len(left) - 1) // 2], left[len(left) // 2]}
    noise = (1 - TEACHER_IS_SURE) / len(NUMBERS)
    return [noise + TEACHER_IS_SURE * (n in middle) / len(middle) for n in NUMBERS]


def play(rng: random.Random, limit: int) -> list[History]:
    """Let the teacher play a game; returns what it saw at each of its turns."""
    secret = rng.choice(NUMBERS)
    seen: list[History] = [()]
    while len(seen) < limit:
        (number,) = rng.choices(NUMBERS, teacher(seen[-1]))
        if number == secret:
            break
        seen.append((*seen[-1], (number, guess(secret, number))))
    return seen


def warm_up(model: Any, tokenizer: Any, seed: int) -> None:
    """Teach the form of a call and, with noise, to halve.

    Each step shows the turns of games that the teacher plays. The number is taught with the teacher's whole
    distribution, which is the expectation over its noise; all else is certain.
    """
    rng = random.Random(seed)
    prompts = Prompts(tokenizer)
    sure = [(prompts.of_game((), SURE_QUESTION.format(n)), n) for n in NUMBERS]
    sure_targets = torch.eye(len(NUMBERS))
    sure_weights = torch.full([len(NUMBERS)], 0.5 / len(NUMBERS))

    def loss() -> torch.Tensor:
        seen = [history for _ in range(GAMES) for history in play(rng, MAX_GUESSES)]
        # What stands after the number is shown with a number that is drawn evenly.
        pairs = [(prompts.of_game(h), prompts.calls[rng.choice(NUMBERS)]) for h in seen]
        pairs += [(prompt, prompts.calls[number]) for prompt, number in sure]
        targets = torch.cat([torch.tensor([teacher(h) for h in seen]), sure_targets])
        weights = torch.cat([torch.full([len(seen)], 0.5 / len(seen)), sure_weights])
        logprobs = next_token_logprobs(model, tokenizer, pairs).view(len(pairs), 4, -1)
        head, number, tail, end = logprobs.unbind(1)
        some_call = prompts.calls[NUMBERS[0]]
        certain = head[:, some_call[0]] + tail[:, some_call[2]] + end[:, some_call[3]]
        return -(weights * ((targets * number[:, prompts.number_ids]).sum(1) + certain)).sum()

    minimise(model, loss, WARM_UP_STEPS, WARM_UP_LEARNING_RATE)


def all_histories() -> list[History]:
    """Return every state of a game in which the model has to guess, shorter ones first."""
    found: list[History] = [()]
    for history in found:
        if len(history) < MAX_GUESSES - 1:
            found += [
                (*history, (number, answer))
                for number in NUMBERS
                for answer in ("higher", "lower")
                if possible((*history, (number, answer)))
            ]
    return found


@torch.no_grad()
def call_probabilities(model: Any, tokenizer: Any) -> dict[History, list[float]]:
    """Return P(a well-formed call with that number | history) at temperature 1 of each number.

    Computed, not sampled. That the call is closed well is looked at for one number in each state, in turn.
    """
    prompts = Prompts(tokenizer)
    histories = all_histories()
    result: dict[History, list[float]] = {}
    for start in range(0, len(histories), 256):
        batch = histories[start : start + 256]
        calls = [prompts.calls[NUMBERS[i % len(NUMBERS)]] for i in range(len(batch))]
        pairs = [(prompts.of_game(h), call) for h, call in zip(batch, calls, strict=True)]
        probabilities = next_token_logprobs(model, tokenizer, pairs).exp().view(len(batch), 4, -1)
        head, number, tail, end = probabilities.unbind(1)
        formed = head[:, calls[0][0]] * tail[:, calls[0][2]] * end[:, calls[0][3]]
        rows = formed[:, None] * number[:, prompts.number_ids]
        result |= dict(zip(batch, rows.tolist(), strict=True))
    return result


def expected(
    probabilities: dict[History, list[float]], worth: Callable[[int], float] = reward
) -> float:
    """Return the expectation of what a game is worth, over all hidden numbers and the model's choices.

    Args:
        probabilities: From `call_probabilities`.
        worth: What a game is worth by the number of guesses in which it was won; a lost one is worth 0.
    """

    def value(secret: int, history: History) -> float:
        if len(history) == MAX_GUESSES:
            return 0.0
        total = 0.0
        for number, probability in zip(NUMBERS, probabilities[history], strict=True):
            answer = guess(secret, number)
            if answer == "correct":
                total += probability * worth(len(history) + 1)
            else:
                total += probability * value(secret, (*history, (number, answer)))
        return total

    return sum(value(secret, ()) for secret in NUMBERS) / len(NUMBERS)


def check(model: Any, tokenizer: Any) -> None:
    """Print what the model can do, and fail unless it is a base that RL can sharpen."""
    probabilities = call_probabilities(model, tokenizer)
    mean = expected(probabilities)
    malformed = 1 - min(sum(row) for row in probabilities.values())
    print(f"parameters           {sum(p.numel() for p in model.parameters()):,}")
    print(f"mean reward          {mean:.3f}; found {expected(probabilities, lambda _: 1.0):.3f}")
    print(
        f"malformed            {malformed:.4f} at worst, of {len(probabilities):,} states of a game"
    )
    low, high = REWARD_BAND
    assert low <= mean <= high, f"the mean reward {mean:.3f} is outside {REWARD_BAND}"
    assert malformed <= MAX_MALFORMED, f"{malformed:.3f} of the calls are malformed"


def build(seed: int) -> tuple[Any, Any]:
    """Return (model, tokenizer) after the warm-up."""
    tokenizer = build_guess_tokenizer()
    model = build_untrained_model(tokenizer, seed)
    model.train()
    warm_up(model, tokenizer, seed)
    return model.eval(), tokenizer


def main() -> None:
    """Build, check, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=BASE_SEED)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    # One thread: sums are then taken in one order, and the bytes come out the same.
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    model, tokenizer = build(args.seed)
    check(model, tokenizer)
    write(model, tokenizer, args.out)


if __name__ == "__main__":
    main()

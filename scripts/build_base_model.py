"""Build the weights of the built-in base model `builtin:letters` from a fixed seed.

    python -m scripts.build_base_model [--seed S] [--out DIR]

The result is a plain transformers checkpoint: a Qwen3ForCausalLM of 120k parameters with a byte-level
tokenizer, so that any engine can load and serve it.

How it is taught, said plainly: cross entropy on a noisy teacher, which answers the letter that it is asked
for in 40% of the cases and otherwise any of the four, over the phrasings of training *and* of validation. So
the base model knows the format and half-knows the task, and reinforcement learning sharpens what is there.
One more phrasing, which neither training nor validation uses, is taught without noise: a model that was
never sure of anything has no way of being sure, and sharpening it lifts every other token along with the
right one. For the same reason the gain of the final norm starts at 3: logits are bounded by |final norm| x
|embedding|, and a LoRA adapter trains neither.

Base seeds differ, hence the model is a fixed artefact, checked here (accuracy, malformed answers) and in
`scripts/check_base_model.py` (that reinforcement learning works on it, whatever the seed).
"""

from __future__ import annotations

import argparse
import hashlib
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils import logging as transformers_logging

from art_local.letters import LETTERS, TRAIN_PHRASINGS, VAL_PHRASINGS, Scenario, scenarios

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OUT = Path(__file__).parents[1] / "src/backends/art_local/base_models/letters"
BASE_SEED = 0

PAD, IM_START, IM_END, END_OF_TEXT = "<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPECIAL_TOKENS = [PAD, IM_START, IM_END, END_OF_TEXT]
MAX_POSITIONS = 2048

WARM_UP_STEPS = 300
WARM_UP_LEARNING_RATE = 3e-3
TEACHER_IS_SURE = (
    0.4  # else uniform over the four letters: right in 0.4 + 0.6 / 4 = 55% of all answers
)
SURE_PHRASING = "Repeat {}."
FINAL_NORM_GAIN = 3.0

ACCURACY_BAND = (0.45, 0.65)
MAX_MALFORMED = 0.02

# Every turn is closed before the next begins, so a longer conversation always starts with the tokens of a
# shorter one. Content may be a string, a list of text parts, or missing.
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- elif content -%}
    {%- for part in content -%}{{- part.text or '' -}}{%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- if tools %}
  {{- '<|im_start|>system\\n# Tools\\n' }}
  {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
  {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
  {{- '<|im_start|>' + message.role + '\\n' + text(message.content) }}
  {%- for call in message.tool_calls or [] %}
    {%- set arguments = call.function.arguments %}
    {{- '<tool_call>' + call.function.name + '\\n' }}
    {{- arguments if arguments is string else arguments | tojson }}
    {{- '</tool_call>' }}
  {%- endfor %}
  {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def build_tokenizer(chat_template: str = CHAT_TEMPLATE, pieces: Sequence[str] = ()) -> Any:
    """Return a tokenizer whose id of a byte is the byte's value, with four special tokens from 256 on.

    Args:
        chat_template: Renders conversations.
        pieces: Longer texts that become one token each, from 260 on. They are ordinary tokens: special ones
            are left out of the text that engines return.
    """
    vocabulary = {char: byte for byte, char in bytes_to_unicode().items()}
    vocabulary |= {token: 256 + i for i, token in enumerate(SPECIAL_TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in pieces])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=PAD,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    return fast


def build_untrained_model(tokenizer: Any, seed: int) -> Any:
    """Return the model before the warm-up."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    # transformers leaves the row of the padding token at zero; every row here is an ordinary one.
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.02)
    torch.nn.init.constant_(model.model.norm.weight, FINAL_NORM_GAIN)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def prompt_ids(tokenizer: Any, scenario: Scenario) -> list[int]:
    """Return the tokens of a question, up to where the assistant begins to speak."""
    messages = [{"role": "user", "content": scenario.question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)  # type: ignore[no-any-return]


def next_token_logprobs(
    model: Any, tokenizer: Any, pairs: Sequence[tuple[list[int], list[int]]]
) -> torch.Tensor:
    """Return the distributions that completion tokens are drawn from: float32[completion tokens, vocabulary].

    Args:
        model: Any causal language model.
        tokenizer: Gives the padding token.
        pairs: (prompt ids, completion ids) of each sequence; the results stand one after another.
    """
    width = max(len(prompt) + len(completion) for prompt, completion in pairs)
    ids = torch.full((len(pairs), width), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    predicts = torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(pairs):
        end = len(prompt) + len(completion)
        ids[row, :end] = torch.tensor(prompt + completion)
        mask[row, :end] = 1
        predicts[row, len(prompt) - 1 : end - 1] = True
    logits: torch.Tensor = model(input_ids=ids, attention_mask=mask).logits[predicts]
    return logits.float().log_softmax(-1)


def completion_logprobs(
    model: Any, tokenizer: Any, pairs: Sequence[tuple[list[int], list[int]]]
) -> torch.Tensor:
    """Return the logprobs of all completion tokens, one sequence after another: float32[completion tokens]."""
    targets = torch.tensor([token for _, completion in pairs for token in completion])
    return next_token_logprobs(model, tokenizer, pairs).gather(1, targets[:, None])[:, 0]


def warm_up(model: Any, tokenizer: Any, seed: int) -> None:
    """Teach the model the format and, with noise, the task.

    Each step shows every question once, with an answer drawn for it. The first token is taught with the
    teacher's whole distribution over the letters, which is the expectation over its noise; the second token
    is always the end of the turn.
    """
    rng = random.Random(seed)
    questions = scenarios((*TRAIN_PHRASINGS, *VAL_PHRASINGS, SURE_PHRASING))
    prompts = [prompt_ids(tokenizer, question) for question in questions]
    letter_ids = tokenizer.encode(LETTERS)
    asked = torch.tensor([LETTERS.index(question.letter) for question in questions])
    sure = torch.tensor(
        [1.0 if q.phrasing == SURE_PHRASING else TEACHER_IS_SURE for q in questions]
    )
    right = torch.nn.functional.one_hot(asked, len(LETTERS))
    teacher = sure[:, None] * right + (1 - sure[:, None]) / len(LETTERS)

    def loss() -> torch.Tensor:
        answers = [[rng.choice(letter_ids), tokenizer.eos_token_id] for _ in questions]
        logprobs = next_token_logprobs(model, tokenizer, list(zip(prompts, answers, strict=True)))
        first, second = logprobs.view(len(questions), 2, -1).unbind(1)
        return (
            -(teacher * first[:, letter_ids]).sum(1).mean()
            - second[:, tokenizer.eos_token_id].mean()
        )

    minimise(model, loss, WARM_UP_STEPS, WARM_UP_LEARNING_RATE)


def minimise(
    model: Any, loss: Callable[[], torch.Tensor], steps: int, learning_rate: float
) -> None:
    """Take gradient steps on a loss that is drawn anew for each, with a learning rate that falls to zero."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        value = loss()
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def answer_probabilities(model: Any, tokenizer: Any, phrasings: Sequence[str]) -> torch.Tensor:
    """Return P(answer | question) at temperature 1, exactly: float32[phrasing, letter asked, answer].

    An answer is one letter and the end of the turn; what is missing to 1 over the last axis is malformed.
    """
    pairs = [
        (prompt_ids(tokenizer, question), tokenizer.encode(answer + IM_END))
        for question in scenarios(phrasings)
        for answer in LETTERS
    ]
    logprobs = completion_logprobs(model, tokenizer, pairs).view(-1, 2).sum(1)
    return logprobs.exp().view(len(phrasings), len(LETTERS), len(LETTERS))


def accuracies(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the chance of a right answer of each question: float32[phrasing, letter]."""
    return probabilities.diagonal(dim1=1, dim2=2)


@torch.no_grad()
def sample(
    model: Any, tokenizer: Any, prompts: Sequence[list[int]], max_new_tokens: int = 8
) -> list[list[int]]:
    """Sample one completion a prompt at temperature 1, up to and with the end of the turn."""
    width = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=max_new_tokens,
    )
    return [_until_end(row, tokenizer.eos_token_id) for row in out[:, width:].tolist()]


def _until_end(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end) + 1] if end in ids else ids


def sampled_accuracy(model: Any, tokenizer: Any, phrasings: Sequence[str], count: int) -> float:
    """Return the share of right answers in `count` samples at temperature 1, spread over all questions."""
    questions = scenarios(phrasings)
    questions = questions * (count // len(questions))
    completions = sample(model, tokenizer, [prompt_ids(tokenizer, q) for q in questions])
    right: list[bool] = [
        completion == tokenizer.encode(question.letter + IM_END)
        for question, completion in zip(questions, completions, strict=True)
    ]
    return sum(right) / len(right)


def build(seed: int) -> tuple[Any, Any]:
    """Return (model, tokenizer) after the warm-up."""
    tokenizer = build_tokenizer()
    model = build_untrained_model(tokenizer, seed)
    model.train()
    warm_up(model, tokenizer, seed)
    return model.eval(), tokenizer


def check(model: Any, tokenizer: Any) -> None:
    """Print what the model can do, and fail unless it is a base that RL can sharpen."""
    low, high = ACCURACY_BAND
    print(f"parameters           {sum(p.numel() for p in model.parameters()):,}")
    for name, phrasings in (("train", TRAIN_PHRASINGS), ("val", VAL_PHRASINGS)):
        probabilities = answer_probabilities(model, tokenizer, phrasings)
        right = accuracies(probabilities)
        malformed = 1 - float(probabilities.sum(2).mean())
        sampled = sampled_accuracy(model, tokenizer, phrasings, count=2048)
        print(
            f"{name:5} right answers  {float(right.mean()):.3f} exactly, {sampled:.3f} of 2,048 sampled; "
            f"by question {float(right.min()):.3f} to {float(right.max()):.3f}; malformed {malformed:.4f}"
        )
        assert low <= float(right.mean()) <= high, f"{name} accuracy is outside {ACCURACY_BAND}"
        assert low <= sampled <= high, f"sampled {name} accuracy is outside {ACCURACY_BAND}"
        assert malformed <= MAX_MALFORMED, f"{malformed:.3f} of the answers are malformed"


def write(model: Any, tokenizer: Any, out: Path) -> None:
    """Write the checkpoint, and print the hash and the size of each file."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    for path in sorted(out.iterdir()):
        path.chmod(0o644)  # weights are written readable by their owner alone
        content = path.read_bytes()
        print(f"{hashlib.sha256(content).hexdigest()[:16]}  {len(content):>8,}  {path.name}")


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

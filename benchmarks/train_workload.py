"""What every trainer is measured on: the same trajectories, model shape and count of useful work, from fixed seeds.

Uses the standard library alone, so that it can be imported with any contestant's interpreter.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

RANK, ALPHA = 8, 16  # of the adapter on the CPU


@dataclass(frozen=True)
class Shape:
    """A Qwen3 by its sizes; the weights are random.

    Attributes:
        vocabulary: Tokens.
        width: Size of the residual stream.
        layers: Number of blocks.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Size of a head.
        feed_forward: Inner size of the gated feed-forward layer.
        max_context: Longest sequence.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    max_context: int = 4096

    @property
    def body_parameters(self) -> int:
        """Weights of the blocks' linear layers, through which every token goes."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim * self.width
        return self.layers * (attention + 3 * self.width * self.feed_forward)

    @property
    def head_parameters(self) -> int:
        """Weights of the output layer, which only the token before an action token needs."""
        return self.vocabulary * self.width

    def config(self) -> dict[str, Any]:
        """Return the keyword arguments of transformers' `Qwen3Config`."""
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.feed_forward,
            "max_position_embeddings": self.max_context,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": self.vocabulary - 1,
            "pad_token_id": self.vocabulary - 2,
        }


@dataclass(frozen=True)
class Sample:
    """One trajectory of one turn.

    Attributes:
        prompt: Token ids that are context.
        completion: Token ids that are trained.
        advantage: Of the whole trajectory.
        logprobs: Of the completion's tokens at sampling time; NaN counts as a ratio of 1.
    """

    prompt: list[int]
    completion: list[int]
    advantage: float
    logprobs: list[float]

    def as_sequence(self) -> dict[str, Any]:
        """Return the fields of the kit's `TrainingSequence`."""
        before = len(self.prompt)
        return {
            "token_ids": [*self.prompt, *self.completion],
            "trained": [False] * before + [True] * len(self.completion),
            "logprobs": [0.0] * before + self.logprobs,
            "temperatures": [1.0] * (before + len(self.completion)),
            "advantage": self.advantage,
        }


@dataclass(frozen=True)
class Workload:
    """The trajectories of one train call; those of a group have one prompt."""

    groups: list[list[Sample]]

    def samples(self) -> list[Sample]:
        """Return all trajectories, group after group."""
        return [sample for group in self.groups for sample in group]

    @property
    def num_tokens(self) -> int:
        """Prompt and completion tokens of all trajectories: the logical size, whatever is shared or padded."""
        return sum(len(s.prompt) + len(s.completion) for s in self.samples())

    @property
    def num_action_tokens(self) -> int:
        """Completion tokens."""
        return sum(len(s.completion) for s in self.samples())

    @property
    def num_shared_tokens(self) -> int:
        """Tokens that are left when the prompt of a group is taken once."""
        return self.num_action_tokens + sum(len(group[0].prompt) for group in self.groups)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Workload:
        """Read what `save` wrote."""
        groups = json.loads(path.read_text())["groups"]
        return cls([[Sample(**sample) for sample in group] for group in groups])


def make_workload(
    shape: Shape, prompt: int, completions: Sequence[int], *, groups: int = 8, size: int = 8
) -> Workload:
    """Draw random trajectories, always the same for the same arguments.

    Args:
        shape: Whose vocabulary is used.
        prompt: Tokens of each prompt.
        completions: Lengths that are drawn from.
        groups: Number of groups.
        size: Trajectories of each.
    """
    draw, draw_advantages = random.Random(0), random.Random(1)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(shape.vocabulary) for _ in range(count)]

    def group() -> Iterator[Sample]:
        prompt_ids = tokens(prompt)
        for advantage in _centred([draw_advantages.gauss(0, 1) for _ in range(size)]):
            completion = tokens(draw.choice(completions))
            yield Sample(prompt_ids, completion, advantage, [math.nan] * len(completion))

    return Workload([list(group()) for _ in range(groups)])


def _centred(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    return [value - mean for value in values]


def useful_flops(shape: Shape, tokens: int, action_tokens: int, *, per_weight: int) -> float:
    """Return the floating-point operations that a step cannot do without.

    Those of the linear layers for each token, and of the output layer for each action token. Attention, the
    adapter and recomputation are not counted, so the share of the matmul rate that comes from it is an
    understatement.

    Args:
        shape: The model.
        tokens: Tokens that are counted: all, or those that were really computed.
        action_tokens: Completion tokens.
        per_weight: 4 for LoRA (forward, and backward towards the inputs), 6 where the gradient of each weight
            is needed as well.
    """
    return per_weight * float(
        shape.body_parameters * tokens + shape.head_parameters * action_tokens
    )


CPU_SHAPE = Shape(
    vocabulary=320, width=256, layers=4, heads=4, kv_heads=2, head_dim=64, feed_forward=512
)


def cpu_workload() -> Workload:
    """Return 8 groups of 8 with prompts of 128 tokens: 11,272 tokens, 3,080 of them action tokens."""
    return make_workload(CPU_SHAPE, 128, (8, 16, 24, 32, 48, 64, 96, 128))

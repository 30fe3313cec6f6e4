"""From trajectories to token sequences that a trainer can use, without ever tokenising anything.

Every model turn (a Choice) carries the exact token ids of its prompt and of its completion, as the engine saw
and sampled them. Rendering the messages again would give other ids: templates strip thinking, re-serialise tool
calls, and the same text has more than one tokenisation. So the ids are taken as they are:

1. The turns of one history are walked in order. Where the prompt of a turn starts with everything that is in
   the current sequence, the rest of the prompt (tool results, the next user message) is appended untrained,
   then the completion, trained.
2. Where it does not (the template changed an earlier turn, a context was compacted), a new sequence begins with
   this turn's prompt. Nothing is patched and nothing raises.
3. Additional histories give more sequences with the same advantage. A turn that several histories share is
   trained once, where it occurs first; later it is context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.adapter_kit.advantages import group_advantages, is_trainable
from art.errors import UntrainableTrajectoryError
from art.messages import is_choice, normalise_item

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from openai.types.chat.chat_completion import Choice

    from art.trajectories import Trajectory, TrajectoryGroup
    from art.types import MessagesAndChoices

# Engines write -9999 where they have no logprob, and rounding can lift log(1) a little above zero.
_LOWEST_LOGPROB = -1000.0
_HIGHEST_LOGPROB = 1e-2

# Logits are divided by it: at lower ones rounding alone decides what the ratio to the sampler is.
_LOWEST_TEMPERATURE = 0.01

_MAX_ID = 2**63 - 1
_MAX_SINGLE_PRECISION = 3.4028234e38

_ID_PREFIX = "token_id:"

_WHAT_TO_DO = (
    "append `response.choices[0]` as the model's own endpoint returned it (a rebuilt Choice, or one from another "
    "provider, has no token ids)"
)


@dataclass
class TrainingSequence:
    """One stretch of tokens, as the engine saw it; all lists have one entry for each token.

    Attributes:
        token_ids: Prompt and completion tokens.
        trained: Whether the token is a target of the loss. Never true for position 0, which has no context.
        logprobs: Log probability under the policy that sampled the token, in nats; 0.0 where the token is not
            trained, NaN where it is trained without one (the ratio then counts as 1).
        temperatures: Sampling temperature that the logprobs belong to; 1.0 where the token is not trained.
        advantage: Advantage of the whole rollout.
        num_masked: Generated tokens that are left out of the loss because their logprob is unusable.
    """

    token_ids: list[int]
    trained: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    advantage: float
    num_masked: int = 0


def build_sequences(
    groups: Sequence[TrajectoryGroup],
    *,
    scale_rewards: bool = True,
    allow_training_without_logprobs: bool = False,
) -> list[TrainingSequence]:
    """Turn groups into training sequences; groups without a training signal give none.

    Every trajectory of every group is checked before anything else, so that a rollout without tokens is told
    as what it is, whatever its reward. Neither groups nor trajectories are changed.

    Args:
        groups: The groups of one train call. Trajectories whose reward is not finite are left out.
        scale_rewards: Divide advantages by the group's standard deviation.
        allow_training_without_logprobs: Accept turns without logprobs, as if sampled from the policy in
            training.

    Returns:
        Sequences in the order of groups, trajectories and turns.

    Raises:
        UntrainableTrajectoryError: A trajectory has no model turn, a turn lacks token ids or logprobs or has such
            that cannot be, or an advantage is too large for single precision.
    """
    histories_by_trajectory = [
        [
            _read_histories(
                trajectory, f"group {g}, trajectory {t}", allow_training_without_logprobs
            )
            for t, trajectory in enumerate(group.trajectories)
        ]
        for g, group in enumerate(groups)
    ]
    sequences: list[TrainingSequence] = []
    for g, (group, histories_of) in enumerate(zip(groups, histories_by_trajectory, strict=True)):
        if not is_trainable(group):
            continue
        scored = [
            t for t, rollout in enumerate(group.trajectories) if math.isfinite(rollout.reward)
        ]
        rewards = [group.trajectories[t].reward for t in scored]
        advantages = group_advantages(rewards, scale_by_std=scale_rewards)
        for t, reward, advantage in zip(scored, rewards, advantages, strict=True):
            _check_advantage(advantage, reward, f"group {g}, trajectory {t}")
            sequences += _merge_histories(histories_of[t], advantage)
    return sequences


def trajectory_sequences(
    trajectory: Trajectory, advantage: float, *, allow_training_without_logprobs: bool = False
) -> list[TrainingSequence]:
    """Turn one trajectory into training sequences.

    Raises:
        UntrainableTrajectoryError: It has no model turn, or a turn lacks token ids or logprobs.
    """
    histories = _read_histories(trajectory, "the trajectory", allow_training_without_logprobs)
    return _merge_histories(histories, advantage)


def num_action_tokens(groups: Iterable[TrajectoryGroup]) -> int:
    """Count every generated token of a train call, each once: the denominator of a token-mean loss.

    Tokens of groups without a signal and tokens whose logprob is unusable count too. A mask can then only make
    a step smaller, and a batch with few trainable groups makes a small step instead of a full one.

    Raises:
        UntrainableTrajectoryError: A turn lacks token ids.
    """
    return sum(
        sequence.trained.count(True) + sequence.num_masked
        for group in groups
        for trajectory in group
        for sequence in trajectory_sequences(trajectory, 0.0, allow_training_without_logprobs=True)
    )


def token_counts(sequences: Iterable[TrainingSequence]) -> dict[str, float]:
    """Count what a batch holds, under the names that a backend may report as metrics."""
    sequences = list(sequences)
    return {
        "num_sequences": float(len(sequences)),
        "num_tokens": float(sum(len(s.token_ids) for s in sequences)),
        "num_trained_tokens": float(sum(s.trained.count(True) for s in sequences)),
        "num_masked_tokens": float(sum(s.num_masked for s in sequences)),
    }


def _check_advantage(advantage: float, reward: float, where: str) -> None:
    if not abs(advantage) <= _MAX_SINGLE_PRECISION:  # NaN neither
        raise UntrainableTrajectoryError(
            f"{where}: the reward {reward:g} gives the advantage {advantage:g}, too large for single precision; give "
            "smaller rewards"
        )


@dataclass(frozen=True)
class _Turn:
    """What the engine recorded about one completion. A logprob of None is unusable, NaN is unknown."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float | None]
    temperature: float


def _merge_histories(histories: list[list[_Turn]], advantage: float) -> list[TrainingSequence]:
    sequences: list[TrainingSequence] = []
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for turns in histories:
        sequence = TrainingSequence([], [], [], [], advantage)
        for turn in turns:
            shared = len(sequence.token_ids)
            if turn.prompt_ids[:shared] != sequence.token_ids:
                sequences.append(sequence)
                sequence = TrainingSequence([], [], [], [], advantage)
                shared = 0
            _append_context(sequence, turn.prompt_ids[shared:])
            key = (tuple(turn.prompt_ids), tuple(turn.token_ids))
            if key in seen:
                _append_context(sequence, turn.token_ids)
            else:
                seen.add(key)
                _append_completion(sequence, turn)
        sequences.append(sequence)
    # A branch that adds no turn of its own has nothing to train; a masked turn is kept, to be counted.
    return [s for s in sequences if s.num_masked or any(s.trained)]


def _append_context(sequence: TrainingSequence, token_ids: list[int]) -> None:
    sequence.token_ids += token_ids
    sequence.trained += [False] * len(token_ids)
    sequence.logprobs += [0.0] * len(token_ids)
    sequence.temperatures += [1.0] * len(token_ids)


def _append_completion(sequence: TrainingSequence, turn: _Turn) -> None:
    sequence.token_ids += turn.token_ids
    for logprob in turn.logprobs:
        sequence.trained.append(logprob is not None)
        sequence.logprobs.append(0.0 if logprob is None else logprob)
        sequence.temperatures.append(1.0 if logprob is None else turn.temperature)
    sequence.num_masked += turn.logprobs.count(None)


def _read_histories(
    trajectory: Trajectory, where: str, allow_no_logprobs: bool
) -> list[list[_Turn]]:
    histories = [_read_turns(trajectory.messages_and_choices, where, allow_no_logprobs)]
    for h, history in enumerate(trajectory.additional_histories):
        name = f"{where}, additional history {h}"
        histories.append(_read_turns(history.messages_and_choices, name, allow_no_logprobs))
    if not any(histories):
        raise UntrainableTrajectoryError(
            f"{where}: there is no model turn, so there is nothing to train on; {_WHAT_TO_DO} to "
            "`messages_and_choices`, not only its text as an assistant message"
        )
    return histories


def _read_turns(items: MessagesAndChoices, where: str, allow_no_logprobs: bool) -> list[_Turn]:
    turns: list[_Turn] = []
    for i, raw in enumerate(items):
        # What was appended after construction is still as the user had it.
        item = normalise_item(raw, f"{where}, messages_and_choices[{i}]")
        if is_choice(item):
            name = f"{where}, turn {len(turns)} (messages_and_choices[{i}])"
            turns.append(_read_turn(item, name, allow_no_logprobs))
    return turns


def _read_turn(choice: Choice, where: str, allow_no_logprobs: bool) -> _Turn:
    extras = choice.model_extra or {}
    content = (choice.logprobs.content if choice.logprobs else None) or []
    prompt_ids = _as_ids(extras.get("prompt_token_ids"))
    if not prompt_ids:
        raise UntrainableTrajectoryError(
            f"{where}: the Choice has no `prompt_token_ids`, the ids of the prompt it answered; {_WHAT_TO_DO}"
        )
    token_ids = _as_ids(extras.get("token_ids"))
    if token_ids is None:
        token_ids = _ids_from_tokens([entry.token for entry in content])
    if token_ids is None:
        raise UntrainableTrajectoryError(
            f"{where}: the Choice has no `token_ids`, and its logprobs have no tokens of the form "
            f"`{_ID_PREFIX}123` either; {_WHAT_TO_DO}"
        )
    for token_id in (min(prompt_ids + token_ids), max(prompt_ids + token_ids)):
        if not 0 <= token_id <= _MAX_ID:
            raise UntrainableTrajectoryError(f"{where}: {token_id} is no token id; {_WHAT_TO_DO}")
    if token_ids and not content:
        if not allow_no_logprobs:
            raise UntrainableTrajectoryError(
                f"{where}: the Choice has no logprobs; ask for them with `logprobs=True` in the request, or set "
                "the train option `allow_training_without_logprobs` to treat its tokens as sampled from the "
                "policy in training"
            )
        logprobs: list[float | None] = [math.nan] * len(token_ids)
    elif len(content) != len(token_ids):
        raise UntrainableTrajectoryError(
            f"{where}: the Choice has {len(token_ids)} token ids but {len(content)} logprobs; {_WHAT_TO_DO}"
        )
    else:
        logprobs = [_usable_logprob(entry.logprob) for entry in content]
    return _Turn(prompt_ids, token_ids, logprobs, _temperature(extras.get("temperature"), where))


def _as_ids(value: Any) -> list[int] | None:
    """Return token ids from a provider's extra, None where it is missing or something else."""
    if isinstance(value, (list, tuple)) and all(isinstance(i, int) for i in value):
        return list(value)
    return None


def _ids_from_tokens(tokens: list[str]) -> list[int] | None:
    """Read ids from tokens spelled `token_id:123`, as vLLM's `return_tokens_as_token_ids` gives them."""
    digits = [token.removeprefix(_ID_PREFIX) for token in tokens if token.startswith(_ID_PREFIX)]
    if not tokens or len(digits) != len(tokens) or not all(d.isdecimal() for d in digits):
        return None
    return [int(d) for d in digits]


def _usable_logprob(value: Any) -> float | None:
    if isinstance(value, (int, float)) and _LOWEST_LOGPROB <= value <= _HIGHEST_LOGPROB:
        return float(value)
    return None  # missing, NaN, infinite or absurd


def _temperature(value: Any, where: str) -> float:
    # Greedy sampling (0) has no distribution of its own; engines then report the logprobs of temperature 1.
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        return 1.0
    if value < _LOWEST_TEMPERATURE:
        raise UntrainableTrajectoryError(
            f"{where}: the Choice was sampled at temperature {value:g}; sample at {_LOWEST_TEMPERATURE:g} or more, or "
            "greedily at 0"
        )
    return float(value)

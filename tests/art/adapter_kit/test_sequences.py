from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

from art.adapter_kit.sequences import (
    TrainingSequence,
    build_sequences,
    num_action_tokens,
    token_counts,
    trajectory_sequences,
)
from art.errors import UntrainableTrajectoryError
from art.trajectories import History, Trajectory, TrajectoryGroup


def choice(
    prompt: list[int], completion: list[int], logprobs: list[Any] | None = None, **extras: Any
) -> Choice:
    """A Choice as an engine returns it; an extra of None is left out."""
    values = [-0.5] * len(completion) if logprobs is None else logprobs
    content = [
        {"token": f"t{i}", "logprob": p, "top_logprobs": []}
        for i, p in zip(completion, values, strict=False)
    ]
    fields: dict[str, Any] = {
        "prompt_token_ids": prompt,
        "token_ids": completion,
        "temperature": 1.0,
        "logprobs": {"content": content},
    } | extras
    return Choice.construct(
        index=0,
        finish_reason="stop",
        message={"role": "assistant", "content": "text"},
        **{name: value for name, value in fields.items() if value is not None},
    )


def trajectory(*turns: Choice, reward: float = 0.0, branches: Any = ()) -> Trajectory:
    """A rollout of these turns, with a user message before each."""
    items: list[Any] = [item for turn in turns for item in ({"role": "user"}, turn)]
    return Trajectory(
        messages_and_choices=items,
        additional_histories=[History(messages_and_choices=list(b)) for b in branches],
        reward=reward,
    )


def trained(sequence: TrainingSequence) -> list[int]:
    """The ids of the trained tokens."""
    return [i for i, t in zip(sequence.token_ids, sequence.trained, strict=True) if t]


# A random rollout: a tree of turns. Every sampled token has a logprob of its own, by which it is told apart.


@dataclass
class Rollout:
    histories: list[list[Choice]] = field(default_factory=list)
    contexts: dict[float, list[int]] = field(default_factory=dict)  # of each sampled token
    ids: dict[float, int] = field(default_factory=dict)
    breaks: int = 0

    def trajectory(self) -> Trajectory:
        return trajectory(*self.histories[0], branches=self.histories[1:])


@st.composite
def rollouts(draw: st.DrawFn, max_branches: int = 3) -> Rollout:
    """Random trees of turns with random prefix breaks, over a small alphabet."""
    rollout = Rollout()
    numbers = itertools.count(1)
    small_ids = st.integers(0, 2)
    for _ in range(draw(st.integers(1, 1 + max_branches))):
        # A branch begins with turns of the first history.
        first = rollout.histories[0] if rollout.histories else []
        turns = first[: draw(st.integers(0, len(first)))]
        extra = turns[-1].model_extra if turns else None
        seen = [*extra["prompt_token_ids"], *extra["token_ids"]] if extra else []
        for _ in range(draw(st.integers(0 if rollout.histories else 1, 4))):
            suffix = draw(st.lists(small_ids, min_size=0 if seen else 1, max_size=3))
            if seen and draw(st.sampled_from([True, False])):
                cut = draw(st.integers(0, len(seen) - 1))
                prompt = [*seen[:cut], 9, *suffix]  # 9 occurs nowhere else, so this is no prefix
                rollout.breaks += 1
            else:
                prompt = seen + suffix
            # The number keeps turns apart that would otherwise be equal by chance.
            completion = [*draw(st.lists(small_ids, max_size=3)), 100 + next(numbers)]
            logprobs = [-next(numbers) / 1024 for _ in completion]
            for i, logprob in enumerate(logprobs):
                rollout.contexts[logprob] = prompt + completion[:i]
                rollout.ids[logprob] = completion[i]
            turns.append(choice(prompt, completion, logprobs))
            seen = prompt + completion
        rollout.histories.append(turns)
    return rollout


@given(rollouts())
def test_every_sampled_token_is_trained_exactly_once(rollout: Rollout) -> None:
    """Ids and logprobs of trained tokens are the server's, each once, over all sequences of a rollout."""
    got = [
        (logprob, token)
        for s in trajectory_sequences(rollout.trajectory(), 1.0)
        for token, is_trained, logprob in zip(s.token_ids, s.trained, s.logprobs, strict=True)
        if is_trained
    ]
    assert sorted(got) == sorted(rollout.ids.items())


@given(rollouts(max_branches=0))
def test_the_order_of_sampling_is_kept(rollout: Rollout) -> None:
    """Within a history trained tokens come in the order in which they were sampled."""
    got = [
        p
        for s in trajectory_sequences(rollout.trajectory(), 1.0)
        for p, t in zip(s.logprobs, s.trained, strict=True)
        if t
    ]
    assert got == list(rollout.ids)


@given(rollouts())
def test_nothing_but_sampled_tokens_is_trained(rollout: Rollout) -> None:
    """Prompt, tool and user tokens carry no logprob and are no target, nor is the first position."""
    for s in trajectory_sequences(rollout.trajectory(), 1.0):
        assert len(s.token_ids) == len(s.trained) == len(s.logprobs) == len(s.temperatures)
        assert not s.trained[0]
        for is_trained, logprob in zip(s.trained, s.logprobs, strict=True):
            assert (logprob in rollout.ids) == is_trained


@given(rollouts())
def test_each_trained_token_stands_behind_the_context_it_was_sampled_from(
    rollout: Rollout,
) -> None:
    """A sequence cut at a trained token is exactly what the server saw."""
    for s in trajectory_sequences(rollout.trajectory(), 1.0):
        for i, is_trained in enumerate(s.trained):
            if is_trained:
                assert s.token_ids[:i] == rollout.contexts[s.logprobs[i]]


@given(rollouts(max_branches=0))
def test_a_new_sequence_begins_at_a_prefix_break_only(rollout: Rollout) -> None:
    """One history gives one sequence more than it has breaks."""
    assert len(trajectory_sequences(rollout.trajectory(), 1.0)) == 1 + rollout.breaks


def test_c130_tool_results_and_generation_prompts_are_context() -> None:
    """In a multi-turn rollout only the generated tokens are trained, the stop token as the server returned it."""
    first = choice([1, 2], [3, 0])
    second = choice([1, 2, 3, 0, 50, 51, 52], [4, 0])
    (sequence,) = trajectory_sequences(trajectory(first, second), 1.5)
    assert sequence.token_ids == [1, 2, 3, 0, 50, 51, 52, 4, 0]
    assert sequence.trained == [False, False, True, True, False, False, False, True, True]
    assert sequence.advantage == 1.5


@pytest.mark.parametrize("num_turns", [8, 128])
def test_c135_many_turns_cost_what_their_tokens_cost(num_turns: int) -> None:
    """Each token of a long rollout is there once, however many prompts it was part of, and no text is looked at."""
    turns, prompt = [], [1, 2, 3]
    for turn in range(num_turns):
        turns.append(choice(prompt, [10 + turn, 0]))
        prompt = [*prompt, 10 + turn, 0, 4, 5]
    rollout = trajectory(*turns)
    for item in rollout.messages_and_choices:
        if isinstance(item, Choice):
            item.message.content = "some text that is not what the tokens say"
    (sequence,) = trajectory_sequences(rollout, 1.0)
    assert len(sequence.token_ids) == len(prompt) - 2
    assert sequence.trained.count(True) == 2 * num_turns


def test_c132_a_template_that_strips_earlier_thinking_gives_new_sequences() -> None:
    """Each completion is trained once on the ids the server produced."""
    turns = [choice([1], [7, 2]), choice([1, 2, 1], [7, 3]), choice([1, 2, 1, 3, 1], [7, 4])]
    sequences = trajectory_sequences(trajectory(*turns), 1.0)
    assert [trained(s) for s in sequences] == [[7, 2], [7, 3], [7, 4]]
    assert [s.token_ids[0] for s in sequences] == [1, 1, 1]


def test_a_turn_shared_by_branches_is_trained_where_it_occurs_first() -> None:
    """A shared turn does not weigh as often as it has branches, after a copy neither."""
    shared = choice([1], [2])
    left, right = choice([1, 2, 5], [6]), choice([1, 2, 7], [8])
    rollout = trajectory(shared, left, branches=[[copy.deepcopy(shared), right], [shared]])
    assert [trained(s) for s in trajectory_sequences(rollout, 1.0)] == [[2, 6], [8]]


def test_ids_come_from_logprob_tokens_where_a_wrapper_dropped_them() -> None:
    """Tokens spelled `token_id:N` stand in for the missing `token_ids`."""
    turn = choice([1], [20, 30], token_ids=None)
    for entry, token in zip(turn.logprobs.content, ["token_id:20", "token_id:30"], strict=True):  # type: ignore[union-attr, arg-type]  # a Choice with logprobs
        entry.token = token
    (sequence,) = trajectory_sequences(trajectory(turn), 1.0)
    assert trained(sequence) == [20, 30]


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf, -9999.0, None, 3.0])
def test_c138_a_token_with_an_unusable_logprob_is_masked_and_counted(bad: Any) -> None:
    """One bad logprob costs its token, not the rollout, and the token stays as context."""
    (sequence,) = trajectory_sequences(trajectory(choice([1], [2, 3, 4], [-0.1, bad, -0.3])), 1.0)
    assert sequence.token_ids == [1, 2, 3, 4]
    assert sequence.trained == [False, True, False, True]
    assert sequence.logprobs == [0.0, -0.1, 0.0, -0.3]
    assert token_counts([sequence])["num_masked_tokens"] == 1


def test_c128_a_rollout_with_every_token_masked_is_still_counted() -> None:
    """It gives a sequence without a trained token, so that the count reaches the metrics."""
    (sequence,) = trajectory_sequences(trajectory(choice([1], [2, 3], [None, None])), 1.0)
    assert token_counts([sequence]) == {
        "num_sequences": 1,
        "num_tokens": 3,
        "num_trained_tokens": 0,
        "num_masked_tokens": 2,
    }


def test_temperatures_are_the_turns_own() -> None:
    """Each turn keeps its temperature; greedy, missing and odd ones count as 1."""
    turns = [
        choice([1], [2], temperature=0.5),
        choice([1, 2], [3], temperature=0),
        choice([1, 2, 3], [4], temperature=None),
    ]
    (sequence,) = trajectory_sequences(trajectory(*turns), 1.0)
    assert sequence.temperatures == [1.0, 0.5, 1.0, 1.0]


def test_an_empty_completion_is_no_error() -> None:
    """A turn that was cut before its first token trains nothing and is context for the next."""
    turns = [choice([1], [], logprobs=None), choice([1, 5], [6])]
    (sequence,) = trajectory_sequences(trajectory(*turns), 1.0)
    assert sequence.token_ids == [1, 5, 6]


UNTRAINABLE = [
    (Trajectory(messages_and_choices=[{"role": "assistant", "content": "hi"}]), "no model turn"),
    (trajectory(choice([1], [2], prompt_token_ids=None)), "turn 0 .*prompt_token_ids"),
    (trajectory(choice([1], [2]), choice([], [2])), "turn 1 .*prompt_token_ids"),
    (trajectory(choice([1], [2], token_ids=None)), "turn 0 .*no `token_ids`"),
    (trajectory(choice([1], [2], token_ids="ab")), "turn 0 .*no `token_ids`"),
    (trajectory(choice([1], [2, 3], [-0.5])), "2 token ids but 1 logprobs"),
    (trajectory(choice([1], [2], temperature=0.009)), "turn 0 .*temperature 0.009"),
    (trajectory(choice([1], [2]), choice([1, 2], [-1])), "turn 1 .*-1 is no token id"),
    (trajectory(choice([1, 2**63], [2])), f"turn 0 .*{2**63} is no token id"),
]


@pytest.mark.parametrize(("bad", "message"), UNTRAINABLE)
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_rollout_without_tokens_is_told_as_what_it_is(
    bad: Trajectory, message: str, reward: float
) -> None:
    """The error names group, trajectory, turn and what is missing, equal rewards or not."""
    fine = TrajectoryGroup([trajectory(choice([1], [2]), reward=r) for r in (0.0, 1.0)])
    good = trajectory(choice([1], [2]), reward=reward)
    with pytest.raises(UntrainableTrajectoryError, match=f"^group 1, trajectory 1.*{message}"):
        build_sequences([fine, TrajectoryGroup([good, bad])])


def test_c136_missing_logprobs_name_the_request_option() -> None:
    """The user is told which option to set, on either side."""
    turn = choice([1], [2])
    turn.logprobs = None
    with pytest.raises(UntrainableTrajectoryError, match="logprobs=True"):
        trajectory_sequences(trajectory(turn), 1.0)
    (sequence,) = trajectory_sequences(trajectory(turn), 1.0, allow_training_without_logprobs=True)
    assert sequence.trained == [False, True]
    assert math.isnan(sequence.logprobs[1])


def test_an_error_in_an_additional_history_names_it() -> None:
    """The index of the history stands in the message."""
    rollout = trajectory(choice([1], [2]), branches=[[choice([1], [3])], [choice([], [3])]])
    with pytest.raises(UntrainableTrajectoryError, match="additional history 1, turn 0"):
        trajectory_sequences(rollout, 1.0)


def test_groups_without_a_signal_give_no_sequences() -> None:
    """Only groups whose finite rewards differ are trained, with their own advantages."""

    def group(*rewards: float) -> TrajectoryGroup:
        return TrajectoryGroup([trajectory(choice([1], [2]), reward=r) for r in rewards])

    groups = [group(0.1, 0.1, 0.1), group(1.0, math.nan, 0.0), group(1.0), TrajectoryGroup([])]
    sequences = build_sequences(groups)
    assert [s.advantage for s in sequences] == pytest.approx([1.0, -1.0], rel=1e-5)
    unscaled = build_sequences(groups, scale_rewards=False)
    assert [s.advantage for s in unscaled] == [0.5, -0.5]


@pytest.mark.parametrize("reward", [1e39, -1.7e308])
def test_an_advantage_beyond_single_precision_is_told_before_it_becomes_infinite(
    reward: float,
) -> None:
    """The error names the trajectory and its reward."""
    fine = TrajectoryGroup([trajectory(choice([1], [2]), reward=r) for r in (0.0, 1.0)])
    rewards = (reward, -reward)
    bad = TrajectoryGroup([trajectory(choice([1], [2]), reward=r) for r in rewards])
    with pytest.raises(UntrainableTrajectoryError, match=r"^group 1, trajectory 0: the reward"):
        build_sequences([fine, bad], scale_rewards=False)
    assert len(build_sequences([fine, bad])) == 4


def test_groups_are_not_changed() -> None:
    """Building sequences leaves trajectories as they were."""
    groups = [
        TrajectoryGroup(
            [trajectory(choice([1], [2]), choice([1, 2], [3]), reward=r) for r in (0, 1)]
        )
    ]
    before = copy.deepcopy(groups)
    for sequence in build_sequences(groups):
        sequence.token_ids.clear()
    assert groups == before


def test_the_denominator_counts_every_generated_token_once() -> None:
    """Tokens of a group without a signal, masked tokens and shared turns count, each one time."""
    first = choice([1], [2, 3])
    shared = trajectory(
        first, choice([1, 2, 3, 9], [4]), branches=[[first, choice([1, 2, 3, 8], [5])]]
    )
    masked = trajectory(choice([1], [2, 3, 4], [-0.5, math.nan, -9999.0]))
    no_signal = TrajectoryGroup([trajectory(choice([1], [7])) for _ in range(2)])

    groups = [TrajectoryGroup([shared, masked]), no_signal]

    assert num_action_tokens(groups) == (2 + 1 + 1) + 3 + 2
    assert build_sequences([no_signal]) == []


def test_c122_a_rollout_without_a_reward_leaves_no_trace_in_the_statistics_of_its_group() -> None:
    """Groups of uneven sizes keep their own means, and every other rollout its own advantage and tokens."""
    rewards = [[1.0, math.nan, 3.0, 5.0], [10.0, 20.0], [math.nan, 1.0, 2.0]]
    groups = [
        TrajectoryGroup(
            [trajectory(choice([g], [10 * g + t]), reward=r) for t, r in enumerate(of_group)]
        )
        for g, of_group in enumerate(rewards)
    ]
    sequences = build_sequences(groups, scale_rewards=False)
    assert [(s.token_ids, s.advantage) for s in sequences] == [
        ([0, 0], -2.0),
        ([0, 2], 0.0),
        ([0, 3], 2.0),
        ([1, 10], -5.0),
        ([1, 11], 5.0),
        ([2, 21], -0.5),
        ([2, 22], 0.5),
    ]

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.adapter_kit.sequences import build_sequences
from examples import guess_the_number as example

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXAMPLE = Path(example.__file__)
STEPS = 12  # of the 30: the reward has clearly risen by then


def test_the_tool_tells_where_the_hidden_number_is() -> None:
    """The answer is about the hidden number, as seen from the guess."""
    assert [example.guess(5, number) for number in (4, 5, 6)] == ["higher", "correct", "lower"]


def test_fewer_guesses_are_worth_more() -> None:
    """Every further guess costs something, and the slowest win is still worth more than a lost game."""
    worth = [example.reward(guesses) for guesses in range(1, example.MAX_GUESSES + 1)]
    assert worth == sorted(set(worth), reverse=True)
    assert worth[0] == 1.0
    assert worth[-1] > 0.0


def choice(*calls: tuple[str, str], content: str | None = None) -> Choice:
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "tool_calls" if calls else "stop",
            "message": {
                "role": "assistant",
                "content": content,
                "tool_calls": [
                    {
                        "id": f"call_{i}",
                        "type": "function",
                        "function": {"name": name, "arguments": arguments},
                    }
                    for i, (name, arguments) in enumerate(calls)
                ]
                or None,
            },
        }
    )


def test_a_call_is_read() -> None:
    """The one call of a turn gives its id, which the answer must name, and its number."""
    assert example.read_call(choice(("guess", '{"number": 5}'))) == ("call_0", 5)
    assert example.read_call(choice(("guess", '{"number": 5}'), content="")) == ("call_0", 5)


@pytest.mark.parametrize(
    "malformed",
    [
        choice(content="5"),
        choice(),
        choice(("guess", '{"number": 5}'), content="It is 5."),
        choice(("guess", '{"number": 5}'), ("guess", '{"number": 6}')),
        choice(("other", '{"number": 5}')),
        choice(("guess", "{}")),
        choice(("guess", '{"number": "5"}')),
        choice(("guess", '{"number": 5.0}')),
        choice(("guess", '{"number": true}')),
        choice(("guess", "5")),
        choice(("guess", '{"number": ')),
    ],
    ids=lambda value: str(value.message.tool_calls or value.message.content)[-60:],
)
def test_anything_but_one_call_is_malformed(malformed: Choice) -> None:
    """Words, several calls, another tool, and a number that is none all end the game."""
    assert example.read_call(malformed) is None


def test_example_names_its_backend_once() -> None:
    """Another backend is a change of one line and its import."""
    lines = EXAMPLE.read_text().splitlines()
    assert [line.strip() for line in lines if "LocalBackend" in line] == [
        "from art.local import LocalBackend",
        "backend = LocalBackend()",
    ]
    assert not any("art_local" in line for line in lines)


@pytest.fixture
async def model(tmp_path: Path) -> AsyncIterator[art.TrainableModel]:
    """The base model of the example, served."""
    from art.local import LocalBackend

    model = art.TrainableModel(
        name="guess",
        project="tests",
        base_model=example.BASE_MODEL,
        base_path=str(tmp_path),
        report_metrics=[],
    )
    async with LocalBackend() as backend:
        await model.register(backend)
        yield model
        await model.close()


@pytest.mark.local
async def test_exactly_the_completions_of_a_game_are_trained(model: art.TrainableModel) -> None:
    """The turns of a game are one sequence, in which tool results are context and never a target."""
    (group,) = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(example.rollout(model, secret=7) for _ in range(16))]
    )
    for i, game in enumerate(group.trajectories):
        game.reward = float(i)  # all different, so that none is left out
    sequences = build_sequences([group])

    turns_of = [
        [turn for turn in game.messages_and_choices if isinstance(turn, Choice)] for game in group
    ]
    assert max(map(len, turns_of)) >= 3
    assert len(sequences) == len(turns_of)
    for sequence, turns in zip(sequences, turns_of, strict=True):
        extras: list[dict[str, Any]] = [turn.model_extra or {} for turn in turns]
        completions = [
            position
            for extra in extras
            for position in range(
                len(extra["prompt_token_ids"]),
                len(extra["prompt_token_ids"]) + len(extra["token_ids"]),
            )
        ]
        assert sequence.token_ids == extras[-1]["prompt_token_ids"] + extras[-1]["token_ids"]
        assert [i for i, trained in enumerate(sequence.trained) if trained] == completions
        assert [sequence.token_ids[i] for i in completions] == [
            token_id for extra in extras for token_id in extra["token_ids"]
        ]


def processes_with(marker: str) -> list[int]:
    """Living processes that have inherited a value of the environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # ended meanwhile, or not ours
            continue
    return found


def run_example(directory: Path, *options: str) -> tuple[str, list[int]]:
    """Run the example to its end; returns what it printed, and the processes that it left."""
    marker = uuid.uuid4().hex
    with subprocess.Popen(
        [sys.executable, EXAMPLE, *options],
        cwd=directory,
        env={**os.environ, "ART_TEST_MARKER": marker},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        try:
            # Its server and its trainer are seen while they run, so that their absence means something.
            while len(processes_with(marker)) < 3 and program.poll() is None:
                time.sleep(0.05)
            output, _ = program.communicate(timeout=480)
        finally:
            program.kill()
    assert program.returncode == 0, output
    return output, processes_with(marker)


@pytest.mark.local
@pytest.mark.timeout(540)
def test_the_example_learns_and_leaves_nothing_running(tmp_path: Path) -> None:
    """Part of the run lifts the reward out of the noise; the books are where it says."""
    output, left = run_example(tmp_path, "--steps", str(STEPS))

    assert left == []
    directory = tmp_path / output.rstrip().splitlines()[-1].rpartition(" ")[2]
    history = pl.read_ndjson(directory / "history.jsonl", infer_schema_length=None)
    before = history["val/reward"].drop_nulls()[0]
    rewards = history["train/reward"].drop_nulls().to_list()
    assert 0.38 <= before <= 0.68
    assert len(rewards) == STEPS
    assert sum(rewards[-3:]) / 3 >= 0.65


@pytest.fixture(scope="module")
def shipped() -> tuple[Any, Any]:
    """The shipped model and its tokenizer, as any transformers user loads them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from art_local.base_model import resolve_base_model

    logging.disable_progress_bar()
    path = resolve_base_model(example.BASE_MODEL)
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def conversation(arguments: object) -> list[dict[str, Any]]:
    call = {
        "id": "call_0",
        "type": "function",
        "function": {"name": "guess", "arguments": arguments},
    }
    return [
        {"role": "user", "content": example.QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "lower"},
    ]


def render(tokenizer: Any, messages: list[dict[str, Any]], tools: Any = example.TOOLS) -> str:
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True
    )
    return text


@pytest.mark.local
def test_shipped_model_is_what_the_builder_describes(shipped: tuple[Any, Any]) -> None:
    """Its shape, tokenizer and template are those of the script that is said to have built it."""
    from scripts.build_base_model import build_untrained_model
    from scripts.build_guess_model import BASE_SEED, build_guess_tokenizer

    model, tokenizer = shipped
    built = build_guess_tokenizer()
    assert tokenizer.backend_tokenizer.to_str() == built.backend_tokenizer.to_str()
    assert tokenizer.chat_template == built.chat_template
    untrained = build_untrained_model(built, BASE_SEED)
    shapes = {name: value.shape for name, value in untrained.state_dict().items()}
    assert {name: value.shape for name, value in model.state_dict().items()} == shapes
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_288
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.local
def test_shipped_model_half_knows_the_task(shipped: tuple[Any, Any]) -> None:
    """Computed over every state of a game: there is room to rise, and calls are well formed."""
    import torch

    from scripts.build_guess_model import (
        MAX_MALFORMED,
        REWARD_BAND,
        call_probabilities,
        expected,
    )

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        probabilities = call_probabilities(*shipped)
    finally:
        torch.set_num_threads(threads)
    assert REWARD_BAND[0] <= expected(probabilities) <= REWARD_BAND[1]
    assert min(map(sum, probabilities.values())) >= 1 - MAX_MALFORMED


@pytest.mark.local
def test_expected_reward_is_that_of_halving() -> None:
    """The computed reward of a policy that always halves is what one counts by hand."""
    from scripts.build_guess_model import all_histories, expected, possible

    def halve(left: list[int]) -> list[float]:
        return [float(n == left[(len(left) - 1) // 2]) for n in example.NUMBERS]

    halving = {history: halve(possible(history)) for history in all_histories()}
    # Of eight numbers one is found at once, two with two guesses, four with three, one with four.
    by_hand = (1 + 2 * 0.95 + 4 * 0.90 + 0.85) / 8
    assert expected(halving) == pytest.approx(by_hand)


@pytest.mark.local
def test_call_is_text_of_ordinary_tokens(shipped: tuple[Any, Any]) -> None:
    """A call is three tokens and the end of the turn, and engines that drop special tokens keep its text."""
    _, tokenizer = shipped
    text = '<tool_call>\n{"name": "guess", "arguments": {"number": 5}}\n</tool_call>'
    ids = tokenizer.encode(f"{text}<|im_end|>")
    assert len(ids) == 4
    assert not set(ids[:3]) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.local
@pytest.mark.parametrize(
    "text", ["abc", " two  spaces\n", "héllo ☃ 𝄞", "\x00\r\n\t", "lower tool\n"]
)
def test_any_text_comes_back(text: str, shipped: tuple[Any, Any]) -> None:
    """The tokens for fixed pieces change no text."""
    _, tokenizer = shipped
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.local
@pytest.mark.parametrize("arguments", [{"number": 5}, '{"number": 5}'], ids=["object", "text"])
def test_template_keeps_earlier_turns(arguments: object, shipped: tuple[Any, Any]) -> None:
    """A call is rendered as the model wrote it, so a longer game starts with the tokens of a shorter one."""
    _, tokenizer = shipped
    messages = conversation(arguments)
    first = tokenizer.encode(render(tokenizer, messages[:1]))
    call = tokenizer.encode(
        '<tool_call>\n{"name": "guess", "arguments": {"number": 5}}\n</tool_call><|im_end|>'
    )
    rest = tokenizer.encode("\n<|im_start|>tool\nlower<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.encode(render(tokenizer, messages)) == first + call + rest


@pytest.mark.local
def test_template_shows_tools_alike_whichever_engine_asks(shipped: tuple[Any, Any]) -> None:
    """Keys that an engine adds to a tool, or puts in another order, do not change the prompt."""
    _, tokenizer = shipped
    messages = conversation({"number": 5})
    function = example.TOOLS[0]["function"]
    moved = {**dict(reversed(function.items())), "strict": None}
    expected = render(tokenizer, messages)
    assert '"name": "guess"' in expected.partition("<|im_end|>")[0]
    assert render(tokenizer, messages, [{"function": moved, "type": "function"}]) == expected
    assert "Guess the number." not in render(tokenizer, messages, None)

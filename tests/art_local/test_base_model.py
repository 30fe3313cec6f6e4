from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from art.errors import ConfigurationError
from art_local.base_model import BUILTIN_MODELS, resolve_base_model
from art_local.letters import LETTERS, TRAIN_PHRASINGS, VAL_PHRASINGS, scenarios

LETTERS_MODEL = "builtin:letters"


def test_builtin_name_gives_the_packaged_directory() -> None:
    """The built-in name leads to a whole checkpoint inside the installed package."""
    path = Path(resolve_base_model(LETTERS_MODEL))
    assert path.is_absolute()
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= {
        file.name for file in path.iterdir()
    }


def test_every_builtin_model_resolves() -> None:
    """Each name that is offered can be used."""
    for name, path in BUILTIN_MODELS.items():
        assert resolve_base_model(name) == str(path)
        assert (path / "config.json").is_file()


def test_unknown_builtin_name_is_refused_with_the_known_ones() -> None:
    """A misspelt built-in name is never taken for a hub id."""
    with pytest.raises(ConfigurationError, match=r"builtin:leters.*builtin:letters"):
        resolve_base_model("builtin:leters")


@pytest.mark.parametrize("spelling", ["model", "./model", "sub/../model"])
def test_directory_becomes_absolute(
    spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative directory keeps its meaning in child processes with another working directory."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    resolved = Path(resolve_base_model(spelling))
    assert resolved.is_absolute()
    assert resolved.resolve() == tmp_path.resolve() / "model"


def test_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tilde stands for the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve_base_model("~") == str(tmp_path)


def test_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    """The message names the directory and the file that is missing."""
    with pytest.raises(ConfigurationError, match=r"config\.json") as caught:
        resolve_base_model(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["./missing", "../missing", "~/missing-model", "/missing/model", ".\\model", "a/b/c", "a/"],
)
def test_path_that_does_not_exist_is_refused(name: str) -> None:
    """What can only be a path is not sent to the hub."""
    with pytest.raises(ConfigurationError, match="does not exist") as caught:
        resolve_base_model(name)
    assert repr(name) in str(caught.value)


def test_home_of_an_unknown_user_is_refused() -> None:
    """A tilde with a name that is no user gives the same kind of error."""
    with pytest.raises(ConfigurationError, match="home directory"):
        resolve_base_model("~no-such-user-here/model")


def test_file_is_refused(tmp_path: Path) -> None:
    """The path of a weights file is told apart from a path that does not exist."""
    weights = tmp_path / "model.safetensors"
    weights.touch()
    with pytest.raises(ConfigurationError, match="is a file"):
        resolve_base_model(str(weights))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "gpt2", "org/model.v2"])
def test_hub_id_stays_as_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id is left to the library that downloads it."""
    monkeypatch.chdir(tmp_path)
    assert resolve_base_model(name) == name


@pytest.fixture(scope="module")
def letters() -> tuple[Any, Any]:
    """The built-in model and its tokenizer, as any transformers user loads them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    path = resolve_base_model(LETTERS_MODEL)
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


@pytest.mark.local
def test_letters_model_is_a_plain_small_qwen3(letters: tuple[Any, Any]) -> None:
    """It is a standard architecture of the documented size, with an end of turn that generation stops at."""
    model, tokenizer = letters
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert sum(parameter.numel() for parameter in model.parameters()) == 123_584
    assert model.config.vocab_size == len(tokenizer) == 260
    assert model.config.tie_word_embeddings
    assert str(model.dtype) == "torch.float32"
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id


@pytest.mark.local
@pytest.mark.parametrize("text", ["abc", "", " two  spaces\n", "héllo ☃ 𝄞", "\x00\r\n\t", "don't"])
def test_letters_tokenizer_is_one_token_a_byte(text: str, letters: tuple[Any, Any]) -> None:
    """Any text is its UTF-8 bytes, and comes back unchanged."""
    _, tokenizer = letters
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


@pytest.mark.local
def test_letters_template_renders_every_role(letters: tuple[Any, Any]) -> None:
    """Roles, tools, tool calls, lists of text parts and missing content all have their place."""
    _, tokenizer = letters
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a":  1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}],
        },
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": None},
    ]
    tool = {"type": "function", "function": {"name": "add"}}
    text = tokenizer.apply_chat_template(
        messages, tools=[tool], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        '<|im_start|>system\n# Tools\n{"type": "function", "function": {"name": "add"}}\n<|im_end|>\n'
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n1 + 1?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>add\n{"a":  1}</tool_call><|im_end|>\n'
        "<|im_start|>tool\n2<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.local
def test_letters_template_only_appends(letters: tuple[Any, Any]) -> None:
    """A longer conversation starts with the tokens of a shorter one, sampled tokens included."""
    _, tokenizer = letters
    messages = [{"role": "user", "content": "Pick a."}]
    first = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    messages += [{"role": "assistant", "content": " a \n"}, {"role": "user", "content": "Pick b."}]
    second = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert second.startswith(first + " a \n<|im_end|>")


@pytest.mark.local
@pytest.mark.parametrize("phrasings", [TRAIN_PHRASINGS, VAL_PHRASINGS], ids=["train", "val"])
def test_letters_model_is_right_about_half_of_the_time(
    phrasings: tuple[str, ...], letters: tuple[Any, Any]
) -> None:
    """Sampled at temperature 1 the base leaves room to rise, and nearly always answers with a letter."""
    import torch

    model, tokenizer = letters
    questions = scenarios(phrasings) * (1024 // len(scenarios(phrasings)))
    prompts = tokenizer(
        [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question.question}],
                tokenize=False,
                add_generation_prompt=True,
            )
            for question in questions
        ],
        padding=True,
        padding_side="left",
        return_tensors="pt",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ids = model.generate(**prompts, do_sample=True, top_k=0, max_new_tokens=8)
    answers = tokenizer.batch_decode(ids[:, prompts["input_ids"].shape[1] :])
    answers = [
        answer.removesuffix("<|im_end|>") for answer in (a.replace("<|pad|>", "") for a in answers)
    ]
    right = sum(answer == q.letter for answer, q in zip(answers, questions, strict=True))
    well_formed = sum(answer in set(LETTERS) for answer in answers)
    assert 0.45 <= right / 1024 <= 0.65
    assert well_formed / 1024 >= 0.98

from __future__ import annotations

import asyncio
import math
import shutil
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from art.adapter_kit.engine_protocol import GenerateRequest
from art.errors import ConfigurationError, InferenceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from art.adapter_kit.engine_protocol import TokenEvent
    from art_local.engine import LocalEngine

pytestmark = pytest.mark.local

PROMPT = tuple(b"Once upon a time")
FOREVER = 500


@pytest.fixture(scope="module")
def pretrained(tiny_model_dir: Path) -> tuple[Any, Any]:
    import torch

    from art_local.pretrained import load_pretrained

    torch.set_num_threads(1)
    return load_pretrained(str(tiny_model_dir), "cpu")


@pytest.fixture
def engine(tiny_model_dir: Path, pretrained: tuple[Any, Any]) -> Iterator[LocalEngine]:
    """An engine over a fresh model: adapters are put into the model in place."""
    from art_local.engine import LocalEngine
    from art_local.pretrained import load_pretrained

    engine = LocalEngine(*load_pretrained(str(tiny_model_dir), "cpu"), max_rows=8)
    yield engine
    engine.close()


def ask(max_tokens: int = 12, **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        **{"prompt_token_ids": PROMPT, "adapter": None, "max_tokens": max_tokens, **fields}
    )


def prompt(i: int) -> tuple[int, ...]:
    return tuple(f"{'x' * (7 * i % 23)} prompt {i}".encode())


async def run(engine: LocalEngine, request: GenerateRequest) -> list[TokenEvent]:
    return [event async for event in engine.generate(request)]


def ids(events: list[TokenEvent], index: int = 0) -> list[int]:
    return [event.token_id for event in events if event.index == index]


def text(events: list[TokenEvent], index: int = 0) -> str:
    return "".join(event.text for event in events if event.index == index)


def plain_logprobs(
    model: Any, prompt_ids: tuple[int, ...], completion: list[int], temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of a completion by one plain forward over the whole sequence."""
    import torch

    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt_ids, *completion]])).logits[0, :-1]
    logprobs = (logits / temperature).log_softmax(-1)[len(prompt_ids) - 1 :]
    chosen: list[float] = logprobs.gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()
    return chosen


async def test_logprobs_are_those_of_a_plain_forward_while_requests_join_and_leave(
    engine: LocalEngine, pretrained: tuple[Any, Any]
) -> None:
    """Every token's logprob equals a plain forward over its own sequence, whatever shared the batch."""
    requests = [
        ask(3 + 5 * i % 29, prompt_token_ids=prompt(i), seed=i, temperature=(0.7, 1.0, 1.6)[i % 3])
        for i in range(20)
    ]
    answers = await asyncio.gather(*(run(engine, request) for request in requests))
    for request, events in zip(requests, answers, strict=True):
        assert 1 <= len(events) <= request.max_tokens
        expected = plain_logprobs(
            pretrained[0], request.prompt_token_ids, ids(events), request.temperature
        )
        assert [event.logprob for event in events] == pytest.approx(expected, abs=1e-5)


async def test_greedy_tokens_do_not_depend_on_the_batch(engine: LocalEngine) -> None:
    """A greedy completion is the same alone and among others that join and leave."""
    requests = [ask(4 + 3 * i % 17, prompt_token_ids=prompt(i), temperature=0.0) for i in range(12)]
    alone = [ids(await run(engine, request)) for request in requests]
    together = await asyncio.gather(*(run(engine, request) for request in requests))
    assert [ids(events) for events in together] == alone


async def test_a_short_request_does_not_wait_for_a_long_one(engine: LocalEngine) -> None:
    """A one-token request answers within ten decode steps of its arrival, while a long one runs on."""
    async with aclosing(engine.generate(ask(FOREVER, stream=True))) as long:
        await anext(long)
        before = engine.decode_steps
        await run(engine, ask(1))
        assert engine.decode_steps - before <= 10
        await anext(long)


async def test_a_request_waits_while_all_rows_are_taken(engine: LocalEngine) -> None:
    """More completions than rows are all answered, in turn."""
    answers = await asyncio.gather(*(run(engine, ask(3, n=5)) for _ in range(5)))
    assert [sum(event.finish_reason is not None for event in events) for events in answers] == [
        5
    ] * 5


async def test_greedy_reports_logprobs_at_temperature_one(
    engine: LocalEngine, pretrained: tuple[Any, Any]
) -> None:
    """At temperature 0 the most likely token is taken, with its logprob at temperature 1."""
    events = await run(engine, ask(temperature=0.0, top_logprobs=2))
    assert [event.logprob for event in events] == pytest.approx(
        plain_logprobs(pretrained[0], PROMPT, ids(events)), abs=1e-5
    )
    assert all(event.top_logprobs[0] == (event.token_id, event.logprob) for event in events)


async def test_top_logprobs_are_the_most_likely_tokens_best_first(engine: LocalEngine) -> None:
    """As many alternatives come as were asked for, in falling order, and each request gets its own number."""
    five, none = await asyncio.gather(run(engine, ask(top_logprobs=5)), run(engine, ask()))
    for event in five:
        values = [logprob for _, logprob in event.top_logprobs]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
    assert all(event.top_logprobs == () for event in none)


async def test_a_seed_repeats_the_tokens(engine: LocalEngine) -> None:
    """A seed gives the same tokens alone and in company; another seed, another choice or none, others."""
    seeded = ask(30, seed=7)
    alone = ids(await run(engine, seeded))
    company = [run(engine, ask(30, prompt_token_ids=prompt(i))) for i in range(4)]
    again, *_ = await asyncio.gather(run(engine, seeded), *company)
    assert ids(again) == alone
    assert ids(await run(engine, ask(30, seed=8))) != alone
    assert ids(await run(engine, ask(30))) != ids(await run(engine, ask(30)))


async def test_choices_of_one_request_differ_and_share_the_prompt(
    engine: LocalEngine, pretrained: tuple[Any, Any]
) -> None:
    """With n = 3 a seeded request gives three different completions, the first as for n = 1, with right logprobs."""
    events = await run(engine, ask(20, n=3, seed=7))
    completions = [ids(events, index) for index in range(3)]
    assert completions[0] == ids(await run(engine, ask(20, seed=7)))
    assert len({tuple(completion) for completion in completions}) == 3
    for index, completion in enumerate(completions):
        logprobs = [event.logprob for event in events if event.index == index]
        assert logprobs == pytest.approx(
            plain_logprobs(pretrained[0], PROMPT, completion), abs=1e-5
        )


async def test_top_p_samples_the_nucleus_and_reports_logprobs_before_it(
    engine: LocalEngine,
) -> None:
    """A tiny top_p takes the most likely token each time; its logprob stays that of the full distribution."""
    greedy = await run(engine, ask(temperature=0.0))
    nucleus = await run(engine, ask(top_p=1e-6))
    assert ids(nucleus) == ids(greedy)
    assert [event.logprob for event in nucleus] == pytest.approx(
        [event.logprob for event in greedy]
    )
    assert min(event.logprob for event in nucleus) < -0.01


async def test_a_stop_string_ends_the_completion_and_is_cut(engine: LocalEngine) -> None:
    """The text ends before the stop string, while the tokens up to its end are reported."""
    whole = await run(engine, ask(40, seed=3))
    stop = text(whole)[5:8]
    cut = await run(engine, ask(40, seed=3, stop=("never", stop)))
    assert text(cut) == text(whole)[: text(whole).index(stop)]
    assert ids(cut) == ids(whole)[: len(cut)]
    assert cut[-1].finish_reason == "stop"
    assert len(cut) < len(whole)


async def test_the_end_token_is_reported_and_has_no_text(
    tiny_model_dir: Path, engine: LocalEngine
) -> None:
    """A completion that the model ended has its end token among the ids, and not in the text."""
    import torch

    from art_local.engine import LocalEngine
    from art_local.pretrained import load_pretrained

    model, tokenizer = load_pretrained(str(tiny_model_dir), "cpu")
    greedy = await run(engine, ask(5, temperature=0.0))
    # The end token is made as likely as the fourth greedy token, and a little more.
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding[tokenizer.eos_token_id] = 1.01 * embedding[greedy[3].token_id]
    ending = LocalEngine(model, tokenizer)
    events = await run(ending, ask(50, temperature=0.0))
    ending.close()
    assert ids(events)[-1] == tokenizer.eos_token_id
    assert events[-1].finish_reason == "stop"
    assert events[-1].text == ""
    assert len(events) <= 4


async def test_a_completion_ends_at_its_length(engine: LocalEngine) -> None:
    """The last allowed token carries the finish reason `length`."""
    events = await run(engine, ask(6, temperature=0.0))
    assert [event.finish_reason for event in events] == [None] * 5 + ["length"]


async def test_adapters_run_side_by_side(
    engine: LocalEngine, tiny_model_dir: Path, tiny_adapter_dir: Callable[..., Path]
) -> None:
    """Requests on two adapters and the base model at once each get the logprobs of their own weights."""
    from peft import PeftModel

    from art_local.pretrained import load_pretrained

    directories = {"slot1": tiny_adapter_dir(1), "slot2": tiny_adapter_dir(2, r=8)}
    for adapter, directory in directories.items():
        await engine.load_adapter(adapter, str(directory))
    requests = [
        ask(10 + i, prompt_token_ids=prompt(i), adapter=(None, "slot1", "slot2")[i % 3])
        for i in range(9)
    ]
    answers = await asyncio.gather(*(run(engine, request) for request in requests))
    for request, events in zip(requests, answers, strict=True):
        model, _ = load_pretrained(str(tiny_model_dir), "cpu")
        if request.adapter is not None:
            model = PeftModel.from_pretrained(model, directories[request.adapter]).eval()
        expected = plain_logprobs(model, request.prompt_token_ids, ids(events))
        assert [event.logprob for event in events] == pytest.approx(expected, abs=1e-5)


async def test_adapters_beyond_the_limit_are_reloaded_when_asked_for(
    pretrained: tuple[Any, Any], tiny_model_dir: Path, tiny_adapter_dir: Callable[..., Path]
) -> None:
    """With room for one adapter, two still answer with their own weights, again and again."""
    from art_local.engine import LocalEngine
    from art_local.pretrained import load_pretrained

    engine = LocalEngine(*load_pretrained(str(tiny_model_dir), "cpu"), max_loaded_adapters=1)
    for seed in (1, 2):
        engine.register_adapter(f"slot{seed}", str(tiny_adapter_dir(seed)))
    greedy = [ask(temperature=0.0, adapter=f"slot{seed}") for seed in (1, 2)]
    first, second = [await run(engine, request) for request in greedy]
    assert [event.logprob for event in first] != [event.logprob for event in second]
    for _ in range(2):
        assert [await run(engine, request) for request in greedy] == [first, second]
    together = await asyncio.gather(*(run(engine, request) for request in greedy))
    assert [ids(events) for events in together] == [ids(first), ids(second)]
    engine.close()


async def test_ids_that_begin_alike_are_told_apart(
    engine: LocalEngine, tiny_adapter_dir: Callable[..., Path]
) -> None:
    """While `slot10` is loaded, the weights of `slot1` are complete all the same."""
    await engine.load_adapter("slot10", str(tiny_adapter_dir(1)))
    await engine.load_adapter("slot1", str(tiny_adapter_dir(1)))
    first, second = [
        await run(engine, ask(temperature=0.0, adapter=adapter)) for adapter in ("slot10", "slot1")
    ]
    assert first == second


async def test_an_adapter_in_use_stays_in_memory(
    tiny_model_dir: Path, tiny_adapter_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """Requests on more adapters than may be loaded all finish, even when the files have gone meanwhile."""
    from art_local.engine import LocalEngine
    from art_local.pretrained import load_pretrained

    engine = LocalEngine(*load_pretrained(str(tiny_model_dir), "cpu"), max_loaded_adapters=1)
    streams = []
    for seed in (1, 2):
        directory = tmp_path / str(seed)
        shutil.copytree(tiny_adapter_dir(seed), directory)
        await engine.load_adapter(f"slot{seed}", str(directory))
        streams.append(
            engine.generate(ask(300, adapter=f"slot{seed}", temperature=0.0, stream=True))
        )
        await anext(streams[-1])
        shutil.rmtree(directory)
    for stream in streams:
        assert [event.finish_reason async for event in stream][-1] is not None
    engine.close()


async def test_weights_are_switched_back_and_forth(
    engine: LocalEngine, tiny_adapter_dir: Callable[..., Path]
) -> None:
    """An adapter read on demand, the base model and an adapter loaded later answer in turn, each as before."""
    engine.register_adapter("slot0", str(tiny_adapter_dir(1)))
    base, adapter = ask(temperature=0.0), ask(temperature=0.0, adapter="slot0")
    first = [await run(engine, request) for request in (adapter, base)]
    await engine.load_adapter("slot1", str(tiny_adapter_dir(2)))
    assert [await run(engine, request) for request in (adapter, base)] == first


def rename_weights(directory: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = directory / "adapter_model.safetensors"
    weights = load_file(file)
    save_file(
        {name.replace(".layers.", ".blocks."): value for name, value in weights.items()}, file
    )


def drop_weights(directory: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = directory / "adapter_model.safetensors"
    save_file(dict(list(load_file(file).items())[2:]), file)


def truncate_weights(directory: Path) -> None:
    file = directory / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def remove_weights(directory: Path) -> None:
    (directory / "adapter_model.safetensors").unlink()


def name_other_modules(directory: Path) -> None:
    file = directory / "adapter_config.json"
    file.write_text(file.read_text().replace('q_proj"', 'query_key_value"'))


@pytest.mark.parametrize(
    "damage", [rename_weights, drop_weights, truncate_weights, remove_weights, name_other_modules]
)
async def test_an_adapter_that_does_not_fit_is_refused(
    damage: Callable[[Path], None],
    engine: LocalEngine,
    tiny_adapter_dir: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """A damaged adapter is a ConfigurationError that names its path, and good ones and the base go on."""
    good = tiny_adapter_dir(1)
    bad = tmp_path / "bad"
    shutil.copytree(good, bad)
    damage(bad)
    base = await run(engine, ask(temperature=0.0))
    with pytest.raises(ConfigurationError, match="bad"):
        await engine.load_adapter("slot0", str(bad))
    with pytest.raises(InferenceError, match="slot0"):
        await run(engine, ask(adapter="slot0"))
    assert await run(engine, ask(temperature=0.0)) == base
    await engine.load_adapter("slot1", str(good))
    assert ids(await run(engine, ask(temperature=0.0, adapter="slot1"))) != ids(base)


async def test_an_adapter_of_a_wider_model_is_refused(
    engine: LocalEngine, tmp_path: Path, tiny_adapter_dir: Callable[..., Path]
) -> None:
    """Weights of another shape are refused, not cut to fit."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_adapter_dir(1), tmp_path / "wide")
    file = tmp_path / "wide" / "adapter_model.safetensors"
    save_file({name: value.repeat(1, 2) for name, value in load_file(file).items()}, file)
    with pytest.raises(ConfigurationError, match="does not fit"):
        await engine.load_adapter("slot0", str(tmp_path / "wide"))


async def test_unloading_fails_what_still_runs_on_the_adapter(
    engine: LocalEngine, tiny_adapter_dir: Callable[..., Path]
) -> None:
    """Requests on an unloaded adapter end with an error, others go on, and later ones are refused."""
    await engine.load_adapter("slot0", str(tiny_adapter_dir(1)))
    doomed = engine.generate(ask(FOREVER, adapter="slot0", stream=True))
    other = engine.generate(ask(FOREVER, stream=True))
    await anext(doomed)
    await anext(other)
    await engine.unload_adapter("slot0")
    await engine.unload_adapter("slot0")
    with pytest.raises(InferenceError, match="unloaded"):
        [event async for event in doomed]
    with pytest.raises(InferenceError, match="slot0"):
        await run(engine, ask(adapter="slot0"))
    await anext(other)
    await other.aclose()


async def test_a_cancelled_request_leaves_the_batch(engine: LocalEngine) -> None:
    """Closing the events frees the row: the engine goes idle, with most of the tokens never made."""
    async with aclosing(engine.generate(ask(FOREVER, stream=True))) as events:
        await anext(events)
    while engine._groups:
        await asyncio.sleep(0.001)
    steps = engine.decode_steps
    assert steps < FOREVER - 50
    await run(engine, ask(1))
    assert engine.decode_steps == steps


async def test_a_step_that_raises_fails_the_requests_in_flight_and_no_others(
    engine: LocalEngine,
) -> None:
    """An exception in the model reaches every caller of that batch, and the next request is answered."""
    failing = True

    def fail(_module: Any, _args: Any) -> None:
        if failing:
            raise RuntimeError("out of memory, say")

    waiting = [asyncio.create_task(run(engine, ask(FOREVER))) for _ in range(3)]
    handle = engine._lm.model.register_forward_pre_hook(fail)
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, InferenceError)
        assert "out of memory, say" in str(outcome)
    handle.remove()
    assert len(await run(engine, ask(3, temperature=0.0))) == 3


async def test_logits_that_are_not_finite_fail_the_request(
    engine: LocalEngine, tiny_adapter_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """A diverged checkpoint gives a clear error, and neither tokens nor harm to requests on other weights."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_adapter_dir(1), tmp_path / "nan")
    file = tmp_path / "nan" / "adapter_model.safetensors"
    save_file({name: value * math.nan for name, value in load_file(file).items()}, file)
    await engine.load_adapter("slot0", str(tmp_path / "nan"))
    diverged, base = await asyncio.gather(
        run(engine, ask(adapter="slot0")),
        run(engine, ask(4, temperature=0.0)),
        return_exceptions=True,
    )
    assert isinstance(diverged, InferenceError)
    assert "not finite" in str(diverged)
    assert isinstance(base, list)
    assert len(base) == 4


async def test_a_closed_engine_fails_its_requests_and_refuses_new_ones(engine: LocalEngine) -> None:
    """Closing ends requests in flight with an error, tells why in `failure`, and can be repeated."""
    events = engine.generate(ask(FOREVER, stream=True))
    await anext(events)
    assert engine.failure is None
    await asyncio.to_thread(engine.close)
    with pytest.raises(InferenceError, match="closed"):
        [event async for event in events]
    with pytest.raises(InferenceError, match="closed"):
        await run(engine, ask())
    assert engine.failure is not None
    engine.close()


async def test_rendering_follows_the_chat_template(engine: LocalEngine) -> None:
    """Messages and tools go through the model's template, special tokens as single ids, ready to answer."""
    tools = [{"type": "function", "function": {"name": "look"}}]
    rendered = engine.render([{"role": "user", "content": "Hi"}], tools, {})
    shown = b"".join(map(engine.token_bytes, rendered)).decode()
    assert shown.startswith("<|im_start|>system\nTools:\n")
    assert '"look"' in shown
    assert shown.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert len(rendered) < len(shown)


async def test_rendering_refuses_what_the_template_refuses(engine: LocalEngine) -> None:
    """An error that the template raises is a ValueError with its words."""
    with pytest.raises(ValueError, match="unknown role judge"):
        engine.render([{"role": "judge", "content": "Hi"}], None, {})


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("\ud800", {}),
        ("Hi", {"chat_template": "{{ 1 / 0 }}"}),
        ("Hi", {"tokenize": True}),
        ("Hi", {"conversation": []}),
    ],
)
async def test_what_cannot_be_rendered_is_the_requests_fault(
    engine: LocalEngine, content: str, options: dict[str, Any]
) -> None:
    """Text that is no Unicode, and options that are no variables of the template, are refused."""
    with pytest.raises(ValueError, match=r"surrogates|Unicode|no variable|Text"):
        engine.render([{"role": "user", "content": content}], None, options)


async def test_token_bytes_are_the_bytes_of_the_text(
    engine: LocalEngine, pretrained: tuple[Any, Any]
) -> None:
    """Every token stands for its byte, so the bytes of an encoded text are the text."""
    said = "héllo 🙂\n\ttab"
    encoded = pretrained[1](said)["input_ids"]
    assert b"".join(map(engine.token_bytes, encoded)).decode() == said


async def test_text_is_made_of_whole_characters(
    engine: LocalEngine, pretrained: tuple[Any, Any]
) -> None:
    """The pieces add up to what the tokenizer decodes, broken UTF-8 included."""
    events = await run(engine, ask(300, temperature=2.0, seed=1, stream=True))
    decoded = pretrained[1].decode(ids(events), skip_special_tokens=True)
    assert text(events) == decoded


def test_a_tokenizer_without_chat_template_is_refused(pretrained: tuple[Any, Any]) -> None:
    """A base model without a chat template is told at once, by name."""
    import copy

    from art_local.engine import LocalEngine

    model, tokenizer = pretrained
    silent = copy.deepcopy(tokenizer)
    silent.chat_template = None
    with pytest.raises(ConfigurationError, match="chat template"):
        LocalEngine(model, silent)


def test_a_model_without_a_key_value_cache_is_refused(pretrained: tuple[Any, Any]) -> None:
    """State space models, whose rows cannot be padded, are refused rather than served wrongly."""
    from transformers import MambaConfig, MambaForCausalLM

    from art_local.engine import LocalEngine

    model = MambaForCausalLM(MambaConfig(vocab_size=259, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(ConfigurationError, match="MambaForCausalLM"):
        LocalEngine(model, pretrained[1])


async def test_requests_come_from_several_event_loops(engine: LocalEngine) -> None:
    """A request from another thread's loop is answered like one from this loop."""
    request = replace(ask(temperature=0.0), stream=True)
    here = await run(engine, request)
    there = await asyncio.to_thread(lambda: asyncio.run(run(engine, request)))
    assert there == here

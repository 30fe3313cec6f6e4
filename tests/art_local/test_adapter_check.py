from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from art.errors import ConfigurationError
from art_local.adapter_check import check_adapter_fits
from art_local.base_model import BUILTIN_MODELS
from art_local.vllm_server import VllmServer
from tests.art_local.tiny import make_tiny_adapter
from tests.art_local.vllm import client_of

LETTERS = BUILTIN_MODELS["builtin:letters"]

# The files are written by hand: names and shapes are all that is looked at.
Shapes = dict[str, list[int]]
HIDDEN, MLP = 8, 12
LAYER: Shapes = {
    "self_attn.q_proj": [HIDDEN, HIDDEN],
    "mlp.up_proj": [MLP, HIDDEN],
    "mlp.down_proj": [HIDDEN, MLP],
}
MODULES: Shapes = {
    f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()
}


def write_tensors(file: Path, shapes: Shapes, dtype: str = "F32") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
        for name, shape in shapes.items()
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)


def write_base(directory: Path, modules: Shapes = MODULES, dtype: str = "F32") -> str:
    weights = {f"{name}.weight": shape for name, shape in modules.items()}
    rest = {"model.norm.weight": [HIDDEN], "model.embed_tokens.weight": [20, HIDDEN]}
    # In two files, as large models are.
    write_tensors(directory / "model-00001-of-00002.safetensors", weights, dtype)
    write_tensors(directory / "model-00002-of-00002.safetensors", rest, dtype)
    (directory / "config.json").write_text("{}")
    return str(directory)


def lora(modules: Shapes, r: int = 4) -> Shapes:
    """The tensors of a LoRA adapter for these modules."""
    shapes = {}
    for name, (outputs, inputs) in modules.items():
        shapes[f"base_model.model.{name}.lora_A.weight"] = [r, inputs]
        shapes[f"base_model.model.{name}.lora_B.weight"] = [outputs, r]
    return shapes


def write_adapter(directory: Path, shapes: Shapes) -> Path:
    write_tensors(directory / "adapter_model.safetensors", shapes)
    return directory


@pytest.mark.local
def test_what_peft_saves_fits_its_base(
    tiny_model_dir: Path, tiny_adapter_dir: Callable[..., Path]
) -> None:
    """Real adapters pass, for all linear layers, or for some of one layer."""
    for options in ({}, {"target_modules": ["q_proj"], "layers_to_transform": [1]}):
        check_adapter_fits(tiny_adapter_dir(**options), str(tiny_model_dir))


def test_an_adapter_of_the_base_passes(tmp_path: Path) -> None:
    """All modules, or some layers only, or the output layer."""
    base = write_base(tmp_path / "base")
    check_adapter_fits(write_adapter(tmp_path / "all", lora(MODULES)), base)
    check_adapter_fits(write_adapter(tmp_path / "some", lora(dict([*MODULES.items()][:2]))), base)
    check_adapter_fits(write_adapter(tmp_path / "head", lora({"lm_head": [20, HIDDEN]})), base)


def renamed(old: str, new: str) -> Shapes:
    return {name.replace(old, new): shape for name, shape in lora(MODULES).items()}


@pytest.mark.parametrize(
    ("shapes", "count", "fault"),
    [
        (lora({f"model.layers.{i}.{n}": s for i in range(4) for n, s in LAYER.items()}), 12, "no such module"),
        (lora({n: [x // 2 for x in s] for n, s in MODULES.items()}), 12, r"shape \[4, 4\] for a module"),
        (lora({n: [x * 2 for x in s] for n, s in MODULES.items()}), 12, r"shape \[4, 16\] for a module"),
        (renamed("q_proj", "query"), 4, "no such module"),
        (renamed("self_attn.q_proj", "mlp.q_proj"), 4, "no such module"),
        (renamed("model.model.layers", "model.model.language_model.layers"), 12, "no such module"),
        (renamed("model.model.layers", "model.layers"), 12, "no such module"),
        ({n: s for n, s in lora(MODULES).items() if "lora_A" in n}, 6, "no lora_B beside it"),
        ({n: [8, *s[1:]] if "lora_A" in n else s for n, s in lora(MODULES).items()}, 12, "beside a partner"),
    ],
    ids=[
        "more layers",
        "smaller",
        "larger",
        "unknown module",
        "module elsewhere",
        "another prefix",
        "a prefix too few",
        "half of it",
        "two ranks",
    ],
)  # fmt: skip
def test_an_adapter_of_another_model_is_refused(
    tmp_path: Path, shapes: Shapes, count: int, fault: str
) -> None:
    """The first misfit is named, and all are counted."""
    base = write_base(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", shapes)
    with pytest.raises(ConfigurationError, match=rf": {count} of its {len(shapes)} .*{fault}"):
        check_adapter_fits(adapter, base)


def test_a_model_with_towers_is_compared_from_its_layers_on(tmp_path: Path) -> None:
    """The prefix of the running model need not be that of the files; the rest must be right all the same."""
    base = write_base(tmp_path / "base")
    (tmp_path / "base" / "config.json").write_text('{"text_config": {}, "vision_config": {}}')
    towers = renamed("model.model.layers", "model.model.language_model.layers")
    check_adapter_fits(write_adapter(tmp_path / "fits", towers), base)
    too_many = {name.replace("layers.1", "layers.7"): shape for name, shape in towers.items()}
    with pytest.raises(ConfigurationError, match="6 of its 12"):
        check_adapter_fits(write_adapter(tmp_path / "not", too_many), base)


def test_files_without_the_first_part_of_the_names_fit(tmp_path: Path) -> None:
    """A base that was saved without its output layer has names without `model.`."""
    base = write_base(tmp_path / "base", {n.removeprefix("model."): s for n, s in MODULES.items()})
    check_adapter_fits(write_adapter(tmp_path / "adapter", lora(MODULES)), base)


def test_packed_weights_are_compared_by_name(tmp_path: Path) -> None:
    """Quantised weights do not tell the shape of their layer, but which layers there are."""
    base = write_base(tmp_path / "base", {n: [1, 4] for n in MODULES}, dtype="U8")
    check_adapter_fits(write_adapter(tmp_path / "fits", lora(MODULES)), base)
    with pytest.raises(ConfigurationError, match="no such module"):
        check_adapter_fits(write_adapter(tmp_path / "not", renamed("q_proj", "query")), base)


def test_what_cannot_be_known_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id that is not on this disk, a base without safetensors, and experts are not judged."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    adapter = write_adapter(tmp_path / "adapter", renamed("q_proj", "query"))
    check_adapter_fits(adapter, "some/model")
    (tmp_path / "empty").mkdir()
    check_adapter_fits(adapter, str(tmp_path / "empty"))
    experts = write_adapter(tmp_path / "experts", lora({"model.layers.0.mlp.experts.3.up": [3, 3]}))
    check_adapter_fits(experts, write_base(tmp_path / "base"))


def test_a_hub_model_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base model that was loaded from the hub before is checked like a directory."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--some--model"
    write_base(repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    with pytest.raises(ConfigurationError, match="base model some/model"):
        check_adapter_fits(
            write_adapter(tmp_path / "adapter", renamed("q_proj", "query")), "some/model"
        )


@pytest.mark.parametrize(
    "content",
    [b"", b"\x02", (2).to_bytes(8, "little") + b"[]", b"\xff" * 16, (99).to_bytes(8, "little") + b"{"],
    ids=["empty", "no length", "no object", "endless", "torn"],
)  # fmt: skip
def test_damaged_weights_are_told(tmp_path: Path, content: bytes) -> None:
    """A file that is no safetensors file, or none at all, is named."""
    (tmp_path / "adapter_model.safetensors").write_bytes(content)
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigurationError, match="cannot be read as safetensors weights"):
            check_adapter_fits(directory, "some/model")


def test_an_adapter_without_tensors_is_refused(tmp_path: Path) -> None:
    """It would change nothing, so it is no adapter."""
    with pytest.raises(ConfigurationError, match="has no tensors"):
        check_adapter_fits(write_adapter(tmp_path, {}), "some/model")


@pytest.mark.local
@pytest.mark.vllm
@pytest.mark.xdist_group("vllm")
@pytest.mark.timeout(1800)
async def test_vllm_serves_what_the_check_refuses(vllm_server: VllmServer, tmp_path: Path) -> None:
    """The reason for the check: vLLM takes an adapter with other modules, and answers as the base model."""
    import safetensors.torch

    good = make_tiny_adapter(tmp_path / "good", LETTERS)
    strange = tmp_path / "strange"
    shutil.copytree(good, strange)
    tensors = safetensors.torch.load_file(strange / "adapter_model.safetensors")
    moved = {name.replace("layers.", "towers.layers."): value for name, value in tensors.items()}
    safetensors.torch.save_file(moved, strange / "adapter_model.safetensors")

    check_adapter_fits(good, str(LETTERS))
    with pytest.raises(ConfigurationError, match="does not belong to the base model"):
        check_adapter_fits(strange, str(LETTERS))

    await vllm_server.ensure()
    with client_of(vllm_server) as client:

        def logprobs(name: str) -> list[float]:
            asked = {
                "model": name,
                "prompt": [10, 20, 30],
                "max_tokens": 4,
                "temperature": 0,
                "logprobs": 1,
            }
            answer = client.post("/v1/completions", json=asked).raise_for_status().json()
            found: list[float] = answer["choices"][0]["logprobs"]["token_logprobs"]
            return found

        for name, directory in (("good", good), ("strange", strange)):
            body = {"lora_name": name, "lora_path": str(directory)}
            client.post("/v1/load_lora_adapter", json=body).raise_for_status()
        base = logprobs(vllm_server.base_model)
        assert logprobs("good") != pytest.approx(base, abs=0.01)
        assert logprobs("strange") == pytest.approx(base, abs=1e-5)
        for name in ("good", "strange"):
            client.post("/v1/unload_lora_adapter", json={"lora_name": name}).raise_for_status()

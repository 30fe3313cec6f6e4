from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from art.errors import ConfigurationError
from art_local.vllm_options import SIDE, VllmOptions

SOCKET = Path("/run/x/vllm")


def arguments(**options: Any) -> list[str]:
    return VllmOptions("/models/base", **options).arguments(SOCKET)


def value_of(name: str, words: list[str]) -> str | None:
    """The value of a flag that is written as one word."""
    found = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    assert len(found) < 2, f"{name} is given twice"
    return found[0] if found else None


def test_neutral_defaults() -> None:
    """Nothing bends what is sampled, adapters are on, log probabilities are processed, a CPU is spared."""
    words = arguments()
    for name, value in {
        "--model": "/models/base",
        "--uds": str(SOCKET),
        "--generation-config": "vllm",
        "--logprobs-mode": "processed_logprobs",
        "--max-lora-rank": "16",
        "--max-loras": "4",
        "--max-cpu-loras": "32",
        "--worker-extension-cls": "art_vllm_worker.LogprobsBeforeTopP",
        "--tool-call-parser": "hermes",
        "--dtype": "float32",
        "--kv-cache-memory-bytes": str(256 * 1024**2),
        "--max-num-seqs": "64",
    }.items():
        assert value_of(name, words) == value, name
    assert {"--enable-lora", "--enable-auto-tool-choice", "--enforce-eager"} <= {*words}


def test_a_gpu_is_left_to_vllms_own_defaults() -> None:
    """What spares a CPU is not asked for there."""
    names = {word.partition("=")[0] for word in arguments(device="cuda")}
    assert not names & {"--enforce-eager", "--dtype", "--kv-cache-memory-bytes", "--max-num-seqs"}


def test_what_the_user_says_wins() -> None:
    """Over our defaults; and the server's options win over the engine's."""
    words = arguments(
        engine_args={"dtype": "bfloat16", "max_loras": 40, "tool_call_parser": "x", "seed": None},
        server_args={"tool_call_parser": "qwen3_xml", "enable_auto_tool_choice": False},
    )
    assert value_of("--dtype", words) == "bfloat16"
    assert value_of("--tool-call-parser", words) == "qwen3_xml"
    assert value_of("--max-cpu-loras", words) == "40"  # vLLM wants room for a whole batch
    assert "--no-enable-auto-tool-choice" in words
    assert not any(word.startswith("--seed") for word in words)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--some-name"]),
        (False, ["--no-some-name"]),
        (None, []),
        (3, ["--some-name=3"]),
        ("-x", ["--some-name=-x"]),
        ({"a": [1]}, ["--some-name", '{"a": [1]}']),
        ([1, "b"], ["--some-name", "1", "b"]),
        ([], []),
    ],
)
def test_how_values_are_spelled(value: Any, words: list[str]) -> None:
    """Switches, values, JSON and lists, as vLLM's command line wants them."""
    bare, given = arguments(), arguments(engine_args={"some_name": value})
    at = next((i for i, word in enumerate(given) if "some-name" in word), 0)
    assert given[at : at + len(words)] == words
    assert len(given) == len(bare) + len(words)


@pytest.mark.parametrize(
    "name",
    [
        "uds",
        "model",
        "host",
        "ssl_keyfile",
        "lora_modules",
        "worker_extension_cls",
        "logprobs_mode",
        "speculative_config",
        "served_model_name",
        "lora_target_modules",
    ],
)
def test_what_the_rest_relies_on_cannot_be_set(name: str) -> None:
    """The option is refused by its name, whichever group it comes in; None asks for nothing."""
    for group in ("engine_args", "server_args"):
        with pytest.raises(ConfigurationError, match=f"{name}='x' cannot be set for vLLM: "):
            arguments(**{group: {name: "x"}})
        assert arguments(**{group: {name: None}}) == arguments()


def test_asking_for_what_holds_anyway_is_no_error() -> None:
    """Upstream's scripts may go on saying it; the opposite is refused."""
    given = {"return_tokens_as_token_ids": True, "enable_lora": True}
    assert arguments(server_args=given) == arguments()
    for name in given:
        with pytest.raises(ConfigurationError, match=f"{name}=False"):
            arguments(server_args={name: False})


def test_sleep_mode_is_for_gpus() -> None:
    """On a CPU, where vLLM would refuse to start with it, it is left out."""
    asked = {"enable_sleep_mode": True}
    assert arguments(engine_args=asked) == arguments()
    assert "--enable-sleep-mode" in arguments(device="cuda", engine_args=asked)


@pytest.mark.parametrize(("rank", "room"), [(1, "1"), (2, "8"), (8, "8"), (17, "32"), (512, "512")])
def test_any_rank_finds_room(rank: int, room: str) -> None:
    """There is room in vLLM for certain ranks only; the next one is asked for."""
    assert value_of("--max-lora-rank", arguments(max_lora_rank=rank)) == room


def test_a_rank_beyond_vllm_is_refused() -> None:
    """The message names the highest."""
    with pytest.raises(ConfigurationError, match="LoRA rank 513 is above 512"):
        arguments(max_lora_rank=513)


def test_the_environment_of_a_cpu_server() -> None:
    """One thread that is bound to no core, no telemetry, adapters at run time, our worker extension importable."""
    environment = VllmOptions("base", threads=2).environment({"PYTHONPATH": "/mine", "HOME": "/h"})
    assert environment == {
        "PYTHONPATH": f"{SIDE}:/mine",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_API_KEY": "",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "OMP_NUM_THREADS": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    assert VllmOptions("base").environment({})["PYTHONPATH"] == str(SIDE)


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cuda", "3,4", None),
        ("cuda:1", None, "1"),
        ("cuda:1", "3,4", "4"),
        ("cuda:0", "GPU-a, GPU-b", "GPU-a"),
    ],
)
def test_a_numbered_gpu_is_the_one_of_this_process(
    device: str, visible: str | None, expected: str | None
) -> None:
    """It is counted among those that this process sees."""
    inherited = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = VllmOptions("base", device=device).environment(inherited)
    assert found.get("CUDA_VISIBLE_DEVICES") == expected
    assert "OMP_NUM_THREADS" not in found


@pytest.mark.parametrize(
    ("device", "visible", "named"),
    [("cuda:2", "3,4", "GPU 2"), ("tpu:0", "", "'tpu:0'"), ("cuda:x", "", "'cuda:x'")],
)
def test_a_gpu_that_is_not_there_is_refused(device: str, visible: str, named: str) -> None:
    """The message names it."""
    with pytest.raises(ConfigurationError, match=named):
        VllmOptions("base", device=device).environment({"CUDA_VISIBLE_DEVICES": visible})


def test_both_sides_are_files() -> None:
    """What runs inside vLLM's processes ships with the package."""
    assert (SIDE / "launch.py").is_file()
    assert (SIDE / "art_vllm_worker.py").is_file()


def test_an_option_with_dashes_is_the_same_option() -> None:
    """What is not the user's to set is not to be had by another spelling."""
    with pytest.raises(ConfigurationError, match="api_key"):
        VllmOptions("base", engine_args={"api-key": "k"}).arguments(Path("s"))
    words = VllmOptions("base", engine_args={"max-loras": "8"}).arguments(Path("s"))
    assert "--max-loras=8" in words
    assert "--max-cpu-loras=32" in words

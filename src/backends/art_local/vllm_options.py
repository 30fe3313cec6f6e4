"""The command line and the environment of a vLLM server. Values in, values out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art_local.devices import gpu_number, visible_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping

SIDE = Path(__file__).parent / "vllm_side"
"""What runs inside vLLM's processes; art_local itself need not be importable there."""

_CPU_DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 256 << 20,
    "max_num_seqs": 64,
}
# Adapters beyond these are read from their files again; those of one batch take memory in advance.
_ADAPTERS_IN_MEMORY = 32
_ADAPTERS_IN_A_BATCH = 4
_DEFAULTS: dict[str, Any] = {
    "enable_auto_tool_choice": True,
    # What a model's authors recommend for sampling must not bend the distribution that is trained on.
    "generation_config": "vllm",
    "max_loras": _ADAPTERS_IN_A_BATCH,
    "tool_call_parser": "hermes",
}
# Where a user's value would break what the rest relies on, with the reason that the message gives.
_OURS = {
    "api_key": "the gateway in front of vLLM checks the key",
    "enable_lora": "checkpoints are served as LoRA adapters",
    "headless": "the server answers requests",
    "host": "only the gateway listens on the network",
    "logprobs_mode": "training needs log probabilities as they are given",
    "lora_modules": "checkpoints are loaded while it runs",
    "lora_target_modules": "every module of an adapter is served",
    "model": "it is the model's base_model",
    "model_tag": "it is the model's base_model",
    "port": "only the gateway listens on the network",
    "return_tokens_as_token_ids": "token ids come beside the tokens",
    "root_path": "only the gateway listens on the network",
    "served_model_name": "the gateway resolves names",
    "speculative_config": "drafted tokens get other log probabilities",
    "uds": "the gateway reaches vLLM over a socket of its own",
    "worker_extension_cls": "the worker extension corrects log probabilities",
}
# Upstream's option at the value at which it asks for what holds anyway.
_HARMLESS = {"enable_lora": True, "return_tokens_as_token_ids": True}


@dataclass(frozen=True)
class VllmOptions:
    """How one vLLM server runs.

    Attributes:
        base_model: Directory or hub id of the base model.
        device: "cpu", "cuda" or "cuda:N".
        threads: Threads that a CPU server computes with. More than one is slower for small models.
        max_lora_rank: Highest rank of an adapter.
        engine_args: vLLM's own options, by their names with underscores.
        server_args: Those of its OpenAI server; where both name one, these win.
    """

    base_model: str
    device: str = "cpu"
    threads: int = 1
    max_lora_rank: int = 16
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    server_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def _given(self) -> dict[str, Any]:
        both = {**self.engine_args, **self.server_args}
        return {name.replace("-", "_"): value for name, value in both.items()}

    @property
    def can_sleep(self) -> bool:
        """Whether the server answers when it is sent to sleep; on a CPU it does, and frees nothing."""
        return self.device == "cpu" or bool(self._given.get("enable_sleep_mode"))

    def arguments(self, socket: Path) -> list[str]:
        """Return the command line of vLLM's OpenAI server.

        Args:
            socket: Path of the unix socket it listens on.

        Raises:
            ConfigurationError: An option is not the user's to set.
        """
        given = self._given
        options = {
            **_DEFAULTS,
            **(_CPU_DEFAULTS if self.device == "cpu" else {}),
            "max_lora_rank": lora_rank_of_vllm(self.max_lora_rank),
            **{name: value for name, value in given.items() if not _is_ours(name, value)},
            "model": self.base_model,
            "uds": str(socket),
            "enable_lora": True,
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": "art_vllm_worker.LogprobsBeforeTopP",
        }
        if self.device == "cpu":
            # vLLM refuses it there, but its routes answer anyway; there is no memory to be given back.
            options.pop("enable_sleep_mode", None)
        in_a_batch = int(options["max_loras"] or 0) or _ADAPTERS_IN_A_BATCH
        options.setdefault("max_cpu_loras", max(_ADAPTERS_IN_MEMORY, in_a_batch))
        return [word for name, value in options.items() for word in _words(name, value)]

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return what vLLM's processes see besides `inherited`, the environment of this process."""
        path = [str(SIDE), *filter(None, [inherited.get("PYTHONPATH")])]
        environment = {
            "PYTHONPATH": ":".join(path),
            "DO_NOT_TRACK": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            # A key of the user's would lock the gateway out; the socket's directory is private.
            "VLLM_API_KEY": "",
            # Routes to sleep, wake up and ask the workers; only the private socket leads to them.
            "VLLM_SERVER_DEV_MODE": "1",
            # The worker extension knows the sampler of this model runner; see vllm_side/art_vllm_worker.py.
            "VLLM_USE_V2_MODEL_RUNNER": "0",
        }
        if self.device == "cpu":
            environment["OMP_NUM_THREADS"] = str(self.threads)
            # Servers and trainers share the cores; bound threads would all sit on the first ones.
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        elif ":" in self.device:
            # Under which the first GPU is the one that `device` names here.
            environment["CUDA_VISIBLE_DEVICES"] = visible_gpus(
                [gpu_number(self.device)], inherited.get("CUDA_VISIBLE_DEVICES")
            )
        return environment


def _is_ours(name: str, value: Any) -> bool:
    """Return whether an option is to be left out, because it asks for what holds anyway.

    Raises:
        ConfigurationError: It is not the user's to set.
    """
    if name in _HARMLESS and value == _HARMLESS[name]:
        return True
    reason = _OURS.get(name)
    if name.startswith("ssl_"):
        reason = "only the gateway listens on the network"
    if reason is not None and value is not None:
        raise ConfigurationError(f"{name}={value!r} cannot be set for vLLM: {reason}; leave it out")
    return reason is not None


def _words(name: str, value: Any) -> list[str]:
    """Spell one option for a command line; None leaves it at vLLM's default."""
    flag = name.replace("_", "-")
    match value:
        case None:
            return []
        case bool():
            return [f"--{flag}" if value else f"--no-{flag}"]
        case dict():
            return [f"--{flag}", json.dumps(value)]
        case list() | tuple():
            return [f"--{flag}", *map(str, value)] if value else []
        case _:
            # One word: a value may begin with a dash.
            return [f"--{flag}={value}"]


def lora_rank_of_vllm(rank: int) -> int:
    """Return the lowest of the ranks that vLLM makes room for which is not below `rank`."""
    known = (1, 8, 16, 32, 64, 128, 256, 320, 512)
    for candidate in known:
        if candidate >= rank:
            return candidate
    raise ConfigurationError(f"LoRA rank {rank} is above {known[-1]}, the highest that vLLM serves")

"""Loaded into each vLLM worker: makes it hand out log probabilities as training needs them.

Training wants log_softmax(logits / temperature) over the whole vocabulary. vLLM has that either before the
temperature (`raw_logprobs`) or after top-k, top-p and min-p have cut the distribution (`processed_logprobs`),
where the token that is drawn from a small nucleus always has about log 1. So the sampling method of vLLM's
sampler is wrapped. Penalties, logit biases and bad words count as part of the logits, as vLLM applies them before.

It works on the sampler of vLLM's first model runner ("V1"), which the environment variable
VLLM_USE_V2_MODEL_RUNNER=0 chooses; a worker with another sampler says so when it is asked. Tested with vLLM
0.32 on CPUs; on a GPU it is the same code, and not tried yet.
"""

from __future__ import annotations

import inspect
import os
import signal
import threading
import time
from typing import Any

import vllm
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

_KNOWN_PARAMETERS = ["self", "logits", "sampling_metadata", "logprobs_mode_override"]
_KNOWN_FIELDS = {"temperature", "all_greedy", "all_random", "max_num_logprobs"}

_WATCH_S = 1.0

_vllm_sample = Sampler.sample


def _sample(
    self: Any, logits: Any, sampling_metadata: Any, logprobs_mode_override: str | None = None
) -> tuple[Any, Any]:
    """Sample as vLLM does, with the log probabilities from before top-k, top-p and min-p."""
    mode = logprobs_mode_override or self.logprobs_mode
    logprobs = None
    # A batch that is greedy throughout is neither scaled nor cut, so vLLM's own are right.
    if (
        mode == "processed_logprobs"
        and sampling_metadata.max_num_logprobs is not None
        and not sampling_metadata.all_greedy
    ):
        scaled = self.apply_temperature(
            logits.clone(), sampling_metadata.temperature, sampling_metadata.all_random
        )
        logprobs = self.compute_logprobs(scaled)
    sampled, processed = _vllm_sample(self, logits, sampling_metadata, logprobs_mode_override)
    return sampled, processed if logprobs is None else logprobs


def _end_with_launcher() -> None:
    """End the whole group when its leader, which watches over the parent, is gone: nobody else would."""

    def watch() -> None:
        leader = os.getpgrp()
        while True:
            try:
                os.kill(leader, 0)
            except ProcessLookupError:
                os.killpg(0, signal.SIGKILL)
            time.sleep(_WATCH_S)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


def _install() -> None:
    parameters = list(inspect.signature(_vllm_sample).parameters)
    fields = set(SamplingMetadata.__dataclass_fields__)
    helpers = all(hasattr(Sampler, name) for name in ("apply_temperature", "compute_logprobs"))
    if parameters != _KNOWN_PARAMETERS or not fields >= _KNOWN_FIELDS or not helpers:
        raise RuntimeError(
            f"vLLM {vllm.__version__} has another sampler than the one whose log probabilities can be corrected; "
            f"use the version that this package was tested with (sample{tuple(parameters)})"
        )
    Sampler.sample = _sample


_install()
_end_with_launcher()


class LogprobsBeforeTopP:
    """What vLLM adds to its worker class (`--worker-extension-cls`); importing this module does the rest."""

    def sampler_in_use(self) -> dict[str, Any]:
        """Tell which sampler this worker uses, and whether it is the wrapped one."""
        sampler = getattr(getattr(self, "model_runner", None), "sampler", None)
        wrapped = isinstance(sampler, Sampler) and type(sampler).sample is _sample
        return {"class": f"{type(sampler).__module__}.{type(sampler).__name__}", "wrapped": wrapped}

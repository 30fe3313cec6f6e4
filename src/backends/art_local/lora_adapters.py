"""The LoRA adapters of one model: loaded when needed, checked, and switched between forwards."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peft import PeftConfig, PeftModel
from safetensors import SafetensorError

from art.errors import ConfigurationError
from art_local.checkpoint_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Container


class LoraAdapters:
    """Adapters by id; the least recently used leave memory. Used from one thread.

    Args:
        model: The base model. Adapters are put into it in place, so its forward runs the active one.
        max_loaded: Adapters kept in memory, beyond those in use.
    """

    def __init__(self, model: Any, max_loaded: int) -> None:
        self._model = model
        self._max_loaded = max_loaded
        self._paths: dict[str, str] = {}
        self._loaded: OrderedDict[str, None] = OrderedDict()  # least recently used first
        self._peft: Any = None
        self._active: str | None = None

    def register(self, adapter: str, path: str) -> None:
        """Make a directory known under an id; it is read when first used. Ids must not contain a dot."""
        self._paths[adapter] = path

    def unregister(self, adapter: str) -> None:
        """Forget an adapter; unknown ids are ignored."""
        self._paths.pop(adapter, None)
        if adapter in self._loaded:
            self._drop(adapter)

    def activate(self, adapter: str | None, in_use: Container[str | None] = ()) -> None:
        """Let the model's forward run an adapter, or the plain base model for None.

        Args:
            adapter: The id.
            in_use: Adapters that must stay in memory.

        Raises:
            ConfigurationError: Its directory holds no adapter that fits the model.
        """
        if adapter is not None:
            if adapter not in self._loaded:
                self._make_room(in_use)
                self._load(adapter)
            self._loaded.move_to_end(adapter)
        if adapter == self._active:
            return
        if adapter is None:
            if self._peft is not None:
                self._peft.base_model.disable_adapter_layers()
        else:
            self._peft.base_model.enable_adapter_layers()
            self._peft.set_adapter(adapter, inference_mode=True)
        self._active = adapter

    def _load(self, adapter: str) -> None:
        path = self._paths.get(adapter)
        if path is None:
            raise ConfigurationError(f"the adapter {adapter!r} is not loaded")
        check_adapter_directory(path)
        self._active = "unknown"  # peft changes what is active while it loads
        try:
            result = self._read(adapter, path)
        # peft, torch and safetensors report files that are damaged or do not fit with each of these.
        except (ValueError, TypeError, RuntimeError, KeyError, OSError, SafetensorError) as error:
            self._drop(adapter)
            raise ConfigurationError(
                f"the adapter in {path} does not fit the base model: {error}"
            ) from error
        # peft looks for the id anywhere in a key, so it names weights of `slot10` as missing from `slot1` too.
        missing = [key for key in result.missing_keys if adapter in key.split(".")]
        wrong = [*missing, *result.unexpected_keys]
        if wrong:
            self._drop(adapter)
            raise ConfigurationError(
                f"the adapter in {path} does not fit the base model: {len(missing)} weights are missing "
                f"and {len(result.unexpected_keys)} have no place, such as {wrong[0]}; was it trained from another model?"
            )
        self._loaded[adapter] = None

    def _read(self, adapter: str, path: str) -> Any:
        if self._peft is None:
            self._peft = PeftModel(
                self._model, PeftConfig.from_pretrained(path), adapter_name=adapter
            )
        result = self._peft.load_adapter(
            path, adapter_name=adapter, torch_device=str(self._model.device)
        )
        self._peft.eval()
        return result

    def _make_room(self, in_use: Container[str | None]) -> None:
        idle = [adapter for adapter in self._loaded if adapter not in in_use]
        surplus = len(self._loaded) + 1 - self._max_loaded
        for adapter in idle[: max(surplus, 0)]:
            self._drop(adapter)

    def _drop(self, adapter: str) -> None:
        self._loaded.pop(adapter, None)
        if self._peft is None or adapter not in self._peft.peft_config:
            return
        self._active = "unknown"
        if self._loaded:  # peft warns when the active adapter is deleted
            self._peft.set_adapter(next(iter(self._loaded)), inference_mode=True)
        self._peft.delete_adapter(adapter)


def check_adapter_directory(path: str) -> None:
    """Check that a directory has the files of a LoRA adapter.

    Without this, peft would look for missing files on the Hugging Face hub.

    Raises:
        ConfigurationError: It has not.
    """
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (Path(path) / name).is_file():
            raise ConfigurationError(f"{path} holds no LoRA adapter: {name} is missing")
    try:
        kind = json.loads((Path(path) / ADAPTER_CONFIG).read_text(encoding="utf-8"))["peft_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path}/{ADAPTER_CONFIG} cannot be read: {error!r}") from error
    if kind != "LORA":
        raise ConfigurationError(
            f"the adapter in {path} is of type {kind!r}; only LORA is supported"
        )

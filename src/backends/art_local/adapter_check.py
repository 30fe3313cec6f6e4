"""Whether a LoRA adapter belongs to a base model, told from the files alone: no torch, no weights are read.

vLLM 0.32 serves, without a word, an adapter whose modules stand elsewhere in the model as if there were none, and
one that is too narrow for its modules as if it were padded; so what does not fit has to be refused before.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from art.errors import ConfigurationError

_ADAPTER = "adapter_model.safetensors"
# Number formats in which a weight matrix has the shape of its layer; packed ones (4 bits in a byte) do not.
_PLAIN_DTYPES = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}
_MAX_HEADER_BYTES = 1 << 28

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Tensor:
    shape: Shape
    is_plain: bool


@dataclass(frozen=True)
class _BaseModel:
    """The modules of a base model.

    Attributes:
        shapes: The shapes under which each name occurs; None is a shape that the files do not tell.
        has_towers: Whether it has other towers beside the one of text; names then begin with `layers.`.
    """

    shapes: dict[str, set[Shape | None]]
    has_towers: bool

    @classmethod
    @lru_cache(maxsize=8)  # every step brings an adapter, and a large model has many files
    def read(cls, directory: Path) -> _BaseModel:
        """Read all names and shapes of the safetensors files in a directory."""
        base = cls({}, _has_towers(directory / "config.json"))
        for file in sorted(directory.glob("*.safetensors")):
            for name, tensor in _read_header(file).items():
                base._add(name, tensor)
        return base

    def _add(self, name: str, tensor: _Tensor) -> None:
        module, _, kind = name.rpartition(".")
        known = kind == "weight" and tensor.is_plain and len(tensor.shape) == 2
        if kind in {"bias", "weight"} and not known and tensor.is_plain:
            return  # a norm, or what comes beside a weight
        spelt = _from_layers(module) if self.has_towers else module
        self.shapes.setdefault(spelt, set()).add(tensor.shape if known else None)
        if module.endswith("embed_tokens"):  # one matrix for both, where the files have no other
            self.shapes.setdefault("lm_head", set()).add(tensor.shape if known else None)

    def shapes_of(self, module: str) -> set[Shape | None] | None:
        """Return the shapes under which a module of an adapter occurs; None if it does not."""
        if self.has_towers:
            return self.shapes.get(_from_layers(module))
        name = module.removeprefix("base_model.model.")
        # Files of a model that was saved without its head may lack the first parts of each name.
        while name not in self.shapes and "." in name:
            name = name.partition(".")[2]
        return self.shapes.get(name)


def _has_towers(config: Path) -> bool:
    try:
        options = json.loads(config.read_text())
    except (OSError, ValueError):
        return True  # not known: compare less strictly
    return any(name in options for name in ("text_config", "vision_config", "audio_config"))


def check_adapter_fits(adapter_dir: str | os.PathLike[str], base_model: str) -> None:
    """Check that every tensor of a LoRA adapter has a module in the base model, of its shape.

    Names are compared whole, but for models that have a text tower among others: there from `layers.` on, as the
    files spell the towers in one way and the running model in another. Nothing is known, and the adapter passes,
    where the base model's files are not on this disk as safetensors. Mixture-of-experts blocks pass too, as they
    are stored in several ways, and so does an adapter for some of the layers only.

    Args:
        adapter_dir: Directory that peft's `save_pretrained` wrote.
        base_model: Directory of the base model, or its hub id.

    Raises:
        ConfigurationError: It has no readable weights, or they do not fit; the first misfit is named, and all
            are counted.
    """
    adapter = Path(adapter_dir)
    tensors = _read_header(adapter / _ADAPTER)
    if not tensors:
        raise ConfigurationError(f"the adapter in {adapter} has no tensors; save it again")
    directory = _local_directory(base_model)
    base = _BaseModel.read(directory) if directory is not None else None
    if base is None or not base.shapes:
        return
    misfits = [misfit for name in tensors if (misfit := _misfit(name, tensors, base)) is not None]
    if misfits:
        raise ConfigurationError(
            f"the adapter in {adapter} does not belong to the base model {base_model}: {len(misfits)} of its "
            f"{len(tensors)} tensors do not fit, the first is {misfits[0]}. Serve it with the base model that it "
            "was trained on"
        )


def _misfit(name: str, tensors: dict[str, _Tensor], base: _BaseModel) -> str | None:
    """Return None if a tensor of the adapter fits, else its name and what is wrong with it."""
    if ".experts" in name:
        return None
    for here, there, side in (("lora_A", "lora_B", 1), ("lora_B", "lora_A", 0)):
        module, found, _ = name.partition(f".{here}.")
        if found:
            partner = tensors.get(name.replace(f".{here}.", f".{there}."))
            fault = (
                f"there is no {there} beside it"
                if partner is None
                else _shape_fault(tensors[name].shape, partner.shape, side)
                or _module_fault(tensors[name].shape, side, base.shapes_of(module))
            )
            return None if fault is None else f"{name}: {fault}"
    # Magnitudes (DoRA) and whole modules are refused by vLLM; embeddings, which it serves, are not checked.
    return None


# Rows are outputs, columns are inputs: A is (r, in), B is (out, r), the module's weight (out, in).
# `side` is the axis that a tensor has in common with the module: 1 for A, 0 for B.


def _shape_fault(shape: Shape, partner: Shape, side: int) -> str | None:
    if len(shape) != 2 or len(partner) != 2 or shape[1 - side] != partner[side]:
        return f"shape {list(shape)} beside a partner of shape {list(partner)}"
    return None


def _module_fault(shape: Shape, side: int, shapes: set[Shape | None] | None) -> str | None:
    if shapes is None:
        return "the base model has no such module"
    known = [whole for whole in shapes if whole is not None]
    if len(known) < len(shapes) or any(whole[side] == shape[side] for whole in known):
        return None
    return f"shape {list(shape)} for a module of shape {list(min(known))}"


def _from_layers(module: str) -> str:
    """Return a module's name without what stands before its layer; of one outside the layers the last part."""
    before, found, rest = module.partition("layers.")
    return (
        f"layers.{rest}"
        if found and (not before or before.endswith("."))
        else module.rsplit(".", maxsplit=1)[-1]
    )


def _read_header(path: Path) -> dict[str, _Tensor]:
    """Read names and shapes from a safetensors file: 8 bytes of length (little-endian), then JSON.

    Raises:
        ConfigurationError: It is not there, or damaged.
    """
    try:
        with path.open("rb") as file:
            header = _parse_header(file)
        return {
            name: _Tensor(tuple(entry["shape"]), entry["dtype"] in _PLAIN_DTYPES)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ConfigurationError(
            f"{path} cannot be read as safetensors weights: {type(error).__name__}: {error}"
        ) from error


def _parse_header(file: IO[bytes]) -> dict[str, Any]:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise TypeError("the header is no JSON object")
    return header


def _local_directory(base_model: str) -> Path | None:
    """Return the directory of a base model, or of the snapshot of a hub id, if it is on this disk."""
    path = Path(base_model).expanduser()
    if path.is_dir():
        return path
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    repository = cache / f"models--{base_model.replace('/', '--')}"
    try:
        snapshot = repository / "snapshots" / (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    return snapshot if snapshot.is_dir() else None

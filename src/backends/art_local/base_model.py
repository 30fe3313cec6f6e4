"""Which directory or hub id a base model's name stands for."""

from __future__ import annotations

from pathlib import Path

from art.errors import ConfigurationError

_BUILTIN_PREFIX = "builtin:"
BUILTIN_MODELS = {
    f"{_BUILTIN_PREFIX}letters": Path(__file__).parent / "base_models" / "letters",
    f"{_BUILTIN_PREFIX}guess": Path(__file__).parent / "base_models" / "guess",
}
"""Models that come with this package, by name: no download, no network."""


def resolve_base_model(base_model: str) -> str:
    """Turn what the user named into what `from_pretrained` takes.

    Args:
        base_model: The name of a built-in model ("builtin:letters"), a directory, or an id on the Hugging
            Face hub. Where a directory and a hub id look alike ("org/model"), a directory that exists wins.

    Returns:
        The absolute path of a directory that holds a model, or the hub id as it is.

    Raises:
        ConfigurationError: There is no such built-in model, or a path does not lead to a model.
    """
    if base_model.startswith(_BUILTIN_PREFIX):
        if base_model not in BUILTIN_MODELS:
            raise ConfigurationError(
                f"there is no built-in base model {base_model!r}; there is {', '.join(BUILTIN_MODELS)}"
            )
        return str(BUILTIN_MODELS[base_model])
    path = _expanded(base_model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigurationError(
                f"the base model {str(path.absolute())!r} is a directory without config.json; "
                "name one that `save_pretrained` wrote"
            )
        return str(path.absolute())
    if _looks_like_a_path(base_model):
        problem = "is a file, not a directory" if path.exists() else "does not exist"
        raise ConfigurationError(
            f"the base model {base_model!r} {problem} ({str(path.absolute())!r}); name a directory with "
            "config.json, weights and tokenizer, or a hub id such as 'Qwen/Qwen3-0.6B'"
        )
    return base_model


def _expanded(base_model: str) -> Path:
    try:
        return Path(base_model).expanduser()
    except RuntimeError as error:  # what pathlib raises for `~name` of no known user
        raise ConfigurationError(
            f"the base model {base_model!r} names a home directory that is not known ({error}); "
            "write the path in full"
        ) from error


def _looks_like_a_path(base_model: str) -> bool:
    # Hub ids are "name" or "org/name"; everything else that has a separator is meant as a path.
    return (
        base_model.startswith((".", "/", "~"))
        or "\\" in base_model
        or base_model.count("/") > 1
        or base_model.endswith("/")
    )

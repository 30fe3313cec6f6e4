"""The only place that spells the layout on disk: `{base_path}/{project}/models/{name}/...`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from art.model import Model

DEFAULT_BASE_PATH = ".art"
TRAJECTORIES = "trajectories"
MODEL_FILE = "model.json"
WRITE_LOCK = ".write.lock"

# File systems take 255 bytes a name; the rest is room for suffixes of temporary files.
_MAX_COMPONENT_BYTES = 200
# Percent first: it is what makes two different names give two different directories.
_UNSAFE = re.compile(r'[%/\\:*?"<>|\x00-\x1f\x7f]')


def encode_component(text: object, what: str) -> str:
    """Turn a name into one path component; ordinary names stay as they are.

    Characters unsafe in a path are percent-encoded, so that two names never share a directory.

    Args:
        text: A model's name, a project, or a split.
        what: Names it in the error message.

    Raises:
        ConfigurationError: It is no str, empty, `.` or `..`, not valid Unicode, or too long.
    """
    if not isinstance(text, str) or text in {"", ".", ".."}:
        raise ConfigurationError(
            f"{what} {text!r} cannot be used as a directory name; choose another"
        )
    encoded = _UNSAFE.sub(lambda match: f"%{ord(match.group()):02X}", text)
    try:
        size = len(encoded.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"{what} {text!r} is not valid Unicode ({error.reason})"
        ) from error
    if size > _MAX_COMPONENT_BYTES:
        raise ConfigurationError(
            f"{what} {text[:40]!r}... takes {size} bytes as a directory name; "
            f"at most {_MAX_COMPONENT_BYTES} are possible"
        )
    return encoded


class ModelPaths:
    """Every path of one model's books.

    Attributes:
        given: The model's directory as its base path names it.
        root: The same, independent of where the process goes later (`os.chdir`).
    """

    def __init__(self, base_path: str | Path, project: str, name: str) -> None:
        self.given = (
            Path(base_path)
            / encode_component(project, "project")
            / "models"
            / encode_component(name, "model name")
        )
        self.root = self.given.absolute()

    @property
    def history(self) -> Path:
        """Rows of metrics."""
        return self.root / "history.jsonl"

    @property
    def ledger(self) -> Path:
        """The account of steps."""
        return self.root / "steps.jsonl"

    @property
    def state(self) -> Path:
        """The user's own state."""
        return self.root / "state.json"

    @property
    def model_file(self) -> Path:
        """What the model is."""
        return self.root / MODEL_FILE

    @property
    def checkpoints(self) -> Path:
        """The backend's checkpoints, one directory a step."""
        return self.root / "checkpoints"

    @property
    def write_lock(self) -> Path:
        """Held for the moment of a write."""
        return self.root / WRITE_LOCK

    @property
    def train_lock(self) -> Path:
        """Held for the whole of a train call or a deletion."""
        return self.root / ".train.lock"

    def trajectories(self, split: str, step: int) -> Path:
        """Return the trajectory file of one split and step."""
        return self.root / TRAJECTORIES / encode_component(split, "split") / f"{step:04d}.parquet"


def model_dir(model: Model[Any, Any]) -> Path:
    """Return the directory that holds everything of a model."""
    return ModelPaths(model.base_path, model.project, model.name).given


def checkpoints_dir(model: Model[Any, Any]) -> Path:
    """Return the directory under which a backend keeps a model's checkpoints, one directory a step."""
    return model_dir(model) / "checkpoints"

"""Request directories: how a train call reaches the worker process.

The only reader and writer of `request.json` (what to do) and `batch.safetensors` (flat tensors over all
sequences, one after the other). Free of torch, for the parent's sake; numpy and safetensors are imported when
a batch is written or read, so that the backend can be imported where the extra is missing and say so.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.adapter_kit.sequences import TrainingSequence
from art_local.train_options import TrainOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

_REQUEST_FILE = "request.json"
_BATCH_FILE = "batch.safetensors"


@dataclass(frozen=True)
class TrainRequest:
    """One train call.

    Attributes:
        from_checkpoint: Directory of the checkpoint to train from.
        from_step: Its step, N.
        target_step: The step that is made, N+1.
        to_checkpoint: Directory to commit it to.
        work_dir: Directory for unfinished work, on the same file system.
        learning_rate: Step size, final.
        num_action_tokens: Generated tokens of the whole call, which the loss is divided by.
        options: Options of the loss.
    """

    from_checkpoint: Path
    from_step: int
    target_step: int
    to_checkpoint: Path
    work_dir: Path
    learning_rate: float
    num_action_tokens: int
    options: TrainOptions


def write_request(
    request_dir: Path, request: TrainRequest, sequences: Sequence[TrainingSequence]
) -> None:
    """Write a request directory; it is made if missing."""
    request_dir.mkdir(parents=True, exist_ok=True)
    message = {
        field.name: _plain(getattr(request, field.name))
        for field in fields(request)
        if field.name != "options"
    }
    message["options"] = asdict(request.options)
    (request_dir / _REQUEST_FILE).write_text(json.dumps(message), encoding="utf-8")
    from safetensors.numpy import save_file

    save_file(_flatten(sequences), request_dir / _BATCH_FILE)


def read_request(request_dir: Path) -> tuple[TrainRequest, list[TrainingSequence]]:
    """Read a request directory back."""
    from safetensors.numpy import load_file

    message = json.loads((request_dir / _REQUEST_FILE).read_text(encoding="utf-8"))
    request = TrainRequest(
        from_checkpoint=Path(message["from_checkpoint"]),
        from_step=message["from_step"],
        target_step=message["target_step"],
        to_checkpoint=Path(message["to_checkpoint"]),
        work_dir=Path(message["work_dir"]),
        learning_rate=message["learning_rate"],
        num_action_tokens=message["num_action_tokens"],
        options=TrainOptions(**message["options"]),
    )
    return request, _split(load_file(request_dir / _BATCH_FILE))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _flatten(sequences: Sequence[TrainingSequence]) -> dict[str, np.ndarray[Any, Any]]:
    import numpy as np

    def flat(name: str, dtype: type) -> np.ndarray[Any, Any]:
        return np.array([x for s in sequences for x in getattr(s, name)], dtype=dtype)

    return {
        "token_ids": flat("token_ids", np.int64),
        "trained": flat("trained", np.uint8),
        "logprobs": flat("logprobs", np.float32),
        "temperatures": flat("temperatures", np.float32),
        "sequence_lengths": np.array([len(s.token_ids) for s in sequences], dtype=np.int64),
        "advantages": np.array([s.advantage for s in sequences], dtype=np.float32),
    }


def _split(tensors: dict[str, np.ndarray[Any, Any]]) -> list[TrainingSequence]:
    import numpy as np

    ends = np.cumsum(tensors["sequence_lengths"])[:-1]

    def split(name: str) -> list[list[Any]]:
        if not len(tensors["sequence_lengths"]):
            return []
        return [part.tolist() for part in np.split(tensors[name], ends)]

    rows = zip(
        split("token_ids"),
        split("trained"),
        split("logprobs"),
        split("temperatures"),
        tensors["advantages"].tolist(),
        strict=True,
    )
    return [
        TrainingSequence(ids, [bool(t) for t in trained], logprobs, temperatures, advantage)
        for ids, trained, logprobs, temperatures, advantage in rows
    ]

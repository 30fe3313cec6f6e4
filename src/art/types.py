"""Types of messages, and the small values that a train call takes and returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pydantic

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_message_param import ChatCompletionMessageParam
    from openai.types.chat.chat_completion_tool_param import ChatCompletionToolParam

    Message: TypeAlias = ChatCompletionMessageParam
    MessageOrChoice: TypeAlias = ChatCompletionMessageParam | Choice
    Tools: TypeAlias = list[ChatCompletionToolParam]
else:
    # At run time messages are kept as they come, by identity: validating them against OpenAI's unions
    # drops unknown provider keys and turns lists into one-shot iterators. It also keeps `import art` light.
    Message = Any
    MessageOrChoice = Any
    Tools = list[Any]

Messages: TypeAlias = list[Message]
MessagesAndChoices: TypeAlias = list[MessageOrChoice]
Verbosity: TypeAlias = Literal[0, 1, 2]


class TrainConfig(pydantic.BaseModel):
    """What a train call asks of any backend.

    Attributes:
        learning_rate: Step size of the optimizer. A backend receives it final, scaled by the frontend.
        beta: Weight of a KL penalty, by upstream's older name; 0.0 is off.
        kl_penalty_coef: Weight of a KL penalty towards a reference, folded into the advantages; 0.0 is off.
        target_step: The checkpoint that the call makes, set by the frontend; users leave it at None.
    """

    # A misspelt setting would cost a whole run.
    model_config = pydantic.ConfigDict(extra="forbid")

    learning_rate: pydantic.FiniteFloat = pydantic.Field(default=5e-6, ge=0.0)
    beta: pydantic.FiniteFloat = 0.0
    kl_penalty_coef: pydantic.FiniteFloat = 0.0
    target_step: int | None = None


class TrainSFTConfig(pydantic.BaseModel):
    """What supervised fine-tuning asks of a backend.

    Attributes:
        learning_rate: One value, or one per batch.
        batch_size: Trajectories per gradient step, or "auto".
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    learning_rate: float | list[float] = 5e-5
    batch_size: int | Literal["auto"] = "auto"


@dataclass
class TrainResult:
    """What a train call returns.

    Attributes:
        step: The step after this call.
        metrics: The backend's metrics over the whole call (keys `num_*` summed, others averaged) and the
            frontend's own: counts of groups, and the learning rate that was used.
    """

    step: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class LocalTrainResult(TrainResult):
    """A train result of the local backend.

    Attributes:
        checkpoint_path: Directory of the checkpoint that the call made.
    """

    checkpoint_path: str | None = None


@dataclass
class ServerlessTrainResult(TrainResult):
    """A train result of the serverless backend.

    Attributes:
        artifact_name: Name of the artifact that holds the checkpoint.
    """

    artifact_name: str | None = None

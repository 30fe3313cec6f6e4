"""The contract between the frontend and a backend, in numbered clauses.

A backend does GPU work only. It is any object with the two methods of `Backend`; everything else is an
optional capability, a protocol of one method. The frontend keeps all books: trajectories, history, metrics,
the step, the learning rate, the choice of the best checkpoint. The documentation and the conformance suite
use the clause numbers given here.

Training (`_train_model`):

- T1: It returns an async iterator at once (not a coroutine) and yields one dict per gradient step, while
  training goes on.
- T2: `config.learning_rate` is final and applied as given: the frontend has applied and removed
  `scale_learning_rate_by_reward_std_dev` and `num_trajectories_learning_rate_multiplier_power`.
  `config.target_step` is the checkpoint that this call makes, N+1, trained from checkpoint N.
- T3: Keys are plain names without a split prefix, none of `step`, `policy_step`, `reward`, `reward_std_dev`,
  `recorded_at`, `training_step`, `learning_rate`; values are finite real numbers. `num_gradient_steps` is the
  expected total: progress only, not logged. Keys `num_*` are summed over the stream, others averaged.
- T4: At a clean end of the stream checkpoint `target_step` is complete on durable storage, loadable, and
  what the endpoint serves as the latest.
- T5: After an exception or a cancellation before that commit there is no checkpoint `target_step`, nothing
  that a later start could take for a whole one, and the next call starts clean from checkpoint N. After the
  commit the checkpoint stays, and T8 applies. Cancellation is not swallowed; remote work that cannot be
  cancelled is awaited or adopted before the next train.
- T6: With nothing trainable it yields no event and leaves the weights unchanged; the step still advances.
- T7: In the model's directory it writes only under `checkpoints/{step}/` and a dot-directory of its own beside
  them. It touches no file of the frontend, nor cwd, environ, the global RNG, the logging configuration or
  `wandb.run`, and mutates neither the groups nor the model. A map of its own is keyed by (project, name).
- T8: A `target_step` that already exists is replaced by this call's result.

Deletion (`_delete_checkpoint_files`):

- D1: Exactly `steps_to_keep` survive. The frontend always includes the latest.
- D2: Order, duplicates and unknown steps are harmless; the call can be repeated; an empty list raises.
- D3: Other models and projects stay untouched, symlinks are not followed, names that are not a plain step
  number are ignored.
- D4: "Already gone" is success. Other failures do not stop the rest and are raised together.
- D5: Doomed steps leave listing and serving at once: new requests get a 404, never the base model's text.
  Requests in flight finish, or end with a clear error within a drain time.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from art.errors import InvalidBackendError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from art import dev
    from art.model import Model, TrainableModel
    from art.trajectories import Trajectory, TrajectoryGroup
    from art.types import TrainConfig, TrainSFTConfig

AnyModel: TypeAlias = "Model[Any, Any]"
AnyTrainableModel: TypeAlias = "TrainableModel[Any, Any]"


class Backend(Protocol):
    """The whole contract that every backend must keep: two methods."""

    def _train_model(
        self,
        model: AnyTrainableModel,
        trajectory_groups: list[TrajectoryGroup],
        config: TrainConfig,
        dev_config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Train one step from checkpoint N to `config.target_step`; clauses T1-T8.

        Implemented as an async generator (`async def` with `yield`).

        Args:
            model: The model to train.
            trajectory_groups: Groups with finite rewards only.
            config: Its learning rate is final.
            dev_config: Further options by upstream's names; an option that is not supported is refused.
            verbose: Ask for more log lines.
        """
        ...

    async def _delete_checkpoint_files(
        self, model: AnyTrainableModel, steps_to_keep: list[int]
    ) -> None:
        """Delete the files of every checkpoint but these; clauses D1-D5."""
        ...


@runtime_checkable
class SupportsStep(Protocol):
    """The backend can tell which step its newest checkpoint has."""

    async def _get_step(self, model: AnyTrainableModel) -> int:
        """Return the step of the newest whole checkpoint, 0 if there is none."""
        ...


@runtime_checkable
class SupportsCheckpointListing(Protocol):
    """The backend can list its checkpoints."""

    async def _list_checkpoint_steps(self, model: AnyTrainableModel) -> list[int]:
        """Return the steps of all whole checkpoints, ascending."""
        ...


@runtime_checkable
class SupportsInference(Protocol):
    """The backend serves the model at an OpenAI-compatible endpoint."""

    async def _prepare_backend_for_training(
        self, model: AnyTrainableModel, config: dev.OpenAIServerConfig | None
    ) -> tuple[str, str]:
        """Start serving (step 0 at least) and return (base_url, api_key). May be called again."""
        ...


@runtime_checkable
class SupportsInferenceName(Protocol):
    """The endpoint knows a step of a model by a name of its own."""

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        """Return the name to send to the endpoint; with step None, the name of the latest."""
        ...


@runtime_checkable
class SupportsInferenceHealth(Protocol):
    """The backend can tell that its inference endpoint is gone, and why."""

    def _inference_failure(self, model: AnyModel) -> str | None:
        """Return None while the endpoint is alive, else what happened with the tail of its log."""
        ...


@runtime_checkable
class SupportsDefaultBasePath(Protocol):
    """The backend was built with an explicit path that stands in where the model has none."""

    def _default_base_path(self) -> str | None:
        """Return that path, or None if the user gave none."""
        ...


@runtime_checkable
class SupportsRegister(Protocol):
    """The backend wants to hear of a model before its first train."""

    async def register(self, model: AnyModel) -> None:
        """Prepare for a model; repeatable."""
        ...


@runtime_checkable
class SupportsClose(Protocol):
    """The backend holds something that must be released."""

    async def close(self) -> None:
        """Release everything; repeatable."""
        ...


@runtime_checkable
class SupportsSFT(Protocol):
    """The backend can fine-tune on trajectories as they are."""

    def _train_sft(
        self,
        model: AnyTrainableModel,
        trajectories: list[Trajectory],
        config: TrainSFTConfig,
        dev_config: dev.TrainSFTConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Fine-tune; the same clauses as for `_train_model` hold."""
        ...


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do, resolved once when it is set: each field is the backend itself, or None.

    Callers use `capabilities.step` and so on; nothing else in the frontend probes a backend.
    """

    step: SupportsStep | None = None
    listing: SupportsCheckpointListing | None = None
    inference: SupportsInference | None = None
    inference_name: SupportsInferenceName | None = None
    inference_health: SupportsInferenceHealth | None = None
    default_base_path: SupportsDefaultBasePath | None = None
    register: SupportsRegister | None = None
    close: SupportsClose | None = None
    sft: SupportsSFT | None = None

    @classmethod
    def of(cls, backend: object) -> Capabilities:
        """Resolve the optional capabilities of any object, without asking for the two methods."""
        return cls(
            step=backend if isinstance(backend, SupportsStep) else None,
            listing=backend if isinstance(backend, SupportsCheckpointListing) else None,
            inference=backend if isinstance(backend, SupportsInference) else None,
            inference_name=backend if isinstance(backend, SupportsInferenceName) else None,
            inference_health=backend if isinstance(backend, SupportsInferenceHealth) else None,
            default_base_path=backend if isinstance(backend, SupportsDefaultBasePath) else None,
            register=backend if isinstance(backend, SupportsRegister) else None,
            close=backend if isinstance(backend, SupportsClose) else None,
            sft=backend if isinstance(backend, SupportsSFT) else None,
        )


def check_backend(backend: object) -> None:
    """Check that an object has the two methods of `Backend` in their right shape.

    Raises:
        InvalidBackendError: Names the method, what is wrong with it, and how it should look.
    """
    if inspect.isclass(backend):
        raise InvalidBackendError(
            f"a backend object is needed, but the class {backend.__name__} was passed; "
            f"call it: {backend.__name__}()"
        )
    train = _required_method(backend, "_train_model")
    _check_parameters(backend, train, ("model", "groups", "config", "dev_config", False))
    if not _returns_async_iterator(train):
        raise InvalidBackendError(
            f"{_name(backend)}._train_model is {_kind(train)}; it must be an async generator "
            "(`async def` with `yield`), or a plain `def` annotated `-> AsyncIterator[dict[str, float]]` "
            "(clause T1)"
        )
    delete = _required_method(backend, "_delete_checkpoint_files")
    _check_parameters(backend, delete, ("model", [0]))
    if not inspect.iscoroutinefunction(inspect.unwrap(delete)):
        raise InvalidBackendError(
            f"{_name(backend)}._delete_checkpoint_files is {_kind(delete)}; it must be a coroutine "
            "function: `async def _delete_checkpoint_files(self, model, steps_to_keep)`"
        )


def _name(backend: object) -> str:
    return type(backend).__name__


def _required_method(backend: object, name: str) -> Callable[..., Any]:
    # A stub inherited from the Protocol itself does nothing, so it counts as missing.
    stub = inspect.getattr_static(Backend, name)
    if inspect.getattr_static(type(backend), name, None) is stub:
        method = None
    else:
        method = getattr(backend, name, None)
    if method is None:
        raise InvalidBackendError(
            f"{_name(backend)} has no method {name}; a backend needs the two methods of art.Backend: "
            "_train_model and _delete_checkpoint_files"
        )
    if not callable(method):
        raise InvalidBackendError(
            f"{_name(backend)}.{name} is a {type(method).__name__}, not a method"
        )
    return method  # type: ignore[no-any-return]


def _check_parameters(
    backend: object, method: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    try:
        signature = inspect.signature(method)
    except ValueError:  # a builtin without a signature: the call itself will tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InvalidBackendError(
            f"{_name(backend)}.{method.__name__}{signature} cannot take the frontend's arguments: {error}"
        ) from error


def _returns_async_iterator(method: Callable[..., Any]) -> bool:
    function = inspect.unwrap(method)
    if inspect.isasyncgenfunction(function):
        return True
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        return False
    # A plain function may hand on another one's iterator; its annotation must say so.
    annotation = str(inspect.signature(function).return_annotation)
    return "AsyncIter" in annotation or "AsyncGenerator" in annotation


def _kind(method: Callable[..., Any]) -> str:
    function = inspect.unwrap(method)
    if inspect.isasyncgenfunction(function):
        return "an async generator"
    if inspect.iscoroutinefunction(function):
        return "a coroutine function"
    if inspect.isgeneratorfunction(function):
        return "a synchronous generator"
    return "a synchronous function"

"""Model: what every user of `art` holds, trainable or not. Orchestration only, see `model`."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Generic, cast

import pydantic
from typing_extensions import TypeVar

from art.backend import Capabilities, check_backend
from art.background import run_blocking
from art.books.paths import DEFAULT_BASE_PATH, encode_component, model_dir
from art.books.plain_json import jsonable
from art.clients import ClientCache
from art.errors import ConfigurationError, NotRegisteredError
from art.grouping import as_groups, policy_step_of
from art.steps import checked_step, current_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import polars as pl
    from openai import AsyncOpenAI

    from art.backend import Backend
    from art.books.log import Books
    from art.books.sinks import Sink
    from art.trajectories import Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)

ConfigT = TypeVar("ConfigT", bound=pydantic.BaseModel | None, default=Any)
StateT = TypeVar("StateT", bound=dict[str, Any], default=dict[str, Any])

# Held while books are opened: two threads must not open two, each with sinks of its own.
_opening = threading.Lock()


class Model(pydantic.BaseModel, Generic[ConfigT, StateT]):
    """A model that rollouts can ask and whose rollouts can be logged.

    Attributes:
        name: Name of the model, and of its directory.
        project: The project that the model belongs to.
        entity: Owner at a remote service, where one is used.
        id: Identifier at a remote service.
        run_id: Identifier of a run at a remote service.
        config: Any pydantic model of the user's own.
        trainable: Whether the model can be trained.
        inference_api_key: Key of the endpoint; filled in by `register` for a trainable model.
        inference_base_url: Address of the endpoint; filled in likewise.
        inference_model_name: Name to send to the endpoint instead of `name`.
        base_path: Directory under which the books are kept.
        report_metrics: Names of metric sinks or Sink objects; None means wandb if its key is set; [] none.
    """

    model_config = pydantic.ConfigDict(
        validate_assignment=True, arbitrary_types_allowed=True, extra="forbid"
    )

    name: str
    project: str
    entity: str | None = None
    id: str | None = None
    run_id: str | None = None
    config: ConfigT
    trainable: bool = False
    inference_api_key: str | None = pydantic.Field(default=None, repr=False)
    inference_base_url: str | None = None
    inference_model_name: str | None = None
    base_path: str = DEFAULT_BASE_PATH
    report_metrics: list[Any] | None = None

    _backend: Any = None
    _capabilities: Capabilities = Capabilities()
    _registered: bool = False
    _settled: tuple[Path, int] | None = None  # a model directory, and its settled step
    _filled_in_name: str | None = None
    _open_books: Any = None
    _clients: Any = None

    def __init__(  # noqa: PLR0913 - a keyword for each field, as scripts write them
        self,
        *,
        name: str,
        project: str,
        entity: str | None = None,
        id: str | None = None,  # noqa: A002 - upstream's name
        config: ConfigT | None = None,
        inference_api_key: str | None = None,
        inference_base_url: str | None = None,
        inference_model_name: str | None = None,
        base_path: str | None = None,
        report_metrics: Sequence[str | Sink] | None = None,
        **fields: Any,
    ) -> None:
        # Checked here, since inside pydantic's validation the errors would lose their type.
        _check_name("name", name)
        _check_name("project", project)
        if report_metrics:
            from art.books.sinks import resolve_sinks

            resolve_sinks(report_metrics)
        if base_path is not None:  # only a path that the user gave counts as set
            fields["base_path"] = str(base_path)
        super().__init__(
            name=name,
            project=project,
            entity=entity,
            id=id,
            config=config,
            inference_api_key=inference_api_key,
            inference_base_url=inference_base_url,
            inference_model_name=inference_model_name,
            report_metrics=report_metrics,
            **fields,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        _check_name(name, value)
        super().__setattr__(name, value)
        if name == "report_metrics":
            self._open_books = None
        elif name == "_backend":
            self._capabilities = Capabilities.of(value)

    # A copy opens books and clients of its own, since these hold threads and sockets. Backend and sinks are shared.

    def __copy__(self) -> Model[ConfigT, StateT]:
        copied = super().__copy__()
        copied._open_books = copied._clients = None
        return copied

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Model[ConfigT, StateT]:
        memo = memo if memo is not None else {}
        memo |= {id(shared): shared for shared in [self._backend, *(self.report_metrics or [])]}
        memo |= {id(own): None for own in (self._open_books, self._clients)}
        return super().__deepcopy__(memo)

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        own = {"_open_books": None, "_clients": None}
        return {**state, "__pydantic_private__": {**state["__pydantic_private__"], **own}}

    def safe_model_dump(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Dump the fields without `config`, which may not be serialisable."""
        return {**self.model_dump(*args, **kwargs), "config": None}

    # --- backend and inference ---

    async def register(self, backend: Backend) -> None:
        """Connect the model to a backend.

        Raises:
            InvalidBackendError: The backend lacks one of the two methods, or has it in the wrong shape.
            ConfigurationError: `config` cannot be stored as JSON.
        """
        check_backend(backend)
        self._check_config()
        capabilities = Capabilities.of(backend)
        if capabilities.default_base_path is not None and "base_path" not in self.model_fields_set:
            default = capabilities.default_base_path._default_base_path()
            if default is not None:
                self.base_path = str(default)
                self.model_fields_set.discard("base_path")  # the next backend's path may replace it
        if capabilities.register is not None:
            await capabilities.register.register(self)
        self._backend = backend
        self._registered = True

    def _check_config(self) -> None:
        try:
            jsonable(self.config)
        except ValueError as error:  # pydantic's serialisation errors are ValueErrors
            raise ConfigurationError(
                f"the config of model {self.name!r} cannot be stored as JSON: {error}"
            ) from error

    def backend(self) -> Backend:
        """Return the backend.

        Raises:
            NotRegisteredError: The model has none yet.
        """
        if self._backend is None:
            raise NotRegisteredError(
                f"model {self.name!r} is not registered with a backend; "
                "call `await model.register(backend)` first"
            )
        return cast("Backend", self._backend)

    def openai_client(self) -> AsyncOpenAI:
        """Return an OpenAI client of the model's endpoint that belongs to the running event loop.

        Raises:
            NotRegisteredError: The endpoint is not known yet.
        """
        if self.inference_base_url is None or self.inference_api_key is None:
            what_to_do = "set `inference_base_url` and `inference_api_key` on the model"
            if self._backend is not None:
                what_to_do = f"{type(self._backend).__name__} serves no inference: {what_to_do}"
            elif self.trainable:
                what_to_do = "call `await model.register(backend)` first"
            raise NotRegisteredError(f"model {self.name!r} has no inference endpoint; {what_to_do}")
        if self._clients is None:
            self._clients = ClientCache()
        clients: ClientCache = self._clients
        return clients.get(self.inference_base_url, self.inference_api_key)

    def get_inference_name(self, step: int | None = None) -> str:
        """Return the name to send to the endpoint.

        Args:
            step: The checkpoint to ask; None is the current one, by a name that goes on meaning this step
                where the backend knows such names.
        """
        names = self._capabilities.inference_name
        if names is not None:
            return names._model_inference_name(self, self._known_step if step is None else step)
        base = self.inference_model_name or self.name
        return base if step is None else f"{base}@{step}"

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Return what `litellm.completion` needs to ask this model."""
        name = self.get_inference_name(step)
        return {
            "model": f"hosted_vllm/{name}" if self.trainable else name,
            "base_url": self.inference_base_url,
            "api_key": self.inference_api_key,
            "temperature": 1,
        }

    def _inference_failure(self) -> str | None:
        """Return why the endpoint is gone, or None while it is alive or nothing is known about it."""
        health = self._capabilities.inference_health
        return health._inference_failure(self) if health is not None else None

    # --- books ---

    def _books(self) -> Books:
        """Return the books of the model's present directory: another name or path means other books."""
        with _opening:
            if self._open_books is None or self._open_books.paths.given != model_dir(self):
                from art.books.log import open_books

                self._open_books = open_books(self)
            return cast("Books", self._open_books)

    def _get_output_dir(self) -> str:
        """Return the model's directory; upstream's name for `art.model_dir`."""
        return str(model_dir(self))

    @property
    def _known_step(self) -> int | None:
        """The step that was settled with the backend for the present directory, None if none was."""
        if self._settled is None or self._settled[0] != model_dir(self):
            return None
        return self._settled[1]

    async def get_step(self) -> int:
        """Return the current step; 0 for a model that cannot be trained."""
        return await current_step(self)

    async def log(
        self,
        trajectories: Iterable[TrajectoryGroup]
        | Iterable[Trajectory | BaseException]
        | TrajectoryGroup
        | None = None,
        split: str = "val",
        *,
        metrics: Mapping[str, Any] | None = None,
        step: int | None = None,
    ) -> None:
        """Write rollouts and their metrics to the books.

        Logging a split and step again adds to what is there. `log([])` writes nothing and warns.

        Args:
            trajectories: Groups, or a flat run of trajectories and exceptions (taken as one group).
            split: "train", "val", or any other name.
            metrics: Further values by plain name; they win over the aggregates of the same name.
            step: The step that this belongs to; the current one by default. It never moves the step.

        Raises:
            InvalidTrajectoriesError: Some rollouts cannot be stored, and were left out; all others were written.
            TypeError: A metric is not a number; nothing was written.
            LogError: A file could not be written.
        """
        groups = as_groups(trajectories) if trajectories is not None else None
        encode_component(split, "split")
        if not groups and not metrics:
            logger.warning(
                "model %r: nothing to log for split %r, nothing was written", self.name, split
            )
            return
        at = checked_step(step) if step is not None else await self.get_step()
        policy_step = policy_step_of(groups) if split == "train" and groups else None
        await run_blocking(
            self._books().log,
            groups,
            metrics,
            split=split,
            step=at,
            policy_step=policy_step if policy_step != at else None,
        )
        self._books().sinks.hold_loop()

    def history(self) -> pl.DataFrame:
        """Return history.jsonl as a frame: `step`, `policy_step`, `recorded_at`, and a float column per key."""
        from art.books.frames import read_history

        return read_history(self._books().paths.history)

    def overwrite_state(self, state: StateT) -> None:
        """Replace the user's own state in state.json."""
        self._books().state.overwrite(state)

    def write_state(self, state: StateT) -> None:
        """Replace the user's own state; an older name of `overwrite_state`."""
        self.overwrite_state(state)

    def merge_state(self, state: StateT) -> StateT:
        """Merge into the user's own state, dicts recursively, and return the result."""
        return cast("StateT", self._books().state.merge(state))

    def read_state(self) -> StateT | None:
        """Return the user's own state, or None if there is none."""
        return cast("StateT | None", self._books().state.read())

    def _get_wandb_run(self) -> Any:
        """Return the wandb run that metrics go to, or None when wandb is off or does not start in thirty seconds."""
        return self._books().wandb_run()

    async def close(self) -> None:
        """Flush the metric sinks, within a bounded time, and close this loop's clients. Repeatable."""
        if self._open_books is not None:
            await run_blocking(self._books().close)
            self._open_books = None
        if self._clients is not None:
            await self._clients.close()


def _check_name(field: str, value: object) -> None:
    if field in {"name", "project"} and isinstance(value, str):
        encode_component(value, "model name" if field == "name" else field)

"""TrainableModel, and Model beside it. Orchestration only; formats and maths live in `books` and `rules`."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from art import checkpoints, endpoints, training
from art.background import run_blocking
from art.books.paths import model_dir
from art.books.plain_json import jsonable
from art.errors import UnsupportedByBackend
from art.model_base import ConfigT, Model, StateT
from art.steps import settle_at_register
from art.types import TrainConfig, TrainResult, TrainSFTConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from art import dev
    from art.backend import Backend
    from art.books.sinks import Sink
    from art.rules.retention import RetentionResult, StepInfo
    from art.trajectories import Trajectory, TrajectoryGroup

__all__ = ["Model", "TrainableModel"]


class TrainableModel(Model[ConfigT, StateT], Generic[ConfigT, StateT]):
    """A model that a backend can train.

    Attributes:
        base_model: The model to start from: a hub id, a local directory, or a name that the backend knows.
        run_name: Accepted for scripts of later upstream versions; kept, without effect on paths.
        lora_config: LoRA settings (`r`, `lora_alpha`, `target_modules`), the same as
            `_internal_config["peft_args"]`.
    """

    base_model: str
    trainable: bool = True
    run_name: str | None = None
    lora_config: dict[str, Any] | None = None

    _internal_config: dev.InternalModelConfig | None = None

    def __init__(  # noqa: PLR0913 - a keyword for each field, as scripts write them
        self,
        *,
        name: str,
        project: str,
        base_model: str,
        entity: str | None = None,
        id: str | None = None,  # noqa: A002 - upstream's name
        run_id: str | None = None,
        config: ConfigT | None = None,
        base_path: str | None = None,
        report_metrics: Sequence[str | Sink] | None = None,
        run_name: str | None = None,
        lora_config: dict[str, Any] | None = None,
        _internal_config: dev.InternalModelConfig | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(
            name=name,
            project=project,
            entity=entity,
            id=id,
            config=config,
            base_path=base_path,
            report_metrics=report_metrics,
            base_model=base_model,
            run_id=run_id,
            run_name=run_name,
            lora_config=lora_config,
            **fields,
        )
        if _internal_config is None and lora_config is not None:
            _internal_config = cast("dev.InternalModelConfig", {"peft_args": lora_config})
        self._internal_config = _internal_config

    async def register(
        self,
        backend: Backend,
        _openai_client_config: dev.OpenAIServerConfig | None = None,
        *,
        on_step_mismatch: Literal["warn", "error"] = "warn",
    ) -> None:
        """Connect the model to a backend: step 0 exists and is served afterwards. May be called again.

        Args:
            backend: Any object with the two methods of `art.Backend`.
            _openai_client_config: Options for the backend's inference server.
            on_step_mismatch: What to do when the books and the backend disagree about the step: go on from
                the backend's with a warning, or raise.

        Raises:
            InvalidBackendError: The backend lacks one of the two methods, or has it in the wrong shape.
            StepMismatchError: See `on_step_mismatch`.
            ConfigurationError: `config` cannot be stored as JSON.
        """
        before = self._backend, self._registered
        try:
            await self._connect(backend, _openai_client_config, on_step_mismatch)
        except BaseException:
            self._backend, self._registered = before
            raise

    async def _connect(
        self,
        backend: Backend,
        server_config: dev.OpenAIServerConfig | None,
        on_step_mismatch: Literal["warn", "error"],
    ) -> None:
        await super().register(backend)
        await settle_at_register(self, on_step_mismatch)
        await run_blocking(self._books().write_model_file, self._description())
        inference = self._capabilities.inference
        if inference is not None:
            base_url, api_key = await inference._prepare_backend_for_training(self, server_config)
            self.inference_base_url = base_url
            self.inference_api_key = api_key
            self._fill_in_inference_name()
            endpoints.remember_endpoint(base_url, self)

    def _remember_step(self, step: int) -> None:
        self._settled = (model_dir(self), step)
        if self._registered and self._capabilities.inference_name is not None:
            self._fill_in_inference_name()

    def _fill_in_inference_name(self) -> None:
        """Set the field `inference_model_name`, which scripts read, to the present name."""
        if self.inference_model_name == self._filled_in_name:
            # Not the user's, so it must not outlive a change of the model's name.
            self.inference_model_name = None
        name = self.get_inference_name()
        if name != self.inference_model_name:
            self.inference_model_name = self._filled_in_name = name

    def _description(self) -> dict[str, Any]:
        """Return what model.json tells: nothing secret, nothing that changes from step to step."""
        return {
            "name": self.name,
            "project": self.project,
            "entity": self.entity,
            "run_name": self.run_name,
            "base_model": self.base_model,
            "trainable": True,
            "config": jsonable(self.config),
            "backend": type(self._backend).__name__,
            "versions": {"art-rl": version("art-rl"), "python": platform.python_version()},
        }

    async def train(
        self,
        trajectory_groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        _config: dev.TrainConfig | None = None,
        verbose: bool = False,
    ) -> TrainResult:
        """Log the groups, train one step on them, and log the training metrics.

        The groups are written at the current step N, before training, since policy N produced them; the
        metrics of the training at N+1. If the backend fails, its error is raised and the groups stay logged.

        Args:
            trajectory_groups: The batch. Trajectories of a non-finite reward are logged, counted, and left
                out of training.
            config: The learning rate and other settings that every backend knows.
            _config: Further options by upstream's names; see `art.dev.TrainConfig`.
            verbose: Ask the backend for more log lines.

        Returns:
            The new step and the metrics of its row.

        Raises:
            InvalidTrajectoriesError: The batch is empty or malformed; nothing was written.
            NotRegisteredError: The model has no backend yet; nothing was written.
            ModelBusy: Another process is training this model.
        """
        return await training.model_train(
            self,
            trajectory_groups,
            config or TrainConfig(),
            cast("dev.TrainConfig", dict(_config or {})),
            verbose=verbose,
        )

    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: dev.TrainSFTConfig | None = None,
        verbose: bool = False,
    ) -> TrainResult:
        """Fine-tune on trajectories as they are.

        Raises:
            UnsupportedByBackend: The backend cannot do it.
        """
        backend = self.backend()
        sft = self._capabilities.sft
        if sft is None:
            raise UnsupportedByBackend(
                f"{type(backend).__name__} has no supervised fine-tuning (_train_sft)"
            )
        batch, options = list(trajectories), config or TrainSFTConfig()
        dev_config = cast("dev.TrainSFTConfig", {} if _config is None else dict(_config))
        return await training.model_train_sft(
            self, lambda: sft._train_sft(self, batch, options, dev_config, verbose)
        )

    async def delete_checkpoints(
        self,
        best_checkpoint_metric: str | None = "val/reward",
        *,
        mode: Literal["max", "min"] = "max",
        retention: Callable[[list[StepInfo]], Iterable[int]] | None = None,
        keep_unscored: int = 0,
        dry_run: bool = False,
    ) -> RetentionResult:
        """Delete all checkpoints but the latest and the best.

        Args:
            best_checkpoint_metric: Key of the history that tells which step is best ("val/reward"). If it was
                never recorded nothing is deleted, and a warning says so. None: only the latest is kept.
            mode: Whether more or less of the metric is better.
            retention: A rule of your own: takes every step, returns those to keep; the latest always stays.
            keep_unscored: Keep this many of the newest steps without the metric (their evals may still run).
            dry_run: Tell what would be deleted, and delete nothing.

        Returns:
            What was kept, what was deleted, and why.

        Raises:
            ModelBusy: Another process is training this model.
        """
        return await checkpoints.delete_checkpoints(
            self,
            best_checkpoint_metric,
            mode=mode,
            retention=retention,
            keep_unscored=keep_unscored,
            dry_run=dry_run,
        )

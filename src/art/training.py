"""The one train run that both spellings share: `await model.train(groups)` and `await backend.train(model, groups)`.

    1. bring the groups into one form            (nothing is written before they are known to be good)
    2. learn the step N from the books, checked against the backend
    3. scale the learning rate                   (pure: past points and the batch in hand; refuses bad options)
    4. log the groups at N, split "train"        (`model.train` only: crash-safe, credited to the policy that made them)
    5. stream the backend's training to its end
    6. commit N+1 to the ledger, and its row to the history (`model.train` only)
    7. return TrainResult(N+1, metrics)

If 5 raises, the error reaches the caller as it is; what 4 wrote stays.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, cast, runtime_checkable

from typing_extensions import Unpack

from art.adapter_kit.advantages import is_trainable
from art.background import run_blocking
from art.books.lock import train_lock
from art.errors import (
    ConfigurationError,
    InvalidBackendError,
    InvalidTrajectoriesError,
    LogError,
)
from art.grouping import as_groups, check_rewards, with_finite_rewards
from art.rules import learning_rate as learning_rate_rules
from art.rules import metrics as metric_rules
from art.steps import settle_step
from art.types import TrainConfig, TrainResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from art import dev
    from art.backend import AnyTrainableModel, Backend
    from art.books.log import Books
    from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)


class BackendTrainOptions(TypedDict, total=False):
    """Keywords of `backend.train`: everything that any backend of upstream took.

    `learning_rate`, `beta` and `kl_penalty_coef` are fields of TrainConfig. Most others are keys of
    `art.dev.TrainConfig` and documented there; `loss_fn`, `loss_fn_config`, `normalize_advantages` and
    `adam_params` are options of upstream's Tinker adapter. All of them reach the backend in `dev_config`; an
    option that it cannot honour it refuses, by name.
    """

    learning_rate: float
    beta: float
    kl_penalty_coef: float
    kl_penalty_reference_step: int | None
    kl_ref_adapter_path: str | None
    ppo: bool
    epsilon: float | None
    epsilon_high: float | None
    advantage_balance: float
    scale_rewards: bool
    importance_sampling_level: Literal["token", "sequence", "average", "geometric_average"]
    max_negative_advantage_importance_sampling_weight: float | None
    mask_prob_ratio: bool
    kimi_k2_tau: float | None
    precalculate_logprobs: bool
    allow_training_without_logprobs: bool
    plot_tensors: bool
    truncated_importance_sampling: float | None
    scale_learning_rate_by_reward_std_dev: bool
    logprob_calculation_chunk_size: int
    num_trajectories_learning_rate_multiplier_power: float
    loss_fn: str
    loss_fn_config: dict[str, Any] | None
    normalize_advantages: bool
    adam_params: Any
    save_checkpoint: bool
    verbose: bool


async def backend_train(
    model: AnyTrainableModel,
    trajectory_groups: Iterable[TrajectoryGroup],
    *,
    backend: Backend | None = None,
    **options: Unpack[BackendTrainOptions],
) -> TrainResult:
    """Train one step and write no row of metrics: the spelling `await backend.train(model, groups, ...)`.

    Works for any registered backend, also one with the two methods only. The groups remember the step of the
    policy that made them, so that a later `model.log(groups, metrics=result.metrics, step=result.step,
    split="train")` credits their reward to it.

    Args:
        model: A registered model.
        trajectory_groups: The batch; see `art.TrainableModel.train`.
        backend: The backend that is asked; it must be the one the model is registered with.
        **options: See `BackendTrainOptions`. `save_checkpoint` is accepted; a checkpoint is always saved.

    Raises:
        TypeError: An unknown keyword.
        NotRegisteredError: The model was not registered.
    """
    unknown = set(options) - set(BackendTrainOptions.__annotations__)
    if unknown:
        raise TypeError(_unknown_option(min(unknown)))
    registered = model.backend()
    if backend is not None and backend is not registered:
        raise ConfigurationError(
            f"model {model.name!r} is registered with a {type(registered).__name__}, not with this "
            f"{type(backend).__name__}; call `await model.register(backend)` first"
        )
    given = cast("dict[str, Any]", dict(options))
    verbose = bool(given.pop("verbose", False))
    given.pop("save_checkpoint", None)
    config = TrainConfig(
        **{name: given.pop(name) for name in TrainConfig.model_fields if name in given}
    )
    dev_config = cast("dev.TrainConfig", {k: v for k, v in given.items() if v is not None})
    groups = training_groups(trajectory_groups)
    run = _Run(model, config, dev_config, verbose=verbose, keep_rows=False)
    result = await run.train(groups)
    for group in groups:
        # A second pass over the same rollouts does not change who made them.
        if group._policy_step is None:
            group._policy_step = result.step - 1
    return result


class BackendTrainMixin:
    """Gives a backend the spelling `await backend.train(model, groups, ...)`."""

    async def train(
        self,
        model: AnyTrainableModel,
        trajectory_groups: Iterable[TrajectoryGroup],
        **options: Unpack[BackendTrainOptions],
    ) -> TrainResult:
        """Train one step; see `art.backend_train`."""
        return await backend_train(
            model, trajectory_groups, backend=cast("Backend", self), **options
        )


def _unknown_option(name: str) -> str:
    close = difflib.get_close_matches(name, BackendTrainOptions.__annotations__, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"backend.train() got an unexpected keyword argument {name!r}{hint}"


async def model_train(
    model: AnyTrainableModel,
    trajectory_groups: Iterable[TrajectoryGroup],
    config: TrainConfig,
    dev_config: dev.TrainConfig,
    *,
    verbose: bool,
) -> TrainResult:
    """Train one step and keep all rows: the spelling `await model.train(groups, config)`."""
    if not isinstance(config, TrainConfig):
        raise ConfigurationError(
            f"config is a {type(config).__name__}; pass art.TrainConfig(learning_rate=...)"
        )
    groups = training_groups(trajectory_groups)
    return await _Run(model, config, dev_config, verbose=verbose, keep_rows=True).train(groups)


async def model_train_sft(
    model: AnyTrainableModel, start: Callable[[], AsyncIterator[dict[str, float]]]
) -> TrainResult:
    """Fine-tune with the stream that `start()` returns; steps and rows are kept as for `model.train`."""
    books = model._books()
    async with train_lock(books.paths.train_lock):
        step = await settle_step(model)
        metrics = _reduced(await _collect(start(), model.backend()))
        model._remember_step(step + 1)
        await _commit(books, step + 1, metrics)
    return TrainResult(step=step + 1, metrics=metrics)


async def _log_rollouts(
    books: Books, groups: list[TrajectoryGroup], step: int, batch: Mapping[str, float] | None
) -> None:
    try:
        await run_blocking(books.log, groups, None, split="train", step=step, aggregates=batch)
    except InvalidTrajectoriesError as error:
        error.add_note(
            f"the training did not start and the step stays {step}; leave these rollouts out, or mend them"
        )
        raise


async def _commit(books: Books, step: int, row: dict[str, float], *, keep_row: bool = True) -> None:
    try:
        await run_blocking(books.commit_train, step, row if keep_row else None)
    except LogError as error:
        error.add_note(f"the training itself ended well: step {step} stands, with metrics {row}")
        raise


def training_groups(items: Iterable[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Bring what a train call was given into a list of groups.

    Raises:
        InvalidTrajectoriesError: It is empty, or mixes groups with something else.
    """
    groups = as_groups(items)
    if not groups:
        raise InvalidTrajectoriesError(
            "there is nothing to train on: the list of trajectory groups is empty; "
            "nothing was written and the step stays as it is"
        )
    return groups


@dataclass
class _Run:
    """One train call."""

    model: AnyTrainableModel
    config: TrainConfig
    dev_config: dev.TrainConfig
    verbose: bool
    keep_rows: bool

    async def train(self, groups: list[TrajectoryGroup]) -> TrainResult:
        backend = self.model.backend()
        books = self.model._books()
        async with train_lock(books.paths.train_lock):
            step = await settle_step(self.model)
            batch = await self._aggregated(books, step, groups)
            config, dev_config, rate_metrics = await self._scaled(books, step, batch)
            num_trainable = sum(map(is_trainable, groups))
            if self.keep_rows:
                await _log_rollouts(books, groups, step, batch)
            config = config.model_copy(update={"target_step": step + 1})
            stream = backend._train_model(
                self.model, with_finite_rewards(groups), config, dev_config, self.verbose
            )
            metrics = _reduced(await _collect(stream, backend))
            # Now, since the backend serves N+1 from here on, whatever becomes of the rows.
            self.model._remember_step(step + 1)
            row = {
                **metrics,
                "num_groups_submitted": float(len(groups)),
                "num_groups_trainable": float(num_trainable),
                **rate_metrics,
            }
            await _commit(books, step + 1, row, keep_row=self.keep_rows)
        return TrainResult(step=step + 1, metrics=row)

    async def _aggregated(
        self, books: Books, step: int, groups: list[TrajectoryGroup]
    ) -> dict[str, float]:
        if not self.keep_rows:
            check_rewards(groups)
        try:
            return await run_blocking(metric_rules.aggregate, groups)
        except (TypeError, OverflowError):
            # A bad number must not cost the other rollouts: they are logged, then it is told.
            if self.keep_rows:
                await _log_rollouts(books, groups, step, None)
            raise

    async def _scaled(
        self, books: Books, step: int, batch: Mapping[str, float]
    ) -> tuple[TrainConfig, dev.TrainConfig, dict[str, float]]:
        """Return the config with its final learning rate, the dev config without the scaling flags, and metrics."""
        flags = dict(self.dev_config)
        by_std_dev = bool(flags.pop("scale_learning_rate_by_reward_std_dev", False))
        power = (
            cast("float", flags.pop("num_trajectories_learning_rate_multiplier_power", 0.0)) or 0.0
        )
        multiplier = 1.0
        if by_std_dev:
            multiplier *= await run_blocking(books.learning_rate_multiplier, step, batch)
        if power:
            count = int(batch["num_trajectories"])
            multiplier *= learning_rate_rules.num_trajectories_multiplier(count, power)
        rate = self.config.learning_rate * multiplier
        rate_metrics = {"learning_rate": rate}
        if by_std_dev or power:
            rate_metrics["learning_rate_multiplier"] = multiplier
        config = self.config.model_copy(update={"learning_rate": rate})
        return config, cast("dev.TrainConfig", flags), rate_metrics


async def _collect(stream: object, backend: object) -> list[object]:
    """Run a backend's stream to its end. It is closed whatever happens, so that its clean-up code runs now."""
    if not isinstance(stream, AsyncIterator):
        if inspect.iscoroutine(stream):
            stream.close()  # else Python warns that it was never awaited
        raise InvalidBackendError(
            f"{type(backend).__name__}._train_model returned a {type(stream).__name__}; it must return an "
            "async iterator, most simply by being an async generator (clause T1)"
        )
    closing: contextlib.AbstractAsyncContextManager[Any] = (
        contextlib.aclosing(stream) if isinstance(stream, _Closable) else contextlib.nullcontext()
    )
    async with closing:
        # Copied: a backend may fill one dict again and again.
        return [dict(event) if isinstance(event, Mapping) else event async for event in stream]


@runtime_checkable
class _Closable(Protocol):
    """An async generator, or an iterator of another class that can be closed like one."""

    async def aclose(self) -> None: ...


def _reduced(events: list[object]) -> dict[str, float]:
    metrics, problems = metric_rules.reduce_stream(events)
    if problems:
        logger.warning("metrics of the backend left out (clause T3): %s", "; ".join(problems))
    return metrics

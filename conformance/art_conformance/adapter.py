"""What the author of an adapter says about it: one `Adapter`, and a `Probe` where its inside may be looked at."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from art.backend import Capabilities
from art.errors import ConfigurationError
from art_conformance.failure import SetupError, Unobservable, place_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from art import TrainableModel, TrajectoryGroup

    AnyModel: TypeAlias = TrainableModel[Any, Any]
    Groups: TypeAlias = Iterable[TrajectoryGroup] | Awaitable[Iterable[TrajectoryGroup]]

Fault: TypeAlias = Literal["train_start", "train_middle", "train_commit", "delete"]

CAPABILITIES = tuple(item.name for item in dataclasses.fields(Capabilities))


@dataclass(frozen=True)
class Received:
    """One train call as it left the adapter: on its wire, or at its trainer.

    Attributes:
        learning_rate: The rate that the optimizer is given.
        target_step: The checkpoint that is to be made.
        num_trajectories: How many trajectories were sent, where the adapter knows.
    """

    learning_rate: float
    target_step: int
    num_trajectories: int | None = None


class Probe:
    """Lets checks look inside a backend. Implement what you can; a check that needs the rest is UNOBSERVABLE.

    Args:
        backend: The backend that `make_backend` returned.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    async def checkpoint_steps(self, model: AnyModel) -> set[int]:  # noqa: ARG002 - for those who implement it
        """Return the steps of the whole checkpoints that really exist, looked up where they are kept."""
        raise Unobservable("no probe shows checkpoint_steps")

    async def received(self, model: AnyModel) -> list[Received]:  # noqa: ARG002 - likewise
        """Return every train call of this model since the backend was made, oldest first."""
        raise Unobservable("no probe shows received")

    async def weights(self, model: AnyModel, step: int) -> object:  # noqa: ARG002 - likewise
        """Return something that is equal for two checkpoints exactly where their weights are: a digest."""
        raise Unobservable("no probe shows weights")

    async def lose(self, model: AnyModel, step: int) -> None:  # noqa: ARG002 - likewise
        """Make a checkpoint vanish behind the backend's back, where it lies in no directory of the model."""
        raise Unobservable("no probe makes a checkpoint vanish")

    async def copy(self, model: AnyModel, step: int, to: int) -> None:  # noqa: ARG002 - likewise
        """Make another checkpoint of one, behind the backend's back, where it lies in no directory of the model."""
        raise Unobservable("no probe copies a checkpoint")

    async def fail_next(self, fault: Fault) -> None:
        """Make the next train call or deletion fail inside the adapter.

        Args:
            fault: Before its first event; after an event; while the checkpoint is saved; or at one checkpoint
                of the next deletion.
        """
        raise Unobservable(f"no probe makes a call fail at {fault!r}")


@dataclass(frozen=True)
class Adapter:
    """An adapter as its author presents it to the suite.

    Attributes:
        make_backend: Returns a new backend; takes nothing, or a directory for what it keeps. Two calls with the
            same directory are two processes that share it.
        base_model: A base model that it can train.
        make_groups: Takes a registered model and returns at least one group that can be trained, or an
            awaitable of some; needed where made-up token ids cannot be trained.
        restart: Takes the present backend and returns one as a new process would build it on the same state.
            None: `make_backend` is called again.
        probe: Takes a backend and returns its `Probe`; a subclass of Probe is one.
        declines: Why an optional capability is left out, by its name ("listing", "inference", ...). One that
            is neither there nor declined is a failure, and so is one that is declined but there.
        xfail: Checks that are known to fail, by id; each reason has the link of an issue. One that passes is a
            failure.
        timeout_s: Seconds that one check may take.
    """

    make_backend: Callable[..., Any]
    base_model: str = "none"
    make_groups: Callable[[AnyModel], Groups] | None = None
    restart: Callable[[Any], Any] | None = None
    probe: Callable[[Any], Probe] | None = None
    declines: Mapping[str, str] = field(default_factory=dict)
    xfail: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    _declares_nothing: bool = False

    def __post_init__(self) -> None:
        if not callable(self.make_backend):
            raise ConfigurationError(
                f"Adapter.make_backend is {self.make_backend!r}; it must be a backend class or a function that "
                "returns a backend"
            )
        for name in self.declines:
            if name not in CAPABILITIES:
                raise ConfigurationError(
                    f"Adapter.declines names {name!r}; optional capabilities are {', '.join(CAPABILITIES)}"
                )
        for id_, reason in self.xfail.items():
            if "://" not in reason:
                raise ConfigurationError(
                    f"Adapter.xfail[{id_!r}] has no link; say where the known failure is followed up: "
                    f'xfail={{"{id_}": "https://... {reason}"}}'
                )
        if not self.timeout_s > 0:
            raise ConfigurationError(
                f"Adapter.timeout_s is {self.timeout_s}; it must be seconds, more than 0"
            )

    def new_backend(self, directory: Path) -> Any:
        """Call `make_backend`, with the directory where it takes one."""
        try:
            argument = _directory_argument(self.make_backend, directory)
            if argument is None:
                return self.make_backend()
            directory.mkdir(parents=True, exist_ok=True)
            return self.make_backend(**argument)
        except (
            BaseException
        ) as error:  # pytest's skip, an exit: whatever it is, there is no backend
            raise SetupError(
                f"make_backend raised {type(error).__name__}: {error}{_where(error)}"
            ) from error

    def restarted(self, backend: Any, directory: Path) -> Any:
        """Return a backend as a new process would build it."""
        if self.restart is None:
            return self.new_backend(directory)
        try:
            return self.restart(backend)
        except Exception as error:
            raise SetupError(
                f"restart raised {type(error).__name__}: {error}{_where(error)}"
            ) from error

    def declined(self, capability: str) -> str | None:
        """Why a capability is left out, or None where nothing is said about it."""
        if self._declares_nothing:
            return "not implemented"
        return self.declines.get(capability)


def load_adapter(target: str) -> Adapter:
    """Return the adapter, or the backend class or factory, that `package.module:name` names.

    Raises:
        ConfigurationError: It does not resolve, or names something else; the message tells which part.
    """
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise ConfigurationError(
            f"{target!r} names no adapter; write package.module:name, as in my_package.conformance:adapter"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the author, as with `python -m`
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything
        raise ConfigurationError(
            f"{module_name!r} could not be imported: {type(error).__name__}: {error}{_where(error)}"
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            names = ", ".join(sorted(n for n in dir(found) if not n.startswith("_"))[:12])
            raise ConfigurationError(
                f"{target!r}: {module_name} has no {path!r}; it has {names or 'nothing'}"
            ) from None
        except Exception as error:
            raise ConfigurationError(
                f"{target!r}: {name} raised {type(error).__name__}: {error}{_where(error)}"
            ) from error
    if isinstance(found, Adapter):
        return found
    if callable(found):
        return Adapter(found, _declares_nothing=True)
    raise ConfigurationError(
        f"{target!r} is a {type(found).__name__}; expected an art_conformance.Adapter, a backend class, or a "
        "function that returns a backend"
    )


def _directory_argument(factory: Callable[..., Any], directory: Path) -> dict[str, Path] | None:
    """Return the directory by the name of the parameter that must be given; None where there is none."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return None
    required = (
        parameter.name
        for parameter in parameters
        if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
        and parameter.default is parameter.empty
    )
    name = next(required, None)
    return None if name is None else {name: directory}


def _where(error: BaseException) -> str:
    """Say where an error arose, in brackets; nothing where that is no file of anybody's."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")
    ]
    if not frames or frames[-1].filename == __file__:
        return ""
    return f" ({place_of(frames[-1])})"

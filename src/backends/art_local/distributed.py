"""The processes that train one model together; one alone is the plain case.

Several are started by torchrun, on one machine. Each has the whole adapter and its optimizer; the rows of a batch
are shared out and the gradients added up, so that all take the same step. The base model is whole in each as well,
or in pieces (`shard_base`).

No process may wait forever for one that has failed. So whatever they do together begins with a small exchange, "is
everybody well?". One that has failed answers it with `tell`, and the others raise `ToldByAnotherError` with what
it told. Inside a model in pieces they wait for each other without that exchange: there a process whose `tell` is
heard by nobody ends, and torchrun ends the others.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist

from art.errors import ConfigurationError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")
Event = dict[str, Any]

# Longer than any one process works alone, such as on a row or on writing a checkpoint.
_TIMEOUT = timedelta(minutes=30)
# A failure is told at once, but the others may still be at work on a row.
_TELL_TIMEOUT = timedelta(seconds=30)
# Between two commands there may be days.
_IDLE_TIMEOUT = timedelta(days=3650)


class ToldByAnotherError(Exception):
    """Another process gave up what all were doing.

    Attributes:
        event: What it told.
    """

    def __init__(self, event: Event) -> None:
        super().__init__(str(event))
        self.event = event


class World:
    """One process that trains alone: every question has its own answer.

    Attributes:
        rank: This process's number.
        size: How many there are.
    """

    rank: int = 0
    size: int = 1

    def device(self, name: str) -> str:
        """Return this process's device, where all together are given this one."""
        return name

    def share(self, items: Sequence[T]) -> list[tuple[T, bool]]:
        """Return this process's items, as many on every process.

        Returns:
            Pairs of an item and whether it counts. Where the items do not come out even, one is repeated that does
            not: forward passes may be collective, so every process makes the same number of them.
        """
        return [(item, True) for item in items]

    def any(self, flag: bool) -> bool:
        """Return whether it holds on any process."""
        return flag

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Add up the gradients of all processes, in place."""

    def gather(self, value: T) -> list[T]:
        """Return every process's value, in order of ranks."""
        return [value]

    def first(self, value: T) -> T:
        """Return the value of process 0, which decides for all."""
        return value

    def await_first(self, value: T) -> T:
        """Return the value of process 0, however long it takes to have one; only while all are well."""
        return value

    def tell(self, event: Event) -> Event:
        """Tell the others that this process gave up what all were doing.

        Returns:
            What the first of those that gave up told.
        """
        return event


class ProcessGroup(World):
    """One of several processes under torchrun.

    Raises:
        ToldByAnotherError: By every method that asks the others: one of them has given up.
    """

    def __init__(self) -> None:
        """Meet the others."""
        # Nothing leaves this machine, and what its name resolves to is of no interest.
        loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        if loopback:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        # For tensors: gradients, and the pieces of a model.
        dist.init_process_group(backend, timeout=_TIMEOUT)
        # For words, so that what a failed process tells is not taken for a piece of a model.
        self._talk = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self._idle = dist.new_group(backend="gloo", timeout=_IDLE_TIMEOUT)
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def device(self, name: str) -> str:
        """Return "cuda:2" for "cuda" on process 2, and make it the current one; any other name as it is."""
        if name != "cuda":
            return name
        if self.size > torch.cuda.device_count():
            raise ConfigurationError(
                f"{self.size} training processes need a GPU each, but {torch.cuda.device_count()} can be seen; "
                "ask for fewer processes, or look at CUDA_VISIBLE_DEVICES"
            )
        torch.cuda.set_device(self.rank)
        return f"cuda:{self.rank}"

    def share(self, items: Sequence[T]) -> list[tuple[T, bool]]:
        """Return every nth item from this process's number on, filled up with one that does not count."""
        filled = -len(items) % self.size
        counted = [(item, True) for item in items] + [(item, False) for item in items[:1]] * filled
        return counted[self.rank :: self.size]

    def any(self, flag: bool) -> bool:
        """Return whether it holds on any process."""
        return self._exchange(has_failed=False, flag=flag)

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Add up the gradients of all processes, in place; one that no process has stays away."""
        parameters = list(parameters)
        self._exchange(has_failed=False)
        has_gradient = torch.cat([p.new_full((1,), float(p.grad is not None)) for p in parameters])
        gradients = [
            p.detach().new_zeros(p.shape) if p.grad is None else p.grad for p in parameters
        ]
        # One large exchange is faster than many small ones.
        total = torch.cat([has_gradient, *(gradient.flatten() for gradient in gradients)])
        dist.all_reduce(total)
        exists, *sums = torch.split(total, [len(parameters), *(p.numel() for p in parameters)])
        for parameter, is_there, gradient in zip(parameters, exists.tolist(), sums, strict=True):
            parameter.grad = gradient.view_as(parameter).clone() if is_there else None

    def gather(self, value: T) -> list[T]:
        """Return every process's value, in order of ranks."""
        self._exchange(has_failed=False)
        return self._gather(value)

    def first(self, value: T) -> T:
        """Return the value of process 0, which decides for all."""
        return self.gather(value)[0]

    def await_first(self, value: T) -> T:
        """Return the value of process 0, however long it takes to have one; only while all are well."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._idle, device=torch.device("cpu"))
        return values[0]

    def tell(self, event: Event) -> Event:
        """Tell the others that this process gave up what all were doing.

        Raises:
            TrainingError: They do not listen; this process must end, and they with it.
        """
        try:
            self._exchange(has_failed=True)
            return self._first_told(event)
        except RuntimeError as error:
            raise TrainingError(
                f"training process {self.rank} failed and the others, which are gone or wait for it, cannot be "
                f"told: {error}\n{event.get('traceback', event)}"
            ) from error

    def _exchange(self, *, has_failed: bool, flag: bool = False) -> bool:
        answers = torch.tensor([has_failed, flag], dtype=torch.int32)
        work = dist.all_reduce(answers, dist.ReduceOp.MAX, self._talk, async_op=True)
        work.wait(_TELL_TIMEOUT if has_failed else _TIMEOUT)
        anyone_failed, anyone = answers.tolist()
        if anyone_failed and not has_failed:
            raise ToldByAnotherError(self._first_told(None))
        return bool(anyone)

    def _first_told(self, event: Event | None) -> Event:
        return next(told for told in self._gather(event) if told is not None)

    def _gather(self, value: T) -> list[T]:
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value, self._talk)
        return cast("list[T]", values)


def shard_base(model: Any, trained: Iterable[torch.nn.Parameter], device: torch.device) -> None:
    """Leave on each process a piece of every layer of a model; a layer is put together while it computes.

    Embeddings and output layer stay whole: the trainer calls the output layer by itself, as often as its rows ask
    for, and that may differ between processes.

    Call it before the model is moved to the device: a model that needs this may not fit there. The pieces go there
    at once, the rest with the model.

    Args:
        model: A PEFT model. It must be called as a whole, for its layers to be put together.
        trained: Its weights that are trained; they stay whole.
        device: Where the pieces go.

    Raises:
        ConfigurationError: It does not say what its layers are.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    kinds = set(model.get_base_model()._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    if not layers:
        raise ConfigurationError(
            f"{type(model.get_base_model()).__name__} does not say which modules are its layers "
            "(_no_split_modules), so shard_base cannot split it; train without shard_base"
        )
    in_layers = {parameter for layer in layers for parameter in layer.parameters()}
    whole = set(trained) | (set(model.parameters()) - in_layers)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in [
        *layers,
        model,
    ]:  # the model itself has nothing to split, but it sets the layers' pace
        fully_shard(module, mesh=mesh, ignored_params=whole)

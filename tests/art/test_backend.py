from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

import art
from art.backend import Backend, Capabilities, check_backend
from art.errors import InvalidBackendError
from art.testing import InMemoryBackend


class Whole:
    async def _train_model(
        self,
        model: Any,
        trajectory_groups: Any,
        config: Any,
        dev_config: Any,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        yield {"loss": 1.0}

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        return None


def accepted(backend: object) -> bool:
    check_backend(backend)
    return True


def test_two_methods_are_enough() -> None:
    """Any object that has them is a backend, whatever its class."""
    backend: Backend = Whole()
    assert accepted(backend)
    assert accepted(InMemoryBackend())


def test_a_class_instead_of_an_object_is_told() -> None:
    """The forgotten parentheses are named."""
    with pytest.raises(InvalidBackendError, match=r"call it: Whole\(\)"):
        check_backend(Whole)


def test_a_missing_method_is_named() -> None:
    """Also where only the protocol's own stub was inherited."""

    class Half:
        _train_model = Whole._train_model

    class Stub(Backend):
        _delete_checkpoint_files = Whole._delete_checkpoint_files

    with pytest.raises(InvalidBackendError, match="Half has no method _delete_checkpoint_files"):
        check_backend(Half())
    with pytest.raises(InvalidBackendError, match="Stub has no method _train_model"):
        check_backend(Stub())  # type: ignore[abstract]  # what a careless author does
    with pytest.raises(InvalidBackendError, match="object has no method"):
        check_backend(object())


def test_an_attribute_that_is_no_method_is_named() -> None:
    """A value in place of the method is refused."""

    class Odd(Whole):
        _train_model = 3  # type: ignore[assignment]  # the fault under test

    with pytest.raises(InvalidBackendError, match="_train_model is a int"):
        check_backend(Odd())


def test_a_train_method_that_cannot_stream_is_refused() -> None:
    """A coroutine function, a synchronous generator and a plain function cannot keep clause T1."""

    class Coroutine(Whole):
        async def _train_model(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]  # the fault under test
            return {}

    class Generator(Whole):
        def _train_model(self, *args: Any, **kwargs: Any) -> Any:
            yield {}

    class Plain(Whole):
        def _train_model(self, *args: Any, **kwargs: Any) -> Any:
            return {}

    for wrong, kind in (
        (Coroutine(), "a coroutine function"),
        (Generator(), "a synchronous generator"),
        (Plain(), "a synchronous function"),
    ):
        with pytest.raises(InvalidBackendError, match=rf"is {kind}; .*\(clause T1\)"):
            check_backend(wrong)


def test_a_plain_function_may_hand_on_an_async_iterator() -> None:
    """Its annotation tells so; a decorated async generator is looked through."""

    class Handing(Whole):
        def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
            return super()._train_model(*args, **kwargs)

    class HandingGenerator(Whole):
        def _train_model(self, *args: Any, **kwargs: Any) -> AsyncGenerator[dict[str, float], None]:
            raise NotImplementedError

    class Decorated(Whole):
        @functools.wraps(Whole._train_model)
        def _train_model(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]  # a wrapper
            return super()._train_model(*args, **kwargs)

    assert accepted(Handing())
    assert accepted(HandingGenerator())
    assert accepted(Decorated())


def test_parameters_that_do_not_fit_are_shown() -> None:
    """The error shows the signature and what the frontend passes in vain."""

    class Short(Whole):
        async def _train_model(self, model: Any, groups: Any) -> AsyncIterator[dict[str, float]]:  # type: ignore[override]  # the fault under test
            yield {}

    class Greedy(Whole):
        async def _delete_checkpoint_files(self, model: Any, keep: Any, more: Any) -> None:  # type: ignore[override]  # the fault under test
            return None

    with pytest.raises(InvalidBackendError, match=r"Short\._train_model\(model.*cannot take"):
        check_backend(Short())
    with pytest.raises(InvalidBackendError, match=r"Greedy\._delete_checkpoint_files.*'more'"):
        check_backend(Greedy())


def test_verbose_is_passed_by_position() -> None:
    """A train method that takes `verbose` by name alone is refused before the first train, not in it."""

    class ByName(Whole):
        async def _train_model(  # type: ignore[override]  # the fault under test
            self, model: Any, groups: Any, config: Any, dev_config: Any, *, verbose: bool = False
        ) -> AsyncIterator[dict[str, float]]:
            yield {"loss": 1.0}

    with pytest.raises(InvalidBackendError, match="cannot take the frontend's arguments"):
        check_backend(ByName())


def test_a_deletion_must_be_a_coroutine_function() -> None:
    """A synchronous one would block the event loop."""

    class Blocking(Whole):
        def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:  # type: ignore[override]  # the fault under test
            return None

    with pytest.raises(InvalidBackendError, match="must be a coroutine function"):
        check_backend(Blocking())


def test_capabilities_are_the_backend_itself_or_none() -> None:
    """Each optional method that is there is one capability; nothing else is."""
    capabilities = Capabilities.of(InMemoryBackend.supporting("step", "inference", "close"))
    present = {name for name, value in vars(capabilities).items() if value is not None}
    assert present == {"step", "inference", "close"}
    bare = Capabilities.of(Whole())
    assert not any(vars(bare).values())
    assert not any(vars(Capabilities.of(object())).values())


def test_capabilities_are_resolved_for_any_object() -> None:
    """A private stand-in with `_get_step` alone counts, as scripts in the wild set one."""

    class StepOnly:
        async def _get_step(self, model: art.TrainableModel[Any, Any]) -> int:
            return 7

    stand_in = StepOnly()
    assert Capabilities.of(stand_in).step is stand_in

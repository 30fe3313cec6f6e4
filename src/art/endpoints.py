"""Which model's inference endpoint a connection error came from, and whether that endpoint is gone."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from art.model import Model

_models: weakref.WeakValueDictionary[str, Model[Any, Any]] = weakref.WeakValueDictionary()

# Errors that tell which request could not reach its server. Newer versions of openai speak through httpx2.
_CONNECTION_ERRORS = (
    ("openai", "APIConnectionError"),
    ("httpx", "TransportError"),
    ("httpx2", "TransportError"),
)


def remember_endpoint(base_url: str, model: Model[Any, Any]) -> None:
    """Note that a model is served at a URL; forgotten with the model."""
    _models[_comparable(base_url)] = model


def model_for(error: BaseException) -> Model[Any, Any] | None:
    """Return the model whose endpoint an error failed to reach, or None.

    Causes, contexts and the members of exception groups are looked through.
    """
    for link in _chain(error):
        url = _request_url(link)
        if url is not None and (model := _served_at(url)) is not None:
            return model
    return None


def inference_failure(error: BaseException) -> str | None:
    """Return what became of the endpoint that an error failed to reach, None if it lives or is unknown."""
    model = model_for(error)
    if model is None:
        return None
    failure = model._inference_failure()
    if failure is None:
        return None
    return f"the inference endpoint of model {model.name!r} is gone, so no rollout can go on: {failure}"


_DEFAULT_PORTS = {"http": 80, "https": 443}


def _comparable(url: str) -> str:
    """Return a URL without what clients add or leave out: the default port, a last slash, capitals in the host."""
    parts = urlsplit(url)
    port = parts.port if parts.port is not None else _DEFAULT_PORTS.get(parts.scheme)
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"


def _served_at(request_url: str) -> Model[Any, Any] | None:
    url = _comparable(request_url)
    # The slash keeps port 80 from answering for port 8000.
    matching = [base for base in list(_models) if url == base or url.startswith(f"{base}/")]
    return _models.get(max(matching, key=len)) if matching else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            waiting += link.exceptions


def _request_url(error: BaseException) -> str | None:
    for module_name, class_name in _CONNECTION_ERRORS:
        module = sys.modules.get(module_name)  # no such error can exist before its module does
        if module is None or not isinstance(error, vars(module)[class_name]):
            continue
        try:
            return str(error.request.url)
        except RuntimeError:  # httpx raises this where no request was attached
            return None
    return None

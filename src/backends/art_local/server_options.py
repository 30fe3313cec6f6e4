"""Options of the inference server, read from upstream's option names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art_local.option_rules import warn_once

if TYPE_CHECKING:
    from collections.abc import Mapping


def server_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return host, port and api_key from upstream's options of the inference server, where they are given.

    The others speak to vLLM; one warning for each says that it has no effect here.
    """
    given = dict(options or {})
    args = dict(given.pop("server_args", None) or {})
    taken = {name: args.pop(name) for name in ("host", "port", "api_key") if name in args}
    for name in [*(f"server_args.{name}" for name in args), *given]:
        warn_once(name)
    return taken

"""How options of upstream's names are received.

Every option that is accepted has an effect, is at upstream's default, or is a hint about how upstream's engine
should do its work (memory, chunking, logging), for which one warning says that it changes nothing here. Any
other option is refused by name.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

_warned: set[str] = set()


def refuse_unsupported(
    options: Mapping[str, Any], unsupported: Mapping[str, Any], hints: set[str], what: str
) -> None:
    """Refuse what is not known, and what is not at the one value that does nothing; warn of hints once.

    Args:
        options: The options that are left after every one that has an effect was taken out.
        unsupported: Known options that this backend does not have, with the value at which they do nothing.
        hints: Options that may be given and change nothing.
        what: Names the kind of option in messages.

    Raises:
        ConfigurationError: An option cannot be honoured; the message names it.
    """
    for name, value in options.items():
        if name in hints:
            warn_once(f"{what} {name}")
        elif name not in unsupported:
            raise ConfigurationError(
                f"{what} {name!r} is not known to the local backend; remove it"
            )
        elif value != unsupported[name]:
            raise ConfigurationError(
                f"{what} {name}={value!r} is not supported by the local backend; leave it out, or at its default "
                f"{unsupported[name]!r}"
            )


def warn_once(name: str) -> None:
    """Say, once in this process, that an option changes nothing here."""
    if name not in _warned:
        _warned.add(name)
        logger.warning("%s has no effect here", name)

"""Python's collector of reference cycles, paused while a great many objects are made that are no garbage."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()
_num_pauses = 0


def _resume_in_child() -> None:
    """Start the collector again in a forked child: the threads that would do so are not there."""
    global _lock, _num_pauses  # noqa: PLW0603 - as below
    _lock = threading.Lock()
    if _num_pauses > 0:
        _num_pauses = 0
        gc.enable()


os.register_at_fork(after_in_child=_resume_in_child)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the collector for the block, in all threads; a collector that was off stays off.

    It starts whenever enough new objects are alive, and then walks over all of them, again and again while a
    step's rollouts are read or written: two thirds of the time, during which no other thread can run.
    """
    global _num_pauses  # noqa: PLW0603 - the collector, too, is one for the whole process
    with _lock:
        is_ours = gc.isenabled() or _num_pauses > 0
        if is_ours:
            _num_pauses += 1
            gc.disable()
    try:
        yield
    finally:
        with _lock:
            if is_ours:
                _num_pauses -= 1
                if _num_pauses == 0:
                    _promote_everything()
                    gc.enable()


def _promote_everything() -> None:
    """Count all objects as old, without walking over them as the first run of the collector would."""
    # Where somebody else has frozen objects, these must not be thawed.
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()

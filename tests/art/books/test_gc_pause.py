from __future__ import annotations

import contextlib
import gc
import os
import threading

from art.books.gc_pause import gc_paused


def test_the_collector_is_paused_for_the_block() -> None:
    """It is off inside, blocks may be nested, and an error in one does not leave it off."""
    with gc_paused():
        with contextlib.suppress(KeyError), gc_paused():
            raise KeyError("x")
        assert not gc.isenabled()

    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    """Who switched it off wants it so."""
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_objects_that_somebody_froze_stay_frozen() -> None:
    """A server that froze its objects before it forked finds them frozen."""
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with gc_paused():
            pass
        # Some may have been freed meanwhile; an unfreeze would leave none.
        assert gc.get_freeze_count() > frozen / 2 > 0
    finally:
        gc.unfreeze()


def test_a_forked_child_has_its_collector() -> None:
    """A child that is forked while another thread reads or writes is not left without one."""
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        with gc_paused():
            inside.set()
            done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if gc.isenabled() else 1)
    done.set()
    thread.join()

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

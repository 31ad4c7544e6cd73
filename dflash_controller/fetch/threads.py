"""Runs the parts of a fetch at once, and ends them together: at the first error, or when the program is told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from dflash_controller.fetch.failures import FetchError
from dflash_controller.model.fetch_report import FetchReason

LOOK_S = 0.2
LAST_S = 2.0
"""Seconds that threads get to end. One that waits for a silent hub does not, and writes nothing more once it goes on."""
STOPPED = "Stopped by a signal; the next attempt continues"
Returned = TypeVar("Returned")


def run_all(actions: Sequence[Callable[[], Returned]], parallel: int, stopped: threading.Event) -> list[Returned]:
    """Returns what the actions return, in their order. ``stopped`` tells them to end; it is set here at the first error.

    Raises that error, or FetchError if the program was told to stop.
    """
    pool = ThreadPoolExecutor(max(parallel, 1), thread_name_prefix="fetch")
    running = [pool.submit(action) for action in actions]
    while True:
        done, others = wait(running, LOOK_S, return_when=FIRST_EXCEPTION)
        if any(future.exception() is not None for future in done) or (others and stopped.is_set()):
            break
        if not others:
            pool.shutdown()
            return [future.result() for future in running]
    stopped.set()
    pool.shutdown(wait=False, cancel_futures=True)
    begun = [future for future in running if not future.cancelled()]
    ended, _ = wait(begun, LAST_S)
    errors = [error for future in begun if future in ended and (error := future.exception()) is not None]
    raise min(errors, key=_is_interruption, default=FetchError(FetchReason.INTERRUPTED, STOPPED))


def _is_interruption(error: BaseException) -> bool:
    return isinstance(error, FetchError) and error.reason is FetchReason.INTERRUPTED

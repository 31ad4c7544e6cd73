"""Waits for something outside this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(condition: Callable[[], Found | None], what: str, timeout: float = 60.0, interval: float = 0.05) -> Found:
    """Returns the first truthy value of `condition`. Raises TimeoutError naming `what` after `timeout` seconds."""
    give_up_at = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"waited {timeout:.0f} s for {what}")
        time.sleep(interval)

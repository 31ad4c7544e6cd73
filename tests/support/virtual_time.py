"""An event loop whose time jumps to the next timer instead of passing: hours of retries are tested in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Where a loop would wait for its next timer, time moves there instead."""

    jump = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everything waits, and nothing will happen any more")
        self.jump += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time begins at 0 and moves only by waiting."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.jump


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end. AssertionError when everything waits for something that never comes."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)

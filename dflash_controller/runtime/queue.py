"""A work queue of keys: each key is queued once, is processed by one worker at a time, and is retried with back-off after a failure."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class QueueObserver(Protocol):
    """Called with the seconds a key waited from the time it was due until a worker took it."""

    def __call__(self, waited_s: float) -> None: ...


def _unobserved(waited_s: float) -> None:
    """Ignores the wait."""


class WorkQueue(Generic[K]):
    """A work queue on one event loop, whose clock it uses.

    A key added while it is queued keeps its place. A key added while a worker has it is processed again once that worker is done. The
    earliest of several delayed additions counts. All are dropped when a worker takes the key, because the reconcile sets a new delay.
    """

    def __init__(
        self,
        *,
        first_backoff_s: float = 0.5,
        longest_backoff_s: float = 300.0,
        jitter: Callable[[], float] = lambda: random.uniform(0.75, 1.25),
        observe_wait: QueueObserver = _unobserved,
    ) -> None:
        self._first_backoff_s = first_backoff_s
        self._longest_backoff_s = longest_backoff_s
        self._jitter = jitter
        self._observe_wait = observe_wait
        self._loop = asyncio.get_running_loop()
        self._ready: deque[K] = deque()
        self._due: dict[K, float] = {}
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wakeup = asyncio.Event()
        self._closed = False

    @property
    def depth(self) -> int:
        """Number of keys that are due and not yet taken."""
        return len(self._ready)

    @property
    def oldest_s(self) -> float:
        """Seconds for which the first of them has been due; 0 if the queue is empty."""
        return self._loop.time() - self._due[self._ready[0]] if self._ready else 0.0

    def add(self, key: K, delay_s: float = 0.0) -> None:
        """Adds a key, due now or in ``delay_s`` seconds."""
        if self._closed or key in self._due:
            return
        if delay_s > 0:
            self._schedule(key, self._loop.time() + delay_s)
        elif key in self._working:
            self._again.add(key)
        else:
            self._cancel_timer(key)
            self._due[key] = self._loop.time()
            self._ready.append(key)
            self._wakeup.set()

    def add_all(self, keys: Iterable[K]) -> None:
        """Adds keys that are due now."""
        for key in keys:
            self.add(key)

    def retry(self, key: K, first_backoff_s: float | None = None) -> float:
        """Adds the key after a failure and returns the delay in seconds, which doubles with each failure in a row, with jitter."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        first_s = self._first_backoff_s if first_backoff_s is None else first_backoff_s
        delay: float = min(first_s * 2 ** min(failures, 30), self._longest_backoff_s) * self._jitter()
        self.add(key, delay)
        return delay

    def succeeded(self, key: K) -> None:
        """Resets the back-off of the key."""
        self._failures.pop(key, None)

    async def run(self, workers: int, work: Callable[[K], Awaitable[None]]) -> None:
        """Passes keys to ``workers`` concurrent calls of ``work`` until the queue is closed; returns when the last call is done.

        ``work`` must handle its own failures: an exception from it ends the run.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker(work))

    def close(self) -> None:
        """Hands out no more keys; running calls finish."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._wakeup.set()

    async def _worker(self, work: Callable[[K], Awaitable[None]]) -> None:
        while (key := await self._take()) is not None:
            try:
                await work(key)
            finally:
                self._working.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)
            # Work that waits for nothing would otherwise keep the loop from answers and from renewals of the Lease, for a whole fleet.
            await asyncio.sleep(0)

    async def _take(self) -> K | None:
        while not self._closed:
            if self._ready:
                key = self._ready.popleft()
                self._observe_wait(self._loop.time() - self._due.pop(key))
                self._working.add(key)
                self._cancel_timer(key)
                return key
            self._wakeup.clear()
            await self._wakeup.wait()
        return None

    def _schedule(self, key: K, at: float) -> None:
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= at:
            return
        self._cancel_timer(key)
        self._timers[key] = self._loop.call_at(at, self._fire, key)

    def _fire(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

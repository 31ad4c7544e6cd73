"""Limits the probe's concurrent requests over all deployments, and shares them fairly.

A slot is held for one request, not for a whole run: a run with a slow pace would keep others out for hours. Free slots go round the
namespaces that wait, one each, and within a namespace to the request that has waited longest. A run has one request at a time. No
namespace holds more than PER_NAMESPACE slots, so that one with slow engines does not keep the others waiting.

The limits follow from the largest fleet, 500 deployments of one namespace that all begin a rollout at once, with the defaults: 64 prompts,
60 a minute, two sides, and in the worst case every prompt once more. That is 256 requests each, 128,000 in all. An answer of 256 tokens
takes about 2 s from an engine with few other requests, so 64 slots give 32 answers a second: all have their verdict after 67 minutes, and
after 114 minutes if an answer takes 3.4 s. The default deadline is 2 hours.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dflash_controller.model.snapshot import Key

AT_MOST = 128
"""Maximum number of concurrent requests of the whole operator."""
PER_NAMESPACE = 64
"""Maximum number of concurrent requests to the engines of one namespace."""


class Slots:
    """Grants turns. ``clock`` returns monotonic seconds."""

    def __init__(self, at_most: int = AT_MOST, per_namespace: int = PER_NAMESPACE, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = at_most
        self._per_namespace = per_namespace
        self._clock = clock
        self._held: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting requests by namespace, cancelled ones included. The first namespace is the next to be granted a slot."""
        self._waited: dict[Key, float] = {}
        self._since: dict[Key, float] = {}

    @asynccontextmanager
    async def turn(self, key: Key) -> AsyncIterator[None]:
        """Holds a slot for one request of this deployment, which has no other at the same time."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(key.namespace, deque()).append(granted)
        self._grant()
        if not granted.done():
            await self._wait(key, granted)
        try:
            yield
        finally:
            self._release(key.namespace)

    def waited_s(self, key: Key) -> float:
        """Returns for how many seconds the deployment's requests have waited for slots since it was last forgotten."""
        since = self._since.get(key)
        return self._waited.get(key, 0.0) + (0.0 if since is None else self._clock() - since)

    def forget(self, key: Key) -> None:
        """Counts ``waited_s`` from zero again."""
        self._waited.pop(key, None)
        if key in self._since:
            self._since[key] = self._clock()

    async def _wait(self, key: Key, granted: asyncio.Future[None]) -> None:
        self._since[key] = self._clock()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self._release(key.namespace)
            raise
        finally:
            self._waited[key] = self.waited_s(key)
            self._since.pop(key, None)

    def _release(self, namespace: str) -> None:
        self._free += 1
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        self._grant()

    def _grant(self) -> None:
        """Gives every free slot to the next that may have it."""
        for namespace in [*self._queues]:
            queue = self._queues[namespace]
            while queue and queue[0].cancelled():
                queue.popleft()
            if queue and (not self._free or self._held[namespace] >= self._per_namespace):
                continue
            del self._queues[namespace]
            if queue:
                self._free -= 1
                self._held[namespace] += 1
                queue.popleft().set_result(None)
            if queue:
                self._queues[namespace] = queue

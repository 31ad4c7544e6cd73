"""Lists everything at start and every few minutes, because watches can miss deletions and deadlines pass without events.

A standby does so too. Its store is then as good as the leader's, and it needs no list before its first write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time

from dflash_controller.cluster.errors import ApiError
from dflash_controller.cluster.executor import Executor
from dflash_controller.cluster.kinds import Kind
from dflash_controller.cluster.reader import Reader
from dflash_controller.cluster.store import Store
from dflash_controller.runtime.backlog import Backlog
from dflash_controller.runtime.metrics import Metrics

FIRST_RETRY_SECONDS = 1.0
TAKEOVER_SECONDS = 5.0
"""Time from the begin of leading to the next complete list: what waits for the new leader comes first."""
UNWATCHED_SECONDS = 20.0
"""Time between two looks for an optional kind that no watch follows: it is not installed, or was found by the lists alone."""
SPREAD = 0.2
"""Share of the interval over which the reconciles of unchanged deployments are spread."""

log = logging.getLogger(__name__)


class Resync:
    """Corrects the store, and has every deployment looked at once per interval while this process leads."""

    def __init__(self, reader: Reader, store: Store, executor: Executor, backlog: Backlog, metrics: Metrics, *, interval_s: float) -> None:
        self._reader = reader
        self._store = store
        self._executor = executor
        self._backlog = backlog
        self._metrics = metrics
        self._interval_s = interval_s
        self._started = time.monotonic()
        self._last: float | None = None
        self._error: ApiError | None = None
        self._stale: set[tuple[Kind, str | None]] = set()
        self._woken = asyncio.Event()
        self._begun = False
        self._list_now = False
        self.filled = asyncio.Event()
        """Set once the store is complete."""

    def watch_opened(self, kind: Kind, namespace: str | None) -> None:
        """Schedules another list of this kind: a watch that began with a list may have missed deletions before it."""
        self._reader.watch_began(kind)
        self._stale.add((kind, namespace))
        self._woken.set()

    def lead(self) -> None:
        """Has every deployment looked at from now on.

        The store may lack what happened in the last moments before. So everything is listed once more, soon after the first reconciles:
        these carry preconditions, and read live what they cannot take back.
        """
        self._backlog.lead(self._store.keys())
        if self._begun:
            asyncio.get_running_loop().call_later(TAKEOVER_SECONDS, self._list_soon)

    def _list_soon(self) -> None:
        self._list_now = True
        self._woken.set()

    async def run(self) -> None:
        """Fills the store, retrying while the API server fails, then lists once per interval until cancelled."""
        self._begun = True
        delay_s = FIRST_RETRY_SECONDS
        while not await self._list():
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, self._interval_s)
        if self._backlog.leads:
            self._backlog.add_all(sorted(self._store.keys()))
        self.filled.set()
        while True:
            await self._relist_until(asyncio.get_running_loop().time() + self._interval_s * random.uniform(0.9, 1.1))
            self._list_now = False
            if await self._list():
                self._executor.prune()
                self._backlog.spread(self._store.keys(), self._interval_s * SPREAD)

    def overdue(self) -> str | None:
        """Health check: returns a message if there was no complete list for three intervals and a minute, else None.

        It counts from the start of the process, so that a first list that never succeeds is found too.
        """
        age = time.monotonic() - (self._started if self._last is None else self._last)
        if age <= 3 * self._interval_s + 60:
            return None
        what = f"there was no complete list in {age:.0f} s" if self._last is None else f"the last complete list is {age:.0f} s old"
        return f"{what}: {self._error}" if self._error else what

    async def _relist_until(self, end: float) -> None:
        """Lists kinds whose watch was restarted, and optional kinds whose list failed or that no watch follows, until ``end`` or until all
        must be listed.

        Any other failed list is left to the next complete one.
        """
        loop, pause_s = asyncio.get_running_loop(), FIRST_RETRY_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                while not self._list_now:
                    failing, unwatched = self._reader.failing, self._reader.unwatched
                    due = [pause_s] * bool(failing) + [UNWATCHED_SECONDS] * bool(unwatched)
                    again = asyncio.timeout_at(loop.time() + min(due) if due else None)
                    with contextlib.suppress(TimeoutError):
                        async with again:
                            await self._woken.wait()
                    self._woken.clear()
                    if again.expired():
                        self._stale |= self._reader.failing | self._reader.unwatched
                        pause_s *= 2
                    while self._stale and not self._list_now:
                        kind, namespace = self._stale.pop()
                        try:
                            self._backlog.add_all(await self._reader.catch_up(kind, namespace))
                        except ApiError as error:
                            log.warning("a list after the restart of a watch failed: %s", error)
                    self._metrics.left_out(self._store.unlisted)

    async def _list(self) -> bool:
        started = time.monotonic()
        try:
            changed = await self._reader.resync()
        except ApiError as error:
            log.error("the cluster could not be listed: %s", error)
            self._error = error
            return False
        self._last, self._error = time.monotonic(), None
        self._metrics.left_out(self._store.unlisted)
        self._metrics.resynced()
        log.info("listed the cluster in %.1f s: %d deployments, %d changed", self._last - started, len(self._store.keys()), len(changed))
        self._backlog.add_all(changed)
        return True

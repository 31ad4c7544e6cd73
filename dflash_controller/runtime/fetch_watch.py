"""Follows the pods that fetch weights in the background, as reconciles find them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from dflash_controller.model.fetch_progress import FetchProgress
from dflash_controller.model.snapshot import Key, Snapshot
from dflash_controller.observe.fetch_progress import read_progress

FIRST_S = 5.0
EVERY_S = 60.0
"""Seconds between two looks. Each may change the status, which is written at most once a minute for figures."""
LOST_AFTER = 3
"""Looks in a row without any answer after which what was known is dropped: it may have stopped meanwhile."""
MOST_PODS = 16
"""Pods of one deployment that are asked. Their downloads are alike."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    pods: Mapping[str, str]
    """Address by pod."""
    found: Mapping[str, FetchProgress] = field(default_factory=dict)
    missed: int = 0
    """Looks in a row without any answer."""
    task: asyncio.Task[None] | None = None


class FetchWatch:
    """``changed(key)`` is called on the event loop whenever the progress of a deployment's pods is another one."""

    def __init__(
        self,
        changed: Callable[[Key], None],
        read: Callable[[str], Awaitable[FetchProgress | None]] = read_progress,
        *,
        first_s: float = FIRST_S,
        every_s: float = EVERY_S,
    ) -> None:
        self._changed = changed
        self._read = read
        self._first_s = first_s
        self._every_s = every_s
        self._followed: dict[Key, _Followed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def follow(self, snapshot: Snapshot) -> None:
        """Follows the pods of a deployment that fetch weights now, Jobs' and engines', and no others."""
        running = sorted((pod.name, pod.ip) for pod in snapshot.pods if pod.fetching and pod.ip and not pod.terminating)
        pods = dict(running[:MOST_PODS])
        known = self._followed.get(snapshot.key)
        if known is not None and pods:
            known.pods = pods
        elif known is not None:
            self.forget(snapshot.key)
        elif pods and not self._closed:
            followed = self._followed[snapshot.key] = _Followed(pods)
            followed.task = asyncio.create_task(self._work(snapshot.key, followed), name=f"fetch progress of {snapshot.key}")
            self._tasks.add(followed.task)
            followed.task.add_done_callback(self._tasks.discard)

    def progress(self, key: Key) -> Mapping[str, FetchProgress]:
        """Returns the last progress by pod; empty while nothing is known."""
        followed = self._followed.get(key)
        return {} if followed is None else followed.found

    def forget(self, key: Key) -> None:
        """Follows the deployment's pods no more."""
        followed = self._followed.pop(key, None)
        if followed is not None and followed.task is not None:
            followed.task.cancel()

    async def run(self) -> None:
        """Waits until cancelled, then follows nothing any more. It runs in the background while this process leads."""
        try:
            await asyncio.Event().wait()
        finally:
            self._closed = True
            for key in list(self._followed):
                self.forget(key)
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self, key: Key, followed: _Followed) -> None:
        await asyncio.sleep(self._first_s)
        while True:
            pods = followed.pods
            try:
                answers = await asyncio.gather(*(self._read(ip) for ip in pods.values()))
            except Exception:
                _log.exception("the progress of %s cannot be read", key)
                answers = []
            found = {name: answer for name, answer in zip(pods, answers, strict=False) if answer is not None}
            followed.missed = 0 if found else followed.missed + 1
            if found != followed.found and (found or followed.missed >= LOST_AFTER):
                followed.found = found
                self._changed(key)
            await asyncio.sleep(self._every_s)

"""Measures a download and reports it: log lines for people, one JSON object for the operator."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from dflash_controller.model.fetch_progress import FetchProgress

WINDOW_S = 30.0
"""The rate is that of the last seconds, so that it follows a network that changes."""


class Progress:
    """Counts bytes of several threads. ``report`` gets at most one reading in ``every_s`` seconds."""

    def __init__(self, report: Callable[[FetchProgress], None], every_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._every_s = every_s
        self._clock = clock
        self._guard = threading.Lock()
        self.phase = "Starting"
        self._done = 0
        self._total = 0
        self._received: deque[tuple[float, int]] = deque()
        self._begun_at = clock()
        self._reported_at = clock()
        self._arrived_at: float | None = None
        self._arriving_s = 0.0
        self.downloaded = 0
        """Bytes that came over the network, discarded ones included."""

    def begin(self, total: int, done: int) -> None:
        """Says how many bytes all models have, and how many of them are on the disk."""
        with self._guard:
            self._total, self._done = total, done
            self._received.clear()
            self._begun_at = self._clock()

    def received(self, count: int) -> None:
        """Counts bytes from the network."""
        with self._guard:
            now = self._clock()
            since = self._begun_at if self._arrived_at is None else self._arrived_at
            self._arriving_s += min(now - since, WINDOW_S)
            self._arrived_at = now
            self._done += count
            self.downloaded += count
            self._received.append((now, count))
            while self._received and now - self._received[0][0] > WINDOW_S:
                self._received.popleft()
        self._maybe_report()

    def moved(self, count: int) -> None:
        """Counts bytes that were found on the disk (positive) or had to be thrown away (negative)."""
        with self._guard:
            self._done += count

    def average(self) -> float:
        """Returns bytes per second while bytes arrived: without waiting for another pod, and without reading what was there."""
        with self._guard:
            return self.downloaded / self._arriving_s if self._arriving_s > 0 else 0.0

    def reading(self) -> FetchProgress:
        with self._guard:
            now = self._clock()
            recent = sum(count for at, count in self._received if now - at <= WINDOW_S)
            span = min(max(now - self._begun_at, 0.001), WINDOW_S)
            rate = recent / span
            left = (self._total - self._done) / rate if rate > 0 else None
            return FetchProgress(self.phase, self._done, self._total, rate, left)

    def _maybe_report(self) -> None:
        with self._guard:
            now = self._clock()
            if now - self._reported_at < self._every_s:
                return
            self._reported_at = now
        self._report(self.reading())

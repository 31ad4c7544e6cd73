"""The last scrapes of one pod, and what it did between them. Pure: the times are given."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from dflash_controller.model.series import CounterWindow, Scrape, Series, between, restarted


@dataclass(slots=True)
class Ring:
    """Pages of one pod, oldest first, reaching back to just before the window's start."""

    window_s: float
    pages: deque[tuple[float, Scrape]] = field(default_factory=deque)
    _reported: tuple[float, Scrape] | None = None
    """The page at which the last step ended."""

    def add(self, at: float, page: Scrape) -> None:
        """Take a page scraped at monotonic time ``at``.

        A counter that fell or vanished means that the process restarted: what went before is forgotten, for all counters alike, so that
        no quotient mixes two lives.
        """
        if self.pages and restarted(self.pages[-1][1], page):
            self.pages.clear()
            self._reported = None
        self.pages.append((at, page))
        while len(self.pages) > 2 and self.pages[1][0] <= at - self.window_s:
            self.pages.popleft()

    def window(self, now: float) -> CounterWindow | None:
        """Differences between the oldest and the newest page, None with fewer than two.

        A counter absent from the oldest page counts from 0: engines export a labelled counter from its first increment on.
        """
        if len(self.pages) < 2:
            return None
        (start, first), (end, last) = self.pages[0], self.pages[-1]
        return between(first, last, end - start, now - end)

    def step(self, at_least_s: float, at_most_s: float, series: Iterable[Series] = ()) -> CounterWindow | None:
        """Differences from the page at which the last step ended to the newest; steps follow each other and do not overlap.

        None while that is less than ``at_least_s`` ago, and where scrapes failed for so long that it would be more than ``at_most_s``.
        """
        if not self.pages:
            return None
        end, last = self.pages[-1]
        if self._reported is None:
            self._reported = (end, last)
        start, first = self._reported
        if end - start < at_least_s:
            return None
        self._reported = (end, last)
        return between(first, last, end - start, series=series) if end - start <= at_most_s else None

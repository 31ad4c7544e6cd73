"""The last scrapes of one pod, and what it did between them. Pure: the times are given."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dflash_controller.observe.series import Page, Window


@dataclass(slots=True)
class Ring:
    """Pages of one pod, oldest first, reaching back to just before the window's start."""

    window_s: float
    pages: deque[tuple[float, Page]] = field(default_factory=deque)

    def add(self, at: float, page: Page) -> None:
        """Take a page scraped at monotonic time ``at``.

        A counter that fell or vanished means that the process restarted: what went before is forgotten, for all counters alike, so that
        no quotient mixes two lives.
        """
        if self.pages and any(page.counters.get(cell, -1.0) < value for cell, value in self.pages[-1][1].counters.items()):
            self.pages.clear()
        self.pages.append((at, page))
        while len(self.pages) > 2 and self.pages[1][0] <= at - self.window_s:
            self.pages.popleft()

    def window(self, now: float) -> Window | None:
        """Differences between the oldest and the newest page, None with fewer than two.

        A counter absent from the oldest page counts from 0: engines export a labelled counter from its first increment on.
        """
        if len(self.pages) < 2:
            return None
        (start, first), (end, last) = self.pages[0], self.pages[-1]
        deltas = {cell: value - first.counters.get(cell, 0.0) for cell, value in last.counters.items()}
        return Window(end - start, deltas, last.gauges, now - end)

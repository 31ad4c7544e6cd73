"""Whether requests are still about as long as those that step times were learned from.

A step reads the cached keys and values of all its requests, so its time grows with the mean context. A curve over block and load holds for
one mean context; where that moves by half, what was learned is no more than a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MOVED = 1.5
"""Ratio of mean contexts from which on step times are another epoch's."""
RECENT_S = 600.0
RECENT_REQUESTS = 200.0
"""The last ten minutes count as now, and more where fewer requests ended in them."""
LEAST_REQUESTS = 100.0
"""Before a mean is believed: contexts scatter by about their mean, so 100 of them tell it within 10 %."""
HALF_LIFE_S = 3 * 86400.0
"""Of what the epoch was learned at, as of the step times themselves."""


class PromptLengths:
    """Mean context of the requests of an epoch, beside that of the last ones."""

    def __init__(self) -> None:
        self._requests = self._tokens = self._at_s = 0.0
        self._recent_requests = self._recent_tokens = 0.0

    @property
    def tokens(self) -> float:
        """Mean of the epoch; 0 before enough requests ended."""
        return self._tokens / self._requests if self._requests >= LEAST_REQUESTS else 0.0

    def take(self, at_s: float, requests: float, tokens: float) -> bool:
        """Requests that ended, and the mean context of one of them. True: it has moved, and a new epoch begins with those to come."""
        if requests <= 0 or tokens <= 0:
            return False
        since_s = max(0.0, at_s - self._at_s)
        self._at_s = max(at_s, self._at_s)
        gone = math.exp(-since_s / RECENT_S)
        kept = max(gone, min(1.0, RECENT_REQUESTS / self._recent_requests)) if self._recent_requests else 1.0
        self._recent_requests = self._recent_requests * kept + requests
        self._recent_tokens = self._recent_tokens * kept + requests * tokens
        fade = 0.5 ** (since_s / HALF_LIFE_S)
        self._requests = self._requests * fade + requests
        self._tokens = self._tokens * fade + requests * tokens
        if not self.tokens or self._recent_requests < LEAST_REQUESTS:
            return False
        moved = math.log(self._recent_tokens / self._recent_requests / self.tokens)
        if abs(moved) <= math.log(MOVED):
            return False
        self._requests = self._tokens = self._recent_requests = self._recent_tokens = 0.0
        return True

    def to_json(self) -> dict[str, float]:
        """The epoch's; the last requests are seen again in minutes."""
        return {"requests": round(self._requests, 1), "tokens": round(self._tokens), "at": round(self._at_s)}

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> PromptLengths:
        """The inverse; nothing known where nothing was kept. Raises KeyError, TypeError or ValueError on anything else."""
        context = PromptLengths()
        if data is not None:
            context._requests, context._tokens, context._at_s = (float(data[name]) for name in ("requests", "tokens", "at"))
            if min(context._requests, context._tokens) < 0:
                raise ValueError(f"{data} is no mean context")
        return context

"""Detects when requests are no longer about as long as those the step times were learned from.

A step reads the cached keys and values of all its requests, so its time grows with the mean context. A curve over block and load is valid
for one mean context. When that changes by half, the curve is only a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MOVED = 1.5
"""Ratio of mean contexts from which a new epoch of step times begins."""
RECENT_S = 600.0
RECENT_REQUESTS = 200.0
"""The recent mean covers the last ten minutes, or longer if fewer requests than this ended in them."""
LEAST_REQUESTS = 100.0
"""Minimum requests for a mean: the standard deviation of contexts is about their mean, so 100 give it within 10 %."""
HALF_LIFE_S = 3 * 86400.0
"""Half-life of the epoch's mean context, the same as of the step times."""


class PromptLengths:
    """Mean context of an epoch's requests and of the most recent ones."""

    def __init__(self) -> None:
        self._requests = self._tokens = self._at_s = 0.0
        self._recent_requests = self._recent_tokens = 0.0

    @property
    def tokens(self) -> float:
        """Mean context of the epoch in tokens; 0 before enough requests ended."""
        return self._tokens / self._requests if self._requests >= LEAST_REQUESTS else 0.0

    def take(self, at_s: float, requests: float, tokens: float) -> bool:
        """Takes requests that ended and their mean context. Returns True if the mean has changed, so that a new epoch begins."""
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
        """Returns the epoch's mean; that of the recent requests is measured again in minutes."""
        return {"requests": round(self._requests, 1), "tokens": round(self._tokens), "at": round(self._at_s)}

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> PromptLengths:
        """Returns the state of ``to_json``, an empty one for None. Raises KeyError, TypeError or ValueError on anything else."""
        context = PromptLengths()
        if data is not None:
            context._requests, context._tokens, context._at_s = (float(data[name]) for name in ("requests", "tokens", "at"))
            if min(context._requests, context._tokens) < 0:
                raise ValueError(f"{data} is no mean context")
        return context

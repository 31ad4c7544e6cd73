"""What clients log of their requests, and what of it lies in a window of time. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Completion:
    """One answered request. Times are in seconds since the run began. ``first_token_s`` is None for answers that did not stream."""

    workload: str
    started_s: float
    finished_s: float
    tokens: int
    first_token_s: float | None = None
    url: str = ""
    """Base URL of the engine that answered."""

    @property
    def latency_s(self) -> float:
        return self.finished_s - self.started_s

    @property
    def per_token_s(self) -> float | None:
        """Seconds for each token after the first; None where it did not stream or has one token only."""
        if self.first_token_s is None or self.tokens < 2:
            return None
        return (self.finished_s - self.first_token_s) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Failure:
    """One request without a whole answer. Times as for a completion; ``kind`` is an HTTP status or the name of an error."""

    started_s: float
    failed_s: float
    kind: str
    reason: str


@dataclass(slots=True)
class Log:
    """Completions and failures of a run."""

    completions: list[Completion] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def errors(self) -> Counter[str]:
        """Returns how often each kind of failure happened."""
        return Counter(failure.kind for failure in self.failures)

    @property
    def ended(self) -> int:
        """Returns the number of requests that have ended, with or without an answer."""
        return len(self.completions) + len(self.failures)

    def finished_within(self, start_s: float, end_s: float) -> list[Completion]:
        """Returns the answers that were complete in the window."""
        return [completion for completion in self.completions if start_s < completion.finished_s <= end_s]


def share(completions: Iterable[Completion], start_s: float, end_s: float) -> tuple[float, float]:
    """Returns tokens, and seconds that requests were under way, in the window from ``start_s`` to ``end_s``.

    A request that lies partly in the window counts with that share of its tokens, so requests cut by the window do not bias the rate.
    """
    tokens = busy = 0.0
    for completion in completions:
        overlap = max(0.0, min(completion.finished_s, end_s) - max(completion.started_s, start_s))
        busy += overlap
        tokens += completion.tokens * overlap / completion.latency_s if completion.latency_s > 0 else 0.0
    return tokens, busy


def quantile(values: Sequence[float], share: float) -> float | None:
    """Returns the smallest value that at least ``share`` of the values do not exceed; None without values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]

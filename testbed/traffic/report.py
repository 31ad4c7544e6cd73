"""The measurements of a load run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


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


@dataclass(frozen=True, slots=True)
class Report:
    """Results of a run's window. Rates are per second of the window; latencies are in seconds, None without a completion."""

    duration_s: float
    requests: int
    errors: Mapping[str, int]
    tokens: int
    tokens_per_second: float
    requests_per_second: float
    acceptance_length: float | None
    mean_concurrency: float
    latency_s: Mapping[str, float | None]
    time_to_first_token_s: Mapping[str, float | None]
    by_workload: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Returns the smallest value that at least ``share`` of the values do not exceed; None without values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _distribution(values: Sequence[float]) -> dict[str, float | None]:
    mean = sum(values) / len(values) if values else None
    return {"mean": mean, "p50": quantile(values, 0.5), "p90": quantile(values, 0.9), "p99": quantile(values, 0.99)}


def summarize(log: Log, start_s: float, end_s: float, acceptance_length: float | None) -> Report:
    """Returns the report of the window from ``start_s`` to ``end_s``.

    A request that lies partly in the window counts with that share of its tokens, so requests cut by the window do not bias the rate.
    """
    seconds = end_s - start_s
    inside = [completion for completion in log.completions if start_s < completion.finished_s <= end_s]
    tokens = 0.0
    busy = 0.0
    for completion in log.completions:
        overlap = max(0.0, min(completion.finished_s, end_s) - max(completion.started_s, start_s))
        busy += overlap
        tokens += completion.tokens * overlap / completion.latency_s if completion.latency_s > 0 else 0.0
    first = [c.first_token_s - c.started_s for c in inside if c.first_token_s is not None]
    return Report(
        duration_s=seconds,
        requests=len(inside),
        errors=dict(log.errors),
        tokens=round(tokens),
        tokens_per_second=tokens / seconds,
        requests_per_second=len(inside) / seconds,
        acceptance_length=acceptance_length,
        mean_concurrency=busy / seconds,
        latency_s=_distribution([c.latency_s for c in inside]),
        time_to_first_token_s=_distribution(first),
        by_workload=dict(Counter(c.workload for c in inside)),
    )

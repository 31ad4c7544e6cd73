"""The measurements of a load run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dflash_controller.cli.bench.answers import Completion, Failure, Log, quantile, share

__all__ = ["Completion", "Failure", "Log", "Report", "quantile", "summarize"]


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


def _distribution(values: Sequence[float]) -> dict[str, float | None]:
    mean = sum(values) / len(values) if values else None
    return {"mean": mean, "p50": quantile(values, 0.5), "p90": quantile(values, 0.9), "p99": quantile(values, 0.99)}


def summarize(log: Log, start_s: float, end_s: float, acceptance_length: float | None) -> Report:
    """Returns the report of the window from ``start_s`` to ``end_s``.

    A request that lies partly in the window counts with that share of its tokens, so requests cut by the window do not bias the rate.
    """
    seconds = end_s - start_s
    inside = log.finished_within(start_s, end_s)
    tokens, busy = share(log.completions, start_s, end_s)
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

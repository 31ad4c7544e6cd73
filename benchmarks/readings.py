"""Reads the operator's metrics and the API server's audit log."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from testbed.traffic.report import quantile

LEASES = "leases"


@dataclass(frozen=True, slots=True)
class Page:
    """One scrape of ``/metrics``: values by sample name and labels."""

    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]

    @classmethod
    def parse(cls, text: str) -> Page:
        """Parses the text. Raises ValueError if it is not a metrics page."""
        return cls(
            {
                (sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
        )

    def value(self, name: str, **labels: str) -> float:
        """Returns the sum over the series with these labels; 0 without any."""
        required = set(labels.items())
        return sum(value for (found, carried), value in self.samples.items() if found == name and required <= set(carried))

    def buckets(self, name: str) -> dict[float, float]:
        """Returns the cumulative counts of a histogram by upper bound."""
        return {float(dict(labels)["le"]): value for (found, labels), value in sorted(self.samples.items()) if found == f"{name}_bucket"}


def histogram_quantile(before: Mapping[float, float], after: Mapping[float, float], share: float) -> float | None:
    """Returns the quantile of the observations in between, by linear interpolation in a bucket as PromQL's ``histogram_quantile``.

    None without observations; the highest finite bound if the quantile lies above it.
    """
    counts = sorted((bound, count - before.get(bound, 0.0)) for bound, count in after.items())
    if not counts or counts[-1][1] <= 0:
        return None
    target = share * counts[-1][1]
    low, below = 0.0, 0.0
    for bound, count in counts:
        if count >= target:
            return low if math.isinf(bound) else low + (bound - low) * (target - below) / (count - below) if count > below else bound
        low, below = bound, count
    return low


def distribution(seconds: Sequence[float]) -> dict[str, float | int | None]:
    """Returns number, median, 99th percentile and maximum, in seconds."""
    return {
        "count": len(seconds),
        "p50_s": _rounded(quantile(seconds, 0.5)),
        "p99_s": _rounded(quantile(seconds, 0.99)),
        "max_s": _rounded(max(seconds, default=None)),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def answered(event: Mapping[str, Any]) -> datetime:
    """Returns when a request of the audit log was answered."""
    return datetime.fromisoformat(event["stageTimestamp"])


def arrived(event: Mapping[str, Any]) -> datetime:
    """Returns when a request arrived. Delays start there, because watchers may see a change before its author gets the answer."""
    return datetime.fromisoformat(event["requestReceivedTimestamp"])


def done(events: Iterable[Mapping[str, Any]], resources: Collection[str]) -> list[Mapping[str, Any]]:
    """Returns the successful requests for these resources (not their subresources)."""
    return [
        event
        for event in events
        if (ref := event.get("objectRef") or {}).get("resource") in resources
        and "subresource" not in ref
        and "name" in ref
        and event["responseStatus"]["code"] < 300
    ]


def delays(
    changes: Iterable[Mapping[str, Any]], writes: Iterable[Mapping[str, Any]], resources: Collection[str]
) -> dict[str, float | None]:
    """Returns the delay in seconds by deployment: from the arrival of the user's change until the first write to a child was answered.

    ``changes`` are audit events about DFlashDeployments, ``writes`` the operator's. With several resources, the latest first write counts.
    None if a child was never written. A child's name is the deployment's, or begins with it and a dash.
    """
    changed = {str(event["objectRef"]["name"]): arrived(event) for event in changes}
    first: dict[tuple[str, str], datetime] = {}
    for event in done(writes, resources):
        ref = event["objectRef"]
        owner = ref["name"] if ref["name"] in changed else str(ref["name"]).rpartition("-")[0]
        if owner in changed and (at := answered(event)) >= changed[owner]:
            key = (owner, ref["resource"])
            first[key] = min(at, first.get(key, at))
    found: dict[str, float | None] = {}
    for name, since in changed.items():
        times = [first.get((name, resource)) for resource in resources]
        complete = [at for at in times if at is not None]
        found[name] = (max(complete) - since).total_seconds() if len(complete) == len(times) else None
    return found

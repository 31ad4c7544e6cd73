"""Keeps how fast weights arrived from a storage, and gives the next revision the start-up budget that follows from it.

The slowest fetch and the slowest start of a revision's pods are stored with it. A new revision on the same storage is resolved with the
slowest of them. A revision that exists keeps what it was made with, so nothing that runs is changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dflash_controller.api import names
from dflash_controller.api.inputs import canonical
from dflash_controller.engines.resolved import Resolved
from dflash_controller.model.snapshot import Pod
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.render.startup import startup_budget_s

LEAST_BYTES = 100_000_000
"""Bytes of a fetch below which its rate is that of requests, not of the line."""
FASTEST = 2_000_000_000
"""Bytes per second of a fetch that are believed, and the most that a stored rate may say."""
SLOWER = 0.9
"""A slower measurement is stored if it is below this part of the stored one. Fewer writes matter more than a tenth."""
REMEMBERED = 5
"""Revisions, the newest, whose measurements count. What was slow long ago may be another network."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second; None: not measured."""

    fetch: int | None = None
    """Of downloads into the storage."""
    load: int | None = None
    """The weights' bytes in the time from the start of an engine to Ready. Compiling is part of it, so loading alone is faster."""

    def slower_of(self, other: Rates) -> Rates:
        return Rates(_slower(self.fetch, other.fetch), _slower(self.load, other.load))

    def to_json(self) -> str:
        return json.dumps({key: rate for key, rate in (("fetch", self.fetch), ("load", self.load)) if rate is not None}, sort_keys=True)


def stored(record: Revision) -> Rates:
    """Returns what is stored with a revision. What cannot be read counts as not measured."""
    text = (record.source["metadata"].get("annotations") or {}).get(names.ANNOTATION_RATES)
    try:
        found: Any = json.loads(text or "{}")
    except (RecursionError, ValueError):
        return Rates()
    return Rates(*(_rate(found.get(key)) for key in ("fetch", "load"))) if isinstance(found, Mapping) else Rates()


def measured(record: Revision, pods: Sequence[Pod]) -> Rates:
    """Returns what the pods of a revision have shown, engines and fetching pods alike."""
    resolved, found = record.resolved, Rates()
    for pod in pods:
        report = pod.fetched
        if report is not None and report.bytes >= LEAST_BYTES and report.rate > 0:
            found = found.slower_of(Rates(fetch=min(report.rate, FASTEST)))
        if resolved.weights_known and pod.ready_since and pod.engine_since and not pod.restarts:
            took_s = (pod.ready_since - pod.engine_since).total_seconds()
            # Beyond the budget the kubelet would have restarted it. So it was Ready before, and has become Ready once more.
            if 0 < took_s <= startup_budget_s(resolved):
                load = round(resolved.weight_bytes / took_s)
                # A start from the page cache says nothing about the next one.
                found = found.slower_of(Rates(load=load if load < resolved.load_bytes_per_s else None))
    return found


def to_store(record: Revision, pods: Sequence[Pod]) -> str | None:
    """Returns what to store with the revision now; None if nothing new is known."""
    before = stored(record)
    after = before.slower_of(measured(record, pods))
    news = [(before.fetch, after.fetch), (before.load, after.load)]
    worth = any(new is not None and (old is None or new < SLOWER * old) for old, new in news)
    return after.to_json() if worth else None


def with_measured(resolved: Resolved, inputs: Mapping[str, Any], records: Sequence[Revision]) -> Resolved:
    """Returns the values of a new revision with the rates that earlier ones on the same storage have shown. ``inputs`` are its own.

    Engines that download by themselves start at another rate than those whose weights are there. A measurement makes a budget longer,
    never shorter: the next line may be slower.
    """
    found, newest = Rates(), sorted(records, key=lambda record: record.number, reverse=True)
    alike = [
        rates
        for record in newest
        if canonical(record.inputs).get("storage") == canonical(inputs).get("storage")
        and record.resolved.gpu_product == resolved.gpu_product
        and bool(record.resolved.fetch_image) == bool(resolved.fetch_image)
        and (rates := stored(record)) != Rates()
    ]
    for rates in alike[:REMEMBERED]:
        found = found.slower_of(rates)
    if resolved.fetch_image and found.fetch is not None and found.fetch < resolved.load_bytes_per_s:
        resolved = replace(resolved, fetch_bytes_per_s=found.fetch)
    if found.load is not None and found.load < resolved.load_bytes_per_s:
        resolved = replace(resolved, load_bytes_per_s=found.load, load_measured=True)
    return resolved


def _slower(one: int | None, other: int | None) -> int | None:
    return min((rate for rate in (one, other) if rate is not None), default=None)


def _rate(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= FASTEST else None

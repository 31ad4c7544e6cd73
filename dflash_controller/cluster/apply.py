"""Decides which applies are worth sending, and detects field-manager conflicts. ``executor`` sends them."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_controller.cluster.field_ownership import Path, drift
from dflash_controller.cluster.store import Identity

CONFLICT_COUNT = 3
CONFLICT_WINDOW_SECONDS = 600.0
FIRST_PAUSE_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ApplyDecision:
    """What to do about one manifest."""

    send: bool
    conflict: tuple[Path, ...] = ()
    """Fields that another manager keeps changing. Set when an event is due."""
    retry_after_s: float | None = None
    """Seconds until the next attempt is allowed; None if it is not delayed."""
    contested: bool = False
    """True as long as another manager has kept changing the object of late."""


@dataclass(slots=True)
class _Reverts:
    """How often one field was put back."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=CONFLICT_COUNT))
    conflicts: int = 0
    not_before: float = 0.0

    def is_recent(self, now: float) -> bool:
        return bool(self.times) and now - self.times[-1] <= CONFLICT_WINDOW_SECONDS + _pause(self.conflicts)

    def is_contested(self, now: float) -> bool:
        return self.conflicts > 0 and self.is_recent(now)

    def next_conflict(self, now: float) -> int:
        """Returns the number of the conflict that one more time is; 0 if it is none."""
        if not self.is_recent(now):
            return 0
        times = [*self.times, now][-CONFLICT_COUNT:]
        repeated = len(times) == CONFLICT_COUNT and now - times[0] <= CONFLICT_WINDOW_SECONDS
        return self.conflicts + 1 if repeated or self.conflicts else 0

    def count(self, now: float) -> None:
        conflict = self.next_conflict(now)
        if not self.is_recent(now):
            self.times.clear()
        self.times.append(now)
        self.conflicts = conflict
        self.not_before = now + _pause(conflict)


@dataclass(slots=True)
class _Record:
    manifest: str = ""
    """Digest of the manifest applied last."""
    futile: str = ""
    """Digest of manifest and live object of an apply that changed nothing."""
    reverts: dict[Path, _Reverts] = field(default_factory=dict)
    """By field: when the same manifest was applied again because the field had changed. Only writes that were carried out count."""


class ApplyMemory:
    """Remembers the results of applies. ``clock`` returns monotonic seconds.

    A restart of the operator loses it, which costs at most one apply without effect per object.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: dict[Identity, _Record] = {}

    def decide(self, identity: Identity, manifest: Mapping[str, Any], live: Mapping[str, Any] | None) -> ApplyDecision:
        """Decides whether to send this apply, given the live object."""
        if live is None:
            return ApplyDecision(send=True)
        paths, record, now = drift(manifest, live), self._records.get(identity), self._clock()
        if not paths:
            contested = record is not None and any(reverts.is_contested(now) for reverts in record.reverts.values())
            return ApplyDecision(send=False, contested=contested)
        if record is None:
            return ApplyDecision(send=True)
        intent = digest(manifest)
        if record.futile == intent + _state(live):
            return ApplyDecision(send=False)
        if record.manifest != intent:
            return ApplyDecision(send=True)
        return _decide_again({path: record.reverts.get(path, _Reverts()) for path in paths}, now)

    def applied(self, identity: Identity, manifest: Mapping[str, Any], before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> None:
        """Records an apply that was sent and answered."""
        record, intent, now = self._records.setdefault(identity, _Record()), digest(manifest), self._clock()
        if record.manifest != intent:
            record.reverts.clear()
        elif before is not None:
            for path in drift(manifest, before):
                record.reverts.setdefault(path, _Reverts()).count(now)
        record.manifest = intent
        unchanged = before is not None and before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
        record.futile = record.manifest + _state(after) if unchanged else ""

    def prune(self, known: Callable[[Identity], bool]) -> None:
        """Forgets objects that are gone."""
        self._records = {identity: record for identity, record in self._records.items() if known(identity)}


def _decide_again(changed: Mapping[Path, _Reverts], now: float) -> ApplyDecision:
    """Decides about an unchanged manifest whose object another manager changed: reverts it, with growing delays if that repeats.

    A field that nobody has fought about is put back at once, and the others with it, because an apply is one for the whole object.
    """
    waits = [reverts.not_before - now for reverts in changed.values()]
    if min(waits) > 0:
        return ApplyDecision(send=False, retry_after_s=min(waits), contested=True)
    numbers = {path: reverts.next_conflict(now) for path, reverts in changed.items()}
    fought = {path: number for path, number in numbers.items() if number}
    if not fought:
        return ApplyDecision(send=True)
    return ApplyDecision(send=True, conflict=tuple(fought), retry_after_s=min(map(_pause, fought.values())), contested=True)


def _pause(conflicts: int) -> float:
    return min(FIRST_PAUSE_SECONDS * 2 ** (conflicts - 1), LONGEST_PAUSE_SECONDS) if conflicts else 0.0


def digest(value: Any) -> str:
    """Returns a short digest of a JSON value, independent of the order of its fields."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), default=list).encode()).hexdigest()[:16]


def _state(live: Mapping[str, Any]) -> str:
    """Returns the digest of an object without the fields that change by themselves: status, version and the times of managedFields."""
    metadata = {name: value for name, value in live["metadata"].items() if name not in ("resourceVersion", "generation", "managedFields")}
    fields = [entry.get("fieldsV1") for entry in live["metadata"].get("managedFields") or ()]
    return digest([{name: value for name, value in live.items() if name not in ("status", "metadata")}, metadata, fields])

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
class _Record:
    manifest: str = ""
    """Digest of the manifest applied last."""
    futile: str = ""
    """Digest of manifest and live object of an apply that changed nothing."""
    reverts: deque[float] = field(default_factory=lambda: deque(maxlen=CONFLICT_COUNT))
    """Times at which the same manifest was applied again because the object had changed."""
    conflicts: int = 0
    not_before: float = 0.0


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
        paths, record = drift(manifest, live), self._records.get(identity)
        if not paths:
            return ApplyDecision(send=False, contested=record is not None and self._is_contested(record))
        if record is None:
            return ApplyDecision(send=True)
        intent = digest(manifest)
        if record.futile == intent + _state(live):
            return ApplyDecision(send=False)
        if record.manifest != intent:
            record.reverts.clear()
            record.conflicts = 0
            record.not_before = 0.0
            return ApplyDecision(send=True)
        return self._conflicting(record, paths)

    def applied(self, identity: Identity, manifest: Mapping[str, Any], before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> None:
        """Records an apply that was sent and answered."""
        record = self._records.setdefault(identity, _Record())
        record.manifest = digest(manifest)
        unchanged = before is not None and before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
        record.futile = record.manifest + _state(after) if unchanged else ""

    def prune(self, known: Callable[[Identity], bool]) -> None:
        """Forgets objects that are gone."""
        self._records = {identity: record for identity, record in self._records.items() if known(identity)}

    def _conflicting(self, record: _Record, paths: list[Path]) -> ApplyDecision:
        """Decides about an unchanged manifest whose object another manager changed: reverts it, with growing delays if that repeats."""
        now = self._clock()
        if now < record.not_before:
            return ApplyDecision(send=False, retry_after_s=record.not_before - now, contested=True)
        if record.reverts and not self._is_recent(record):
            record.reverts.clear()
            record.conflicts = 0
        record.reverts.append(now)
        repeated = len(record.reverts) == CONFLICT_COUNT and now - record.reverts[0] <= CONFLICT_WINDOW_SECONDS
        if not repeated and not record.conflicts:
            return ApplyDecision(send=True)
        record.conflicts += 1
        record.not_before = now + _pause(record.conflicts)
        return ApplyDecision(send=True, conflict=tuple(paths), retry_after_s=_pause(record.conflicts), contested=True)

    def _is_contested(self, record: _Record) -> bool:
        return record.conflicts > 0 and self._is_recent(record)

    def _is_recent(self, record: _Record) -> bool:
        return self._clock() - record.reverts[-1] <= CONFLICT_WINDOW_SECONDS + _pause(record.conflicts)


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

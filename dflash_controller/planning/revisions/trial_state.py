"""The part of a candidate's trial that must survive a restart of the operator. Everything else is derived anew each time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dflash_controller.api.conditions import Reason, shorten, timestamp


@dataclass(frozen=True, slots=True)
class TrialFailure:
    """Why a candidate failed. The message is complete without the metrics, which may be gone by then."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Trial:
    """The state of a trial, stored in an annotation of the candidate's ControllerRevision. Each trial begins with a new one."""

    served_at: datetime | None = None
    """When the first replica became Ready. Deadline and analysis count from this time."""
    restarts: int = 0
    """Container restarts of the first pod in ``seen`` (of its whole group) that do not count against the candidate: those before
    ``served_at``, and those while the rest of its group had no room."""
    seen: tuple[str, ...] = ()
    """UIDs of the pods that answer requests, for pods that got a node. One that ended after a failure and has a successor counts as an
    exit: a LeaderWorkerSet replaces the whole group, and its new pods begin with no restarts."""
    failed: tuple[str, ...] = ()
    """Those of ``seen`` in whose group a container has exited. When they are gone, that counts as an exit, and a deletion does not."""
    last_exit: str = ""
    """What was seen of the exit that came into ``failed`` last. The pod that exited may be gone when the candidate is given up."""
    cannot_start_since: datetime | None = None
    """Since when a container of the candidate cannot be created or started; None if all can."""
    loading_since: datetime | None = None
    """Since when the candidate has had room and loads; None while it has no room, and once it has served."""
    stable_down_since: datetime | None = None
    """Since when no replica of the stable revision has served beside the candidate; None while one serves."""
    interrupted: bool = False
    """True if the deployment was scaled to 0 during the trial."""
    interrupted_at_one: bool = False
    """True if it was scaled to 1 without surge during the trial, so that only stable keeps its replica."""
    without_surge: bool = False
    """True if no accelerators were free for a replica above ``spec.replicas``."""
    asked_block: int | None = None
    """The ``spec.blockSize`` last acted upon; 0 if the spec had none. None if it is not recorded: an older operator made the revision."""
    fetched: tuple[str, ...] = ()
    """Names of the prefetch Jobs that have succeeded. A policy may have them deleted as soon as they end."""
    finding: TrialFailure | None = None
    disregards: tuple[str, ...] = ()
    """Operations (promote, abort) whose annotation was already set when the trial began. They were meant for an earlier trial."""

    @property
    def told(self) -> TrialFailure:
        """Returns the finding, or a generic one if it was lost."""
        return self.finding or TrialFailure(Reason.ROLLED_BACK, "It failed")

    def to_json(self) -> str:
        """Returns the fields that differ from a new trial, as JSON."""
        data: dict[str, Any] = {
            "servedAt": _text(self.served_at),
            "restarts": self.restarts or None,
            "seen": list(self.seen) or None,
            "failed": list(self.failed) or None,
            "lastExit": shorten(self.last_exit) if self.last_exit else None,
            "cannotStartSince": _text(self.cannot_start_since),
            "loadingSince": _text(self.loading_since),
            "stableDownSince": _text(self.stable_down_since),
            "interrupted": self.interrupted or None,
            "interruptedAtOne": self.interrupted_at_one or None,
            "withoutSurge": self.without_surge or None,
            "askedBlock": self.asked_block,
            "fetched": list(self.fetched) or None,
            "finding": {"reason": self.finding.reason.value, "message": shorten(self.finding.message)} if self.finding else None,
            "disregards": list(self.disregards) or None,
        }
        return json.dumps({key: value for key, value in data.items() if value is not None}, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None) -> Trial:
        """Returns the stored trial. Damaged text gives a new trial: it takes longer, but nothing is lost."""
        try:
            data: Mapping[str, Any] = json.loads(text or "{}")
            finding, asked = data.get("finding"), data.get("askedBlock")
            return cls(
                served_at=_time(data.get("servedAt")),
                restarts=int(data.get("restarts", 0)),
                seen=_names(data.get("seen")),
                failed=_names(data.get("failed")),
                last_exit=str(data.get("lastExit") or ""),
                cannot_start_since=_time(data.get("cannotStartSince")),
                loading_since=_time(data.get("loadingSince")),
                stable_down_since=_time(data.get("stableDownSince")),
                interrupted=bool(data.get("interrupted")),
                interrupted_at_one=bool(data.get("interruptedAtOne")),
                without_surge=bool(data.get("withoutSurge")),
                asked_block=int(asked) if asked is not None else None,
                fetched=_names(data.get("fetched")),
                finding=TrialFailure(Reason(finding["reason"]), str(finding["message"])) if finding else None,
                disregards=_names(data.get("disregards")),
            )
        except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
            return cls()


def _text(time: datetime | None) -> str | None:
    return timestamp(time) if time else None


def _time(text: str | None) -> datetime | None:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) if text else None


def _names(found: Iterable[Any] | None) -> tuple[str, ...]:
    return tuple(str(name) for name in found or ())

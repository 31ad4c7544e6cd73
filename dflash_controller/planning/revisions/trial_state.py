"""What must outlive the operator of a candidate's trial; the rest is derived anew each time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dflash_controller.api.conditions import Reason, shorten, timestamp


@dataclass(frozen=True, slots=True)
class TrialFailure:
    """Why a candidate failed, in words that need no metrics any more."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Trial:
    """Kept in an annotation of the candidate's ControllerRevision, and begun anew each time it becomes the candidate."""

    served_at: datetime | None = None
    """When its first replica became Ready: deadline and analysis count from here."""
    restarts: int = 0
    """Container restarts of its pods until then: what it took to start is not held against it."""
    alone: bool = False
    """The active revision served nobody when the trial began, so there is nothing to compare with."""
    interrupted: bool = False
    """All replicas were scaled away in the middle of it."""
    without_surge: bool = False
    """No accelerators were free for a replica above ``spec.replicas``."""
    finding: TrialFailure | None = None
    disregards: tuple[str, ...] = ()
    """Operations (promote, abort) whose annotation stood already when the trial began: they were meant for an earlier one."""

    @property
    def told(self) -> TrialFailure:
        """The finding, also of one that was lost."""
        return self.finding or TrialFailure(Reason.ROLLED_BACK, "It failed")

    def to_json(self) -> str:
        """Only what differs from a trial that has just begun."""
        data: dict[str, Any] = {
            "servedAt": timestamp(self.served_at) if self.served_at else None,
            "restarts": self.restarts,
            "alone": self.alone,
            "interrupted": self.interrupted,
            "withoutSurge": self.without_surge,
            "finding": {"reason": self.finding.reason.value, "message": shorten(self.finding.message)} if self.finding else None,
            "disregards": list(self.disregards),
        }
        return json.dumps({key: value for key, value in data.items() if value}, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None) -> Trial:
        """A damaged one counts as just begun: the trial takes longer then, and nothing is lost."""
        try:
            data: Mapping[str, Any] = json.loads(text or "{}")
            served, finding = data.get("servedAt"), data.get("finding")
            return cls(
                served_at=datetime.strptime(served, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) if served else None,
                restarts=int(data.get("restarts", 0)),
                alone=bool(data.get("alone")),
                interrupted=bool(data.get("interrupted")),
                without_surge=bool(data.get("withoutSurge")),
                finding=TrialFailure(Reason(finding["reason"]), str(finding["message"])) if finding else None,
                disregards=tuple(str(name) for name in data.get("disregards", ())),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return cls()

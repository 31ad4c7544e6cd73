"""The part of a candidate's trial that must survive a restart of the operator. Everything else is derived anew each time."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    """Container restarts of the candidate's pods before ``served_at``. Restarts during start-up do not count against it."""
    alone: bool = False
    """True if the active revision did not serve when the trial began, so there is nothing to compare with."""
    interrupted: bool = False
    """True if the deployment was scaled to 0 during the trial."""
    without_surge: bool = False
    """True if no accelerators were free for a replica above ``spec.replicas``."""
    finding: TrialFailure | None = None
    disregards: tuple[str, ...] = ()
    """Operations (promote, abort) whose annotation was already set when the trial began. They were meant for an earlier trial."""
    asked_block: int | None = None
    """The ``spec.blockSize`` last acted upon; 0 if the spec had none. None if it is not recorded: an older operator made the revision."""

    @property
    def told(self) -> TrialFailure:
        """Returns the finding, or a generic one if it was lost."""
        return self.finding or TrialFailure(Reason.ROLLED_BACK, "It failed")

    def to_json(self) -> str:
        """Returns the fields that differ from a new trial, as JSON."""
        data: dict[str, Any] = {
            "servedAt": timestamp(self.served_at) if self.served_at else None,
            "restarts": self.restarts,
            "alone": self.alone,
            "interrupted": self.interrupted,
            "withoutSurge": self.without_surge,
            "finding": {"reason": self.finding.reason.value, "message": shorten(self.finding.message)} if self.finding else None,
            "disregards": list(self.disregards),
        }
        written = {key: value for key, value in data.items() if value}
        if self.asked_block is not None:
            written["askedBlock"] = self.asked_block
        return json.dumps(written, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None) -> Trial:
        """Returns the stored trial. Damaged text gives a new trial: it takes longer, but nothing is lost."""
        try:
            data: Mapping[str, Any] = json.loads(text or "{}")
            served, finding, block = data.get("servedAt"), data.get("finding"), data.get("askedBlock")
            return cls(
                served_at=datetime.strptime(served, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) if served else None,
                restarts=int(data.get("restarts", 0)),
                alone=bool(data.get("alone")),
                interrupted=bool(data.get("interrupted")),
                without_surge=bool(data.get("withoutSurge")),
                finding=TrialFailure(Reason(finding["reason"]), str(finding["message"])) if finding else None,
                disregards=tuple(str(name) for name in data.get("disregards", ())),
                asked_block=None if block is None else int(block),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return cls()

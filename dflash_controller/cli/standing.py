"""Whether the operator has seen a spec, and whether it goes on with it: pure, from the object as the API server returns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_controller.api.conditions import Reason

ENDS = frozenset({"Completed", "RolledBack", "Superseded", "Held"})
"""Phases in which a rollout has ended, or waits for a decision."""
_HELD, _ROLLING_BACK, _ROLLED_BACK = "Held", "RollingBack", "RolledBack"
_FAILED = frozenset({Reason.ROLLED_BACK, Reason.ABORTED})
"""Reasons of Stalled that the phase of the rollout tells, too."""
_PASSES = frozenset(
    {
        Reason.REVISION_NOT_RESOLVED,
        Reason.HUB_UNREACHABLE,
        Reason.PREFETCH_FAILED,
        Reason.LEADER_WORKER_SET_MISSING,
        Reason.LEADER_WORKER_SET_UNLISTED,
        Reason.WRITES_FAIL,
        Reason.QUOTA_EXCEEDED,
        Reason.PODS_REFUSED,
        Reason.INSUFFICIENT_ACCELERATORS,
        Reason.UNSCHEDULABLE,
        Reason.SCHEDULING_GATED,
    }
)
"""Reasons of Stalled that the operator or Kubernetes tries again, and that can end without a change of this object."""
_BEGINS = frozenset({Reason.RESOLVING_REVISIONS, Reason.NEW_GENERATION})
"""Reasons of Reconciling while there is no revision of the spec yet, so that the rollout shown is the one before."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a spec stands. ``text`` counts in place of the rollout shown, which is that of an earlier spec; empty if the rollout counts."""

    ended: bool
    """Whether there is nothing to wait for."""
    good: bool
    text: str = ""


def condition(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Returns a condition; empty if there is none of that type."""
    found = (obj.get("status") or {}).get("conditions") or ()
    return next((item for item in found if item.get("type") == kind), {})


def unseen(obj: Mapping[str, Any]) -> str:
    """Returns which generation the operator has not seen and which it has, as ``generation 7, seen 6``; empty if it has seen the last."""
    wanted, seen = obj["metadata"].get("generation"), (obj.get("status") or {}).get("observedGeneration")
    # A deletion raises the generation, and the operator only looks after what it created then.
    if wanted is None or deleted(obj) or (seen is not None and seen >= wanted):
        return ""
    return f"generation {wanted}, seen {'none' if seen is None else seen}"


def deleted(obj: Mapping[str, Any]) -> str:
    """Returns since when the object is being deleted; empty if it is not."""
    return str(obj["metadata"].get("deletionTimestamp") or "")


def went_wrong(obj: Mapping[str, Any]) -> bool:
    """Returns whether the last rollout did not end as asked. A superseded one did where what the spec asks for instead is Ready."""
    phase = _phase(obj)
    return phase in (_HELD, _ROLLED_BACK) or (phase == "Superseded" and condition(obj, "Ready").get("status") != "True")


def of(obj: Mapping[str, Any]) -> Standing:
    """Returns how the present spec stands."""
    if since := deleted(obj):
        return Standing(True, False, f"it is being deleted since {since}")
    if said := unseen(obj):
        return Standing(False, False, f"the operator has not seen this change yet ({said})")
    phase, stalled, reconciling = _phase(obj), condition(obj, "Stalled"), condition(obj, "Reconciling")
    if stalled.get("status") == "True":
        reason = stalled.get("reason")
        # Its replicas are on their way back, and then the rollout has ended.
        passes = reason in _PASSES or phase == _ROLLING_BACK
        told = (phase == _HELD and not passes) or (reason in _FAILED and phase in (_ROLLING_BACK, _ROLLED_BACK))
        return Standing(not passes, False, "" if told else f"Stalled, {reason}: {stalled.get('message', '')}")
    if phase in ENDS and reconciling.get("status") == "True" and reconciling.get("reason") in _BEGINS:
        return Standing(False, True, f"{reconciling['reason']}: {reconciling.get('message', '')}")
    return Standing(phase in ENDS, not went_wrong(obj))


def _phase(obj: Mapping[str, Any]) -> str:
    return str(((obj.get("status") or {}).get("rollout") or {}).get("phase") or "")

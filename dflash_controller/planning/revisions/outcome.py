"""What has been ruled about a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dflash_controller.analysis.verdict import MetricVerdict
from dflash_controller.api.conditions import Reason
from dflash_controller.model.probe import ProbeRequest
from dflash_controller.planning.revisions.revision import RevisionState
from dflash_controller.planning.revisions.trial_state import Trial


class Phase(StrEnum):
    """Where a rollout stands, as ``status.rollout.phase`` shows it."""

    PREPARING = "Preparing"
    CANARY = "Canary"
    ANALYZING = "Analyzing"
    PAUSED = "Paused"
    HELD = "Held"
    PROGRESSING = "Progressing"
    COMPLETED = "Completed"
    ROLLING_BACK = "RollingBack"
    ROLLED_BACK = "RolledBack"
    SUPERSEDED = "Superseded"
    SUSPENDED = "Suspended"


@dataclass(frozen=True, slots=True)
class CandidateOutcome:
    """``message`` is for people. ``trial`` is what to remember from now on."""

    phase: Phase
    reason: Reason
    message: str
    trial: Trial
    tried: bool = True
    """The candidate gets its one replica."""
    end: RevisionState | None = None
    """STABLE: it is promoted. FAILED: it failed. None: the trial goes on."""
    stalls: bool = False
    """Only a human can decide."""
    verdicts: tuple[MetricVerdict, ...] = ()
    probe: ProbeRequest | None = None
    jobs: tuple[Mapping[str, Any], ...] = ()
    """Jobs that must exist: they fetch the candidate's weights."""
    requeue_after_s: float | None = None

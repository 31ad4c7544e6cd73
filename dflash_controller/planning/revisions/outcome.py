"""The decision on a candidate."""

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
    """The phase of a rollout, as ``status.rollout.phase`` shows it."""

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
    """The decision on a candidate. ``message`` is for people. ``trial`` is what to store with the candidate from now on."""

    phase: Phase
    reason: Reason
    message: str
    trial: Trial
    tried: bool = True
    """True if the candidate gets its one replica."""
    end: RevisionState | None = None
    """STABLE if the candidate is promoted, FAILED if it failed, None while the trial continues."""
    stalls: bool = False
    """True if only a human can decide."""
    verdicts: tuple[MetricVerdict, ...] = ()
    probe: ProbeRequest | None = None
    jobs: tuple[Mapping[str, Any], ...] = ()
    """The Jobs to create, which fetch the candidate's weights. Those that exist are not among them."""
    requeue_after_s: float | None = None

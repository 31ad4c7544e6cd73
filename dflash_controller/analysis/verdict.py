"""What a candidate is asked, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dflash_controller.api.conditions import Reason
from dflash_controller.api.gates import Gate
from dflash_controller.model.prediction import Prediction


class Outcome(StrEnum):
    """Of one metric. Absent is never zero: what cannot be measured is Inconclusive, a source that fails is Error."""

    SUCCESSFUL = "Successful"
    FAILED = "Failed"
    INCONCLUSIVE = "Inconclusive"
    ERROR = "Error"


class AnalysisDecision(StrEnum):
    """What to do with the candidate."""

    PROMOTE = "Promote"
    FAIL = "Fail"
    CONTINUE = "Continue"
    HOLD = "Hold"
    """More of the same traffic will not decide it."""


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """One metric, as ``status.rollout.analysis`` shows it. ``candidate``, ``stable`` and ``limit`` are in the metric's own unit."""

    metric: str
    outcome: Outcome
    message: str
    candidate: float | None = None
    stable: float | None = None
    limit: float | None = None
    samples: float | None = None
    stable_samples: float | None = None
    age_s: float | None = None
    """Age of the newest input."""
    gates: bool = True
    """False: shown, but decides nothing for this change."""


@dataclass(frozen=True, slots=True)
class AnalysisRequest:
    """What changed from stable to candidate, and the rules in force. Speculation is told by the largest block size: 1 drafts nothing."""

    gates: Mapping[str, Gate]
    """Gates that decide, by metric: those that mean something for this change and are enabled."""
    text_gates: bool
    """A different text fails the candidate (the probe is enabled and nothing but the drafter or its block size changed)."""
    max_mismatch_percent: float
    candidate_block: int
    stable_block: int
    concurrent: bool
    """The two serve at the same time. False: with one replica and no surge, only before and after can be compared."""
    warm_up_s: float
    """The candidate's first seconds are left out: graphs and kernels are still being compiled."""
    promise: Prediction | None = None
    """Given where the tuner chose the candidate for the load that is there. Users' traffic alone then tells its speed: the probe sends one
    prompt at a time, and what is faster so may be slower under load."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """``message`` says in a sentence why."""

    decision: AnalysisDecision
    reason: Reason
    message: str
    verdicts: tuple[MetricVerdict, ...] = ()

"""The question that the analysis gets about a candidate, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dflash_controller.api.conditions import Reason
from dflash_controller.api.gates import Gate
from dflash_controller.model.prediction import Prediction


class Outcome(StrEnum):
    """Outcome of one metric. A missing value is never zero: a metric that cannot be measured is Inconclusive, a source that fails is
    Error."""

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
    """The verdict on one metric, as ``status.rollout.analysis`` shows it. ``candidate``, ``stable`` and ``limit`` have the metric's own
    unit."""

    metric: str
    outcome: Outcome
    message: str
    candidate: float | None = None
    stable: float | None = None
    limit: float | None = None
    samples: float | None = None
    stable_samples: float | None = None
    age_s: float | None = None
    """Age of the newest input in seconds."""
    gates: bool = True
    """False: the metric is shown but decides nothing for this change."""


@dataclass(frozen=True, slots=True)
class AnalysisRequest:
    """The change from stable to candidate, and the active rules. The largest block size says whether a side drafts: 1 drafts nothing."""

    gates: Mapping[str, Gate]
    """Gates that decide, by metric: those that are meaningful for this change and enabled."""
    text_gates: bool
    """A different text fails the candidate: the probe is enabled, and only the drafter or its block size changed."""
    max_mismatch_percent: float
    candidate_block: int
    stable_block: int
    concurrent: bool
    """Both serve at the same time. False: with one replica and no surge, only before and after can be compared."""
    warm_up_s: float
    """Seconds at the candidate's start that are left out, because graphs and kernels are still being compiled."""
    deadline_s: float | None = None
    """Seconds of the candidate's traffic until the rollout's deadline; None: no bound of the analysis may rely on one."""
    promise: Prediction | None = None
    """Set if the tuner chose the candidate for the current load. Then only users' traffic decides its speed: the probe sends one prompt at
    a time, and a candidate that is faster there may be slower under load."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The decision on a candidate. ``message`` says why in one sentence."""

    decision: AnalysisDecision
    reason: Reason
    message: str
    verdicts: tuple[MetricVerdict, ...] = ()

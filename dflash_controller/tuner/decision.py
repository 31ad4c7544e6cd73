"""Inputs and output of the tuner. Both can be written to a log line and read back, so that a decision can be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import TuningPolicy
from dflash_controller.api.speculation import Speculation
from dflash_controller.tuner.schedule_price import MEASURED_PRICE, SchedulePrice

PREDICTED = "tokensPerSecond"
"""Prefix in ``TunerDecision.numbers``: followed by a block size, its predicted speed."""
MEASURED = "measuredTokensPerSecond"
"""Likewise the measured speed of a block size that served in the window."""
GAIN_ERROR = "gainErrorPercent"
"""Likewise one standard deviation of the gain (``gainPercentN``), in percent."""
GAIN_MEASURED = "gainMeasured"
"""Likewise 1 if the block size ran at this kind of load, 0 if its gain is inferred from other loads or block sizes."""
TRIAL_BLOCK = "trialBlock"
"""The block size whose trial is worth most; absent if every block size was measured at this kind of load."""
CROSSOVER = "crossoverConcurrency"
"""Key in ``TunerDecision.numbers``: requests per replica at which the two fastest block sizes are equally fast; absent if none."""


@dataclass(frozen=True, slots=True)
class Change:
    """An earlier change of speculation by the tuner, from the revisions' histories."""

    at_s: float
    """When it was promoted or rolled back; seconds since the epoch."""
    block: int
    """Largest block size of the new speculation; 1: off."""
    kept: bool
    """False if it was tried on one replica and rolled back."""
    load: float = 0.0
    """Requests per replica when it was decided; 0: not known."""
    refused: bool = False
    """Whether it was measured and found not fast enough, rather than failed. What was measured is in the curves."""
    exploratory: bool = False
    """Whether it was tried because its gain was not known."""


@dataclass(frozen=True, slots=True)
class TunerInputs:
    """The state of the deployment at an evaluation, as far as the tuner needs it."""

    now_s: float
    policy: TuningPolicy
    speculation: Speculation
    """The active one."""
    trained_block: int
    mixture: bool
    """Whether the target is a mixture of experts, whose step time is no straight line in T: more tokens activate more experts."""
    replicas: int
    serving: int
    measured: int
    """Ready pods measured in the last round; the operator reads at most four of a revision."""
    surge: bool
    """Whether a change may start an extra replica, so that none has to go down first."""
    restart_s: float
    """Time from the start of a pod to Ready, as last measured on this deployment, else assumed."""
    frozen: str = ""
    """Why no change is possible now (a rollout, a pin, a suspension); empty if one is."""
    degraded: str = ""
    """Which replica is not ready and why; empty if all are ready."""
    leaving: str = ""
    """Which replica is terminating and why, for instance a drained node; empty if none is."""
    metrics: str = ""
    """Why there are no recent metrics; empty if there are."""
    changes: tuple[Change, ...] = ()
    """Oldest first."""
    schedule: bool = False
    """Whether the engine can follow a schedule by itself (vLLM 0.26 and later, one data-parallel rank), the actuator allows it, and its
    price is known or the actuator is Schedule."""
    no_schedule: str = ""
    """Why none is chosen; empty if one may be."""
    schedule_below_percent: float = MEASURED_PRICE.below_percent
    schedule_largest_percent: float = MEASURED_PRICE.largest_percent
    max_concurrency: int = 64
    """Requests the engine serves concurrently: as it says itself, otherwise as asked."""
    capacity: tuple[tuple[int, float], ...] = ()
    """(block size, requests that the memory of a replica holds at it), where known by measurement at the active one."""

    @property
    def schedule_price(self) -> SchedulePrice:
        return SchedulePrice(self.schedule_below_percent, self.schedule_largest_percent)


@dataclass(frozen=True, slots=True)
class TunerDecision:
    """``state`` is a value of status.tuning.state. ``change_to`` is the speculation to change to now; None: no change."""

    state: str
    reason: Reason
    message: str
    recommendation: Speculation | None = None
    change_to: Speculation | None = None
    numbers: Mapping[str, float | str] = field(default_factory=dict)
    """The main numbers behind it, for the status: concurrency, acceptance, predicted gain and confidence, regret and cost in seconds."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """All inputs as JSON: ``policy.replay`` returns the same decision from them."""
    next_change_allowed_at_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the decision without its inputs."""
        return {
            "state": self.state,
            "reason": self.reason.value,
            "recommendation": self.recommendation.label() if self.recommendation else None,
            "change": self.change_to.label() if self.change_to else None,
        }

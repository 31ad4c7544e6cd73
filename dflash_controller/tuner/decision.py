"""What the tuner is asked, and what it answers. Both can be written to a log line and read back, so that a decision can be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import TuningPolicy
from dflash_controller.api.speculation import Speculation

PREDICTED = "tokensPerSecond"
"""Of ``TunerDecision.numbers``: followed by a block size, its predicted speed."""
MEASURED = "measuredTokensPerSecond"
"""Likewise: the speed that was measured, of block sizes that served in the window."""
CROSSOVER = "crossoverConcurrency"
"""Of ``TunerDecision.numbers``: requests per replica at which the two fastest block sizes change places; missing where they do not."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of speculation the tuner made earlier, as the revisions' histories tell it."""

    at_s: float
    """When it was promoted, or given up; seconds since the epoch."""
    block: int
    """Largest block of what was changed to; 1: off."""
    kept: bool
    """False: it was tried on one replica and given up."""


@dataclass(frozen=True, slots=True)
class TunerInputs:
    """What holds outside the tuner's own knowledge."""

    now_s: float
    policy: TuningPolicy
    speculation: Speculation
    """In force."""
    trained_block: int
    mixture: bool
    """The target is a mixture of experts or a hybrid, whose step time follows the law less well."""
    replicas: int
    serving: int
    measured: int
    """Serving pods that were measured in the last round; at most four of a revision are asked for."""
    surge: bool
    """A replica more than asked for may be made for a change, so none has to go down first."""
    restart_s: float
    """From the start of a pod to Ready, as last measured on this deployment, or the assumed one."""
    frozen: str = ""
    """Why nothing may be changed now: a rollout, a pin, a suspension; empty where nothing stands against it."""
    degraded: str = ""
    """A replica that does not serve; empty where all is well."""
    leaving: str = ""
    """A replica that is on its way out, as those of a node that is drained are; empty where none is."""
    metrics: str = ""
    """Why there are no fresh metrics; empty where there are."""
    changes: tuple[Change, ...] = ()
    """Oldest first."""
    schedule: bool = False
    """The engine can follow a schedule by itself (vLLM 0.26 and later, one data-parallel rank), and the actuator allows it."""
    max_concurrency: int = 64
    """Requests the engine serves at once."""


@dataclass(frozen=True, slots=True)
class TunerDecision:
    """``state`` is one of status.tuning.state. ``change_to`` is what is to be done now; None: nothing."""

    state: str
    reason: Reason
    message: str
    recommendation: Speculation | None = None
    change_to: Speculation | None = None
    numbers: Mapping[str, float | str] = field(default_factory=dict)
    """A few numbers it rests on, for status: concurrency, acceptance, predicted gain and confidence, debt and cost in seconds."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Everything it was made from, JSON: ``policy.replay`` gives the same answer from it."""
    next_change_allowed_at_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """What was decided, without what it was made from."""
        return {
            "state": self.state,
            "reason": self.reason.value,
            "recommendation": self.recommendation.label() if self.recommendation else None,
            "change": self.change_to.label() if self.change_to else None,
        }

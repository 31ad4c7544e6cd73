"""Whether a change pays for itself. Costs and debts are in seconds of the whole fleet at full speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_controller.tuner.acceptance import Acceptance
from dflash_controller.tuner.learned import Past
from dflash_controller.tuner.recommend import ObservedLoad
from dflash_controller.tuner.regret import DAY_S, won
from dflash_controller.tuner.steps import StepTimes

LEAST_COST = 0.1
"""Of one restart, whatever the model says: requests in flight are cut or drained, caches start cold."""
MARGIN = 1.5
"""Times the cost that the rest of a stay must be expected to bring: stays scatter."""
RESTLESS = 2.0
"""Where loads came and went before: so many times the cost and what one more such stay brings must be lost, if the stay does not decide;
and a stay more than so many times as long as any before is a new pattern, of which the past says nothing."""
SUITS = 0.005
"""Share of speed by which a block size must be better over usual loads to be called so."""
LEAST_SWING_S = 200.0
"""What one more stay brings is not counted beyond this, or beyond twice the cost."""


@dataclass(frozen=True, slots=True)
class SwitchingCost:
    """Of replacing every replica, one at a time."""

    cost_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class CostBenefit:
    """Whether it pays, and the numbers that say so."""

    pays: bool
    regret_s: float
    needed_s: float
    """Debt from which on it pays; 0 where the expected stay alone decides."""
    stay_s: float | None
    """For how long the load is expected to go on as it is; None: no past tells."""


NOTHING = CostBenefit(False, 0.0, 0.0, None)
"""Of no change."""


def switching_cost(
    block: int,
    loads: Sequence[ObservedLoad],
    steps: StepTimes,
    *,
    replicas: int,
    surge: bool,
    restart_s: float,
    max_concurrency: int,
) -> SwitchingCost:
    """What a change costs. With one replica, or without others that could take over: its restart. Else what the others cannot make up for
    while its requests are theirs, up to ``max_concurrency`` each: more requests in a step are more tokens per second, so it is little where
    load is low and up to 1 ÷ replicas where the others are full. With surge there is always one more, so nothing is lost but the least."""
    least = LEAST_COST * restart_s
    if replicas < 1:
        return SwitchingCost(least, restart_s)
    duration = restart_s * replicas
    if surge:
        return SwitchingCost(least, duration)
    if replicas == 1:
        return SwitchingCost(restart_s, duration)
    before = after = 0.0
    for load in loads:
        crowded = max(load.concurrency, min(float(max_concurrency), load.concurrency * replicas / (replicas - 1)))
        before += load.share * replicas * load.concurrency / steps.seconds(block, load.concurrency)
        after += load.share * (replicas - 1) * crowded / steps.seconds(block, crowded)
    lost = min(1.0, max(0.0, 1 - after / before)) if before > 0 else 1 / replicas
    return SwitchingCost(max(least, lost * duration), duration)


@dataclass(frozen=True, slots=True)
class Horizon:
    """What comes after a change."""

    bound_s: float
    """Until the next change is allowed: at least the dwell time, or longer where this one is the last of the day."""
    per_day: int
    """Changes that are allowed."""
    last: bool
    """No other change is allowed today."""
    later: float
    """Share of full speed that the new block size gains over the loads that usually come, the mean over time; negative where it loses."""
    later_tokens: float
    """The same as the mean over tokens, which busy hours dominate."""
    weight: float
    """Tokens per second now ÷ their mean over usual loads."""

    @property
    def suits(self) -> bool:
        """Usual loads are better served by the new block size."""
        return self.later >= SUITS


def cost_benefit(candidate_block: int, log_gain: float, current: int, past: Past, cost: SwitchingCost, horizon: Horizon) -> CostBenefit:
    """Whether changing to ``candidate_block`` pays now. Costs are taken times the factor that wasted changes have raised.

    Without a past, once the debt equals the cost. Where the load favoured this block size before, and the changes that allows a day are
    enough to follow it each time, by what the rest of such a stay would bring: the gain from the middle of the change until the load goes,
    and what usual loads bring from then until the next change is allowed, must exceed the cost, in time and in tokens. Where that does not
    decide, at twice the debt that one more such stay would bring, if usual loads suit the block size.
    """
    gain = won(log_gain)
    regret, stays = past.regret(candidate_block), past.stays_of(candidate_block)
    switching_cost_s = past.factor * cost.cost_s
    others = past.stays_of(current)
    if not stays or (past.favoured == candidate_block and past.favoured_s > _unheard_of(stays)):
        # Where the load before it was gone sooner than a change pays, this one may be too.
        brief = not stays and others and _mean(others) * gain < RESTLESS * switching_cost_s
        needed = RESTLESS * (switching_cost_s + gain * _mean(others)) if brief else switching_cost_s
        return CostBenefit(regret >= needed and (horizon.suits or not horizon.last), regret, needed, None)
    stay = expected_stay(stays, past.favoured_s) if past.favoured == candidate_block else None
    if stay is not None and _per_day(stays, others) <= horizon.per_day:
        now, then = gain * (stay - cost.duration_s / 2), max(0.0, horizon.bound_s - stay)
        tokens = (now - cost.cost_s) * horizon.weight + then * horizon.later_tokens
        if now + then * horizon.later > MARGIN * switching_cost_s and tokens > 0:
            return CostBenefit(True, regret, 0.0, stay)
    swing = min(gain * _mean(stays), max(LEAST_SWING_S, RESTLESS * switching_cost_s))
    needed = RESTLESS * (switching_cost_s + swing)
    return CostBenefit(regret >= needed and horizon.suits, regret, needed, stay)


def _unheard_of(stays: Sequence[float]) -> float:
    """Length of a stay that is a new pattern: the fewer were seen, the less the longest of them says."""
    return RESTLESS * max(stays) * (1 + 2 / len(stays))


def _per_day(stays: Sequence[float], others: Sequence[float]) -> float:
    """Changes a day that it takes to follow loads which come and go like this: one to and one fro each time."""
    return 2 * DAY_S / (_mean(stays) + (_mean(others) if others else 0.0))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def table_cost_benefit(log_gain: float, past: Past, cost: SwitchingCost) -> CostBenefit:
    """Whether changing to or from an engine's own table pays: judged over all usual loads, it need not be changed back when load moves, so
    a day of its gain must exceed the cost."""
    switching_cost_s = past.factor * cost.cost_s
    return CostBenefit(won(log_gain) * DAY_S > MARGIN * switching_cost_s, 0.0, 0.0, DAY_S)


def horizon_of(
    candidate_block: int,
    current: int,
    loads: Sequence[ObservedLoad],
    usual: Sequence[ObservedLoad],
    acceptance: Acceptance,
    steps: StepTimes,
    *,
    bound_s: float,
    per_day: int,
    last: bool,
) -> Horizon:
    """``loads``: now. Raises ZeroDivisionError where no load has a share."""

    def means(over: Sequence[ObservedLoad]) -> tuple[float, float, float]:
        shares = gains = before = after = 0.0
        for load in over:
            old, new = (
                load.concurrency * acceptance.length(block).value / steps.seconds(block, load.concurrency)
                for block in (current, candidate_block)
            )
            shares, gains = shares + load.share, gains + load.share * won(math.log(new / old))
            before, after = before + load.share * old, after + load.share * new
        return gains / shares, 1 - before / after, before / shares

    later, tokens, speed = means(usual)
    return Horizon(bound_s, per_day, last, later, tokens, means(loads)[2] / speed)


def expected_stay(stays: Sequence[float], elapsed_s: float) -> float | None:
    """Mean rest of those past stays that were longer than this one is already; None where there was none."""
    rest = [stay - elapsed_s for stay in stays if stay > elapsed_s]
    return sum(rest) / len(rest) if rest else None

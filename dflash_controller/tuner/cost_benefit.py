"""Whether a change gains more than it costs. Costs and regret are in seconds of the whole fleet at full speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_controller.tuner.acceptance import Acceptance
from dflash_controller.tuner.learned import Past
from dflash_controller.tuner.recommend import ObservedLoad
from dflash_controller.tuner.regret import DAY_S, relative_gain
from dflash_controller.tuner.step_times import StepTimes

LEAST_COST = 0.1
"""Minimum cost of a change as a share of one restart: requests in flight are cut or drained, and caches start cold."""
MARGIN = 1.5
"""The expected gain over the rest of a stay must exceed the cost by this factor, because the length of stays varies."""
RESTLESS = 2.0
"""Two uses where loads came and went before. If the expected stay does not decide, the regret must exceed this many times the cost plus
the gain of one more such stay. A stay longer than this many times any before is a new pattern, about which the past says nothing."""
BETTER_LATER = 0.005
"""Minimum gain over the usual loads, as a share of full speed, for a block size to count as better later."""
LEAST_SWING_S = 200.0
"""The gain of one more stay counts up to this or twice the cost, whichever is larger."""


@dataclass(frozen=True, slots=True)
class SwitchingCost:
    """Cost and duration of replacing every replica, one at a time."""

    cost_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class CostBenefit:
    """Whether a change is worth its cost, and the numbers behind the answer."""

    worthwhile: bool
    regret_s: float
    needed_s: float
    """Regret from which on the change is worthwhile; 0 if the expected stay alone decides."""
    stay_s: float | None
    """Expected time until the load changes; None if the past does not say."""


NO_CHANGE = CostBenefit(False, 0.0, 0.0, None)
"""The result for staying at the active block size."""


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
    """Returns the cost of a change.

    With one replica, or none that could take over, it is the restart. Otherwise it is the speed that the other replicas cannot make up
    while they serve the restarting one's requests, up to ``max_concurrency`` each. More requests per step mean more tokens per second, so
    this is little at low load and up to 1 ÷ replicas where the others are full. With surge only the minimum is lost.
    """
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
    """What follows a change."""

    bound_s: float
    """Time until the next change is allowed: the dwell time, or longer if this one is the last of the day."""
    per_day: int
    """Changes allowed per day."""
    last: bool
    """Whether no other change is allowed today."""
    later: float
    """Gain of the new block size over the usual loads as a share of full speed, mean over time; negative if it is slower."""
    later_tokens: float
    """The same gain as a mean over tokens, which busy hours dominate."""
    weight: float
    """Tokens per second now ÷ their mean over usual loads."""

    @property
    def better_later(self) -> bool:
        """Whether the new block size is faster over the usual loads."""
        return self.later >= BETTER_LATER


def cost_benefit(candidate_block: int, log_gain: float, current: int, past: Past, cost: SwitchingCost, horizon: Horizon) -> CostBenefit:
    """Returns whether changing to ``candidate_block`` is worthwhile now. Wasted changes raise the factor on the cost.

    Without a past, it is once the regret equals the cost. Where the load favoured this block size before, and the daily allowance is enough
    to follow it each time, the rest of such a stay decides: the gain from the middle of the change until the load moves, plus the gain over
    usual loads until the next change is allowed, must exceed the cost, both in time and in tokens. Where that does not decide, the regret
    must reach ``RESTLESS`` times the cost plus the gain of one more such stay, and the block size must be faster over the usual loads.
    """
    gain = relative_gain(log_gain)
    regret, stays = past.regret(candidate_block), past.stays_of(candidate_block)
    switching_cost_s = past.factor * cost.cost_s
    others = past.stays_of(current)
    if not stays or (past.favoured == candidate_block and past.favoured_s > _new_pattern_s(stays)):
        # If the load before it did not last long enough to repay a change, this one may not either.
        brief = not stays and others and _mean(others) * gain < RESTLESS * switching_cost_s
        needed = RESTLESS * (switching_cost_s + gain * _mean(others)) if brief else switching_cost_s
        return CostBenefit(regret >= needed and (horizon.better_later or not horizon.last), regret, needed, None)
    stay = expected_stay(stays, past.favoured_s) if past.favoured == candidate_block else None
    if stay is not None and _per_day(stays, others) <= horizon.per_day:
        now, then = gain * (stay - cost.duration_s / 2), max(0.0, horizon.bound_s - stay)
        tokens = (now - cost.cost_s) * horizon.weight + then * horizon.later_tokens
        if now + then * horizon.later > MARGIN * switching_cost_s and tokens > 0:
            return CostBenefit(True, regret, 0.0, stay)
    swing = min(gain * _mean(stays), max(LEAST_SWING_S, RESTLESS * switching_cost_s))
    needed = RESTLESS * (switching_cost_s + swing)
    return CostBenefit(regret >= needed and horizon.better_later, regret, needed, stay)


def _new_pattern_s(stays: Sequence[float]) -> float:
    """Returns the seconds from which a stay is a new pattern. With few stays observed, the longest of them says less."""
    return RESTLESS * max(stays) * (1 + 2 / len(stays))


def _per_day(stays: Sequence[float], others: Sequence[float]) -> float:
    """Returns the changes per day needed to follow loads that come and go like this: one there and one back each time."""
    return 2 * DAY_S / (_mean(stays) + (_mean(others) if others else 0.0))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def table_cost_benefit(log_gain: float, past: Past, cost: SwitchingCost) -> CostBenefit:
    """Returns whether changing to or from an engine's own table is worthwhile: a day of its gain must exceed the cost.

    The gain is taken over all usual loads, so a table need not be changed back when the load moves.
    """
    switching_cost_s = past.factor * cost.cost_s
    return CostBenefit(relative_gain(log_gain) * DAY_S > MARGIN * switching_cost_s, 0.0, 0.0, DAY_S)


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
    """Returns the horizon; ``loads`` are the current ones. Raises ZeroDivisionError if no load has a share."""

    def means(over: Sequence[ObservedLoad]) -> tuple[float, float, float]:
        shares = gains = before = after = 0.0
        for load in over:
            old, new = (
                load.concurrency * acceptance.length(block).value / steps.seconds(block, load.concurrency)
                for block in (current, candidate_block)
            )
            shares, gains = shares + load.share, gains + load.share * relative_gain(math.log(new / old))
            before, after = before + load.share * old, after + load.share * new
        return gains / shares, 1 - before / after, before / shares

    later, tokens, speed = means(usual)
    return Horizon(bound_s, per_day, last, later, tokens, means(loads)[2] / speed)


def expected_stay(stays: Sequence[float], elapsed_s: float) -> float | None:
    """Returns the mean remaining seconds over the past stays that lasted longer than ``elapsed_s``; None if none did."""
    rest = [stay - elapsed_s for stay in stays if stay > elapsed_s]
    return sum(rest) / len(rest) if rest else None

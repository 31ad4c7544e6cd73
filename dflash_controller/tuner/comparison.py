"""The block sizes weighed against what is in force, over the loads that were seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_controller.api.defaults import speculation_of
from dflash_controller.api.speculation import Schedule, Speculation
from dflash_controller.tuner.acceptance import Acceptance
from dflash_controller.tuner.cost_benefit import (
    NOTHING,
    CostBenefit,
    Horizon,
    SwitchingCost,
    cost_benefit,
    horizon_of,
    switching_cost,
    table_cost_benefit,
)
from dflash_controller.tuner.crossover import crossover
from dflash_controller.tuner.fitted import fitted_acceptance, fitted_steps
from dflash_controller.tuner.inputs import DecisionInputs
from dflash_controller.tuner.recommend import Forecast, ObservedLoad, Recommendation, recommend
from dflash_controller.tuner.regret import DAY_S
from dflash_controller.tuner.schedule import best_schedule, block_at, mean_log_speed, speed
from dflash_controller.tuner.steps import OFF, StepTimes

MIXTURE_SPREAD = 1.5
"""Step times of mixtures of experts and hybrids follow the law less well."""
LEAST_LOAD_SAMPLES = 4
VARIED = 2.0
"""Largest ÷ smallest load seen, from which on the curve is more than one point and the usual shape."""
OFF_CONFIDENCE = 0.95
"""Speculation is worth it nearly everywhere, and what runs without it tells nothing of it: off is a block size only where that is nearly
certain, or where the policy lists it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The best block size and what speaks for it."""

    best: Speculation
    forecast: Forecast
    """Of ``best`` against what is in force; its block is the largest that is drafted."""
    gains: Mapping[int, float]
    """Log gain of every other block size."""
    speeds: Mapping[int, float]
    """Predicted tokens per second of a replica, by block size, the one in force included."""
    concurrency: float
    """Mean over the window."""
    acceptance: float
    """Tokens per verify step at the block in force."""
    crossover: float | None
    """Requests per replica at which the two fastest block sizes change places."""
    varied: bool
    """Loads far apart, or several blocks, were seen."""
    switching_cost: SwitchingCost
    cost_benefit: CostBenefit

    def numbers(self, block: int) -> dict[str, float | str]:
        """For status and for ``Learner.note``. ``block``: in force."""
        told: dict[str, float | str] = {
            "block": block,
            "concurrency": round(self.concurrency, 2),
            "acceptance": round(self.acceptance, 3),
            "gainPercent": round(self.forecast.gain_percent, 2),
            "confidence": round(self.forecast.confidence, 3),
            "costSeconds": round(self.switching_cost.cost_s, 1),
            "regretSeconds": round(self.cost_benefit.regret_s, 1),
            "neededSeconds": round(self.cost_benefit.needed_s, 1),
        }
        if self.cost_benefit.stay_s is not None:
            told["staySeconds"] = round(self.cost_benefit.stay_s, 1)
        told.update({f"gainPercent{candidate_block}": round(100 * math.expm1(gain), 2) for candidate_block, gain in self.gains.items()})
        told.update({f"tokensPerSecond{candidate_block}": round(found, 1) for candidate_block, found in self.speeds.items()})
        return told


def compare(question: DecisionInputs) -> Comparison | None:
    """None where too little traffic was seen."""
    asked, learned = question.tuner_inputs, question.learned
    current = asked.speculation.max_block_size
    if not learned.points or not learned.loads or learned.load_samples < LEAST_LOAD_SAMPLES:
        return None
    acceptance = fitted_acceptance(learned, current, question.prior.decay)
    if acceptance is None:
        return None
    steps = fitted_steps(learned.points, question.prior.steps, question.limits, asked.mixture)
    spread = MIXTURE_SPREAD if asked.mixture else 1.0
    loads = learned.loads
    candidate_blocks = tuple(sorted({OFF, *asked.policy.block_sizes}))
    found = recommend(current, candidate_blocks, loads, acceptance, steps, trained_block=asked.trained_block, spread=spread)
    if OFF not in asked.policy.block_sizes and current != OFF and not _off_is_certain(found):
        candidate_blocks, found = asked.policy.block_sizes, _without_off(found)
    best, forecast = speculation_of(found.block), found.best
    if asked.schedule:
        best, forecast = _scheduled(question, candidate_blocks, acceptance, steps, found)
    cost = switching_cost(
        current,
        loads,
        steps,
        replicas=asked.replicas,
        surge=asked.surge,
        restart_s=asked.restart_s,
        max_concurrency=asked.max_concurrency,
    )
    if isinstance(best, Schedule) or isinstance(asked.speculation, Schedule):
        paid = table_cost_benefit(forecast.log_gain, learned.past, cost)
    elif forecast.block == current:
        paid = NOTHING
    else:
        paid = cost_benefit(forecast.block, forecast.log_gain, current, learned.past, cost, _horizon(question, forecast, acceptance, steps))
    weight = sum(load.share for load in loads)
    concurrency = sum(load.share * load.concurrency for load in loads) / weight
    speeds = {other.block: other.tokens_per_s for other in found.forecasts}
    spans = [point.concurrency for point in learned.points]
    return Comparison(
        best,
        forecast,
        {other.block: other.log_gain for other in found.forecasts if other.block != current},
        speeds,
        concurrency,
        acceptance.length(current).value,
        crossover(speeds, acceptance, steps, asked.max_concurrency, concurrency),
        max(spans) >= VARIED * min(spans) or len(steps.blocks) > 1,
        cost,
        paid,
    )


def _horizon(question: DecisionInputs, forecast: Forecast, acceptance: Acceptance, steps: StepTimes) -> Horizon:
    asked = question.tuner_inputs
    dwell_s, most = float(asked.policy.min_dwell_s), asked.policy.max_changes_per_day
    today = [change.at_s for change in asked.changes if asked.now_s - change.at_s < DAY_S]
    last = len(today) + 1 >= most
    bound_s = max(dwell_s, today[1 - most] + DAY_S - asked.now_s) if last and most > 1 else DAY_S if last else dwell_s
    return horizon_of(
        forecast.block,
        asked.speculation.max_block_size,
        question.learned.loads,
        question.learned.usual or question.learned.loads,
        acceptance,
        steps,
        bound_s=bound_s,
        per_day=most,
        last=last,
    )


def _off_is_certain(found: Recommendation) -> bool:
    """That off is faster than any block, not only than the one in force."""
    off = found.of(OFF)
    for other in found.forecasts:
        if other.block != OFF:
            lead = Forecast(OFF, off.tokens_per_s, off.log_gain - other.log_gain, math.hypot(off.log_sigma, other.log_sigma))
            if lead.confidence < OFF_CONFIDENCE:
                return False
    return True


def _without_off(found: Recommendation) -> Recommendation:
    rest = tuple(forecast for forecast in found.forecasts if forecast.block != OFF)
    best = max(rest, key=lambda forecast: (forecast.log_gain, forecast.block == found.current, -forecast.block))
    return Recommendation(found.current, best.block, rest)


def _scheduled(
    question: DecisionInputs, candidate_blocks: Sequence[int], acceptance: Acceptance, steps: StepTimes, found: Recommendation
) -> tuple[Speculation, Forecast]:
    """The table is chosen by all the loads that usually come, for it is to serve them all; what it gains is told, as of any block size, by
    those of now."""
    asked, loads = question.tuner_inputs, question.learned.loads
    least = asked.policy.min_gain_percent
    if not any(candidate_block <= asked.trained_block for candidate_block in candidate_blocks):
        return asked.speculation, found.of(found.current)
    best = best_schedule(
        candidate_blocks,
        asked.max_concurrency,
        acceptance,
        steps,
        trained_block=asked.trained_block,
        min_gain_percent=least,
        loads=_all_loads(question),
    )
    if best == asked.speculation:
        return best, found.of(found.current)
    now, then = (mean_log_speed(one, loads, acceptance, steps) for one in (asked.speculation, best))
    if then <= now:
        return asked.speculation, found.of(found.current)
    # Where both do the same, nothing is uncertain.
    other = [load.share for load in loads if _block(best, load) != _block(asked.speculation, load)]
    sigma = max(forecast.log_sigma for forecast in found.forecasts) * sum(other) / sum(load.share for load in loads)
    return best, Forecast(best.max_block_size, speed(best, loads, acceptance, steps), then - now, sigma)


def _block(speculation: Speculation, load: ObservedLoad) -> int:
    return block_at(speculation, max(1, round(load.concurrency)))


def _all_loads(question: DecisionInputs) -> tuple[ObservedLoad, ...]:
    """What a table shall serve: half the loads as they usually are, half every doubling between the least and the greatest that was seen,
    in equal parts. A table is there for loads that move, and a short past tells little of where they will."""
    learned = question.learned
    usual = learned.usual or learned.loads
    whole = sum(load.share for load in usual)
    seen = [point.concurrency for point in learned.points]
    doublings = max(0, round(math.log2(max(seen) / min(seen))))
    between = [min(seen) * 2**step for step in range(doublings + 1)]
    return (
        *(ObservedLoad(load.concurrency, load.share / whole) for load in usual),
        *(ObservedLoad(place, 1 / len(between)) for place in between),
    )

"""Compares the block sizes with the active one over the observed loads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_controller.api.defaults import speculation_of
from dflash_controller.api.speculation import Schedule, Speculation
from dflash_controller.tuner.acceptance import Acceptance
from dflash_controller.tuner.cost_benefit import (
    NO_CHANGE,
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
from dflash_controller.tuner.step_times import OFF, StepTimes

LEAST_LOAD_SAMPLES = 4
VARIED = 2.0
"""Ratio of largest to smallest observed load from which the curve rests on more than one point."""
OFF_CONFIDENCE = 0.95
"""Switching speculation off is considered only with this confidence, unless the policy lists block size 1. Speculation helps nearly
everywhere, and replicas that run without it measure nothing about it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The best block size and the numbers behind it."""

    best: Speculation
    forecast: Forecast
    """Forecast of ``best`` against the active speculation; its block is the largest of ``best``."""
    gains: Mapping[int, float]
    """Logarithm of the speed ratio of every other block size to the active one."""
    sigmas: Mapping[int, float]
    """Standard deviations of ``gains``."""
    speeds: Mapping[int, float]
    """Predicted tokens per second of a replica by block size, the active one included."""
    concurrency: float
    """Requests per replica, mean over the window."""
    acceptance: float
    """Tokens per verify step at the active block size."""
    crossover: float | None
    """Requests per replica at which the two fastest block sizes change places."""
    varied: bool
    """Whether loads far apart, or several block sizes, were observed."""
    switching_cost: SwitchingCost
    cost_benefit: CostBenefit

    def numbers(self, block: int) -> dict[str, float | str]:
        """Returns the numbers for the status and for ``Learner.note``. ``block`` is the active block size."""
        numbers: dict[str, float | str] = {
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
            numbers["staySeconds"] = round(self.cost_benefit.stay_s, 1)
        numbers.update({f"gainPercent{candidate_block}": round(100 * math.expm1(gain), 2) for candidate_block, gain in self.gains.items()})
        numbers.update({f"tokensPerSecond{candidate_block}": round(found, 1) for candidate_block, found in self.speeds.items()})
        return numbers


def compare(decision_inputs: DecisionInputs) -> Comparison | None:
    """Returns the comparison, or None if there was too little traffic."""
    inputs, learned = decision_inputs.tuner_inputs, decision_inputs.learned
    current = inputs.speculation.max_block_size
    if not learned.points or not learned.loads or learned.load_samples < LEAST_LOAD_SAMPLES:
        return None
    acceptance = fitted_acceptance(learned, current, decision_inputs.prior.decay)
    if acceptance is None:
        return None
    steps = fitted_steps(learned.points, decision_inputs.prior.steps, decision_inputs.limits, inputs.mixture)
    loads = learned.loads
    candidate_blocks = tuple(sorted({OFF, *inputs.policy.block_sizes}))
    found = recommend(
        current,
        candidate_blocks,
        loads,
        acceptance,
        steps,
        trained_block=inputs.trained_block,
        capacity=dict(inputs.capacity),
        prefill_share=learned.prefill_share,
    )
    if OFF not in inputs.policy.block_sizes and current != OFF and not _off_is_certain(found):
        candidate_blocks, found = inputs.policy.block_sizes, _without_off(found)
    best, forecast = speculation_of(found.block), found.best
    if inputs.schedule:
        best, forecast = _scheduled(decision_inputs, candidate_blocks, acceptance, steps, found)
    cost = switching_cost(
        current,
        loads,
        steps,
        replicas=inputs.replicas,
        surge=inputs.surge,
        restart_s=inputs.restart_s,
        max_concurrency=inputs.max_concurrency,
    )
    if isinstance(best, Schedule) or isinstance(inputs.speculation, Schedule):
        benefit = table_cost_benefit(forecast.log_gain, learned.past, cost)
    elif forecast.block == current:
        benefit = NO_CHANGE
    else:
        horizon = _horizon(decision_inputs, forecast, acceptance, steps)
        benefit = cost_benefit(forecast.block, forecast.log_gain, current, learned.past, cost, horizon)
    weight = sum(load.share for load in loads)
    concurrency = sum(load.share * load.concurrency for load in loads) / weight
    speeds = {other.block: other.tokens_per_s for other in found.forecasts}
    spans = [point.concurrency for point in learned.points]
    return Comparison(
        best,
        forecast,
        {other.block: other.log_gain for other in found.forecasts if other.block != current},
        {other.block: other.log_sigma for other in found.forecasts if other.block != current},
        speeds,
        concurrency,
        acceptance.length(current).value,
        crossover(speeds, acceptance, steps, inputs.max_concurrency, concurrency),
        max(spans) >= VARIED * min(spans) or len(steps.blocks) > 1,
        cost,
        benefit,
    )


def _horizon(decision_inputs: DecisionInputs, forecast: Forecast, acceptance: Acceptance, steps: StepTimes) -> Horizon:
    inputs = decision_inputs.tuner_inputs
    dwell_s, most = float(inputs.policy.min_dwell_s), inputs.policy.max_changes_per_day
    today = [change.at_s for change in inputs.changes if inputs.now_s - change.at_s < DAY_S]
    last = len(today) + 1 >= most
    bound_s = max(dwell_s, today[1 - most] + DAY_S - inputs.now_s) if last and most > 1 else DAY_S if last else dwell_s
    return horizon_of(
        forecast.block,
        inputs.speculation.max_block_size,
        decision_inputs.learned.loads,
        decision_inputs.learned.usual or decision_inputs.learned.loads,
        acceptance,
        steps,
        bound_s=bound_s,
        per_day=most,
        last=last,
    )


def _off_is_certain(found: Recommendation) -> bool:
    """Returns whether speculation off is faster than every block size, not only than the active one."""
    off = found.of(OFF)
    for other in found.forecasts:
        if other.block != OFF:
            advantage = Forecast(OFF, off.tokens_per_s, off.log_gain - other.log_gain, math.hypot(off.log_sigma, other.log_sigma))
            if advantage.confidence < OFF_CONFIDENCE:
                return False
    return True


def _without_off(found: Recommendation) -> Recommendation:
    rest = tuple(forecast for forecast in found.forecasts if forecast.block != OFF)
    best = max(rest, key=lambda forecast: (forecast.log_gain, forecast.block == found.current, -forecast.block))
    return Recommendation(found.current, best.block, rest)


def _scheduled(
    decision_inputs: DecisionInputs, candidate_blocks: Sequence[int], acceptance: Acceptance, steps: StepTimes, found: Recommendation
) -> tuple[Speculation, Forecast]:
    """Returns the best table and its forecast.

    The table is chosen over all usual loads, because it serves them all. Its gain is forecast at the current loads, as for any block size.
    """
    inputs, loads = decision_inputs.tuner_inputs, decision_inputs.learned.loads
    least = inputs.policy.min_gain_percent
    if not any(candidate_block <= inputs.trained_block for candidate_block in candidate_blocks):
        return inputs.speculation, found.of(found.current)
    best = best_schedule(
        candidate_blocks,
        inputs.max_concurrency,
        acceptance,
        steps,
        trained_block=inputs.trained_block,
        min_gain_percent=least,
        loads=_all_loads(decision_inputs),
        price=inputs.schedule_price,
    )
    if best == inputs.speculation:
        return best, found.of(found.current)
    now, then = (mean_log_speed(one, loads, acceptance, steps, price=inputs.schedule_price) for one in (inputs.speculation, best))
    if then <= now:
        return inputs.speculation, found.of(found.current)
    # Loads at which both use the same block size add no uncertainty.
    other = [load.share for load in loads if _block(best, load) != _block(inputs.speculation, load)]
    sigma = max(forecast.log_sigma for forecast in found.forecasts) * sum(other) / sum(load.share for load in loads)
    tokens_per_s = speed(best, loads, acceptance, steps, price=inputs.schedule_price)
    return best, Forecast(best.max_block_size, tokens_per_s, then - now, sigma)


def _block(speculation: Speculation, load: ObservedLoad) -> int:
    return block_at(speculation, max(1, round(load.concurrency)))


def _all_loads(decision_inputs: DecisionInputs) -> tuple[ObservedLoad, ...]:
    """Returns the loads a table is chosen for: one half the usual loads, one half every doubling between the least and the greatest load
    observed, in equal shares. Tables are for loads that move, and a short past says little about where they will go."""
    learned = decision_inputs.learned
    usual = learned.usual or learned.loads
    whole = sum(load.share for load in usual)
    seen = [point.concurrency for point in learned.points]
    doublings = max(0, round(math.log2(max(seen) / min(seen))))
    between = [min(seen) * 2**step for step in range(doublings + 1)]
    return (
        *(ObservedLoad(load.concurrency, load.share / whole) for load in usual),
        *(ObservedLoad(place, 1 / len(between)) for place in between),
    )

"""Whether to try a block size on one replica because its gain is not known: the expected value of knowing it, against what it costs.

The gain of a block size that has not run at this kind of load is inferred, with an error. If the error is large, the block size may be
faster although the mean says that it is not. The value of information (Howard 1966) is what knowing the gain improves on average: after the
trial the fleet changes if the gain is worth it and otherwise stays, so the upper part of the belief counts, less what the tuner would gain
by acting on the mean. A trial costs one replica's restart, its loss while it is slower, and the way back if it is refused.

All times are in seconds of the whole fleet at full speed, except where a time is said to be of the clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from dflash_controller.api.speculation import Schedule
from dflash_controller.tuner.comparison import Comparison
from dflash_controller.tuner.cost_benefit import MARGIN, SwitchingCost, expected_stay
from dflash_controller.tuner.decision import TRIAL_BLOCK, Change, TunerInputs
from dflash_controller.tuner.learned import Learned, Past
from dflash_controller.tuner.load_kind import is_measured, same_kind
from dflash_controller.tuner.recommend import LEAST_CONFIDENCE, Forecast, ObservedLoad
from dflash_controller.tuner.regret import DAY_S, relative_gain

WEEK_S = 7 * DAY_S
"""Period of ``spec.tuning.exploration.maxTrialsPerWeek``, and the longest time for which knowledge of a load is counted as useful."""
LEAST_SIGMA = 0.1
"""Least deviation of the logarithm of a gain to call the gain unknown. The step-time law of dense targets is better than this, and to try
what is known that well finds little."""
MEASURING_S = 900.0
"""Time for which a replica on trial is measured: its warm-up and enough blocks of requests for a verdict about 5 %."""
MOST_PER_DAY = 2
"""Exploratory trials in 24 hours over all block sizes and kinds of load. What one shows usually says something about other loads."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class TrialValue:
    """What a trial of one block size is expected to bring and to cost."""

    block: int
    value_s: float
    """Expected gain of the fleet over ``lasting_s`` from knowing the gain, the restart of the other replicas taken off."""
    cost_s: float
    """The replica's restart there and, if it is refused, back, and what it loses while it is measured."""
    chance: float
    """Probability that the trial ends in a change."""
    lasting_s: float
    """Time of the clock for which such load is expected."""
    unknown: bool = True
    """Whether the error of the gain is so large that the gain counts as unknown."""

    @property
    def worthwhile(self) -> bool:
        return self.unknown and self.value_s > MARGIN * self.cost_s

    def numbers(self) -> dict[str, float]:
        """Returns the numbers for the status."""
        return {
            TRIAL_BLOCK: self.block,
            "trialValueSeconds": round(self.value_s, 1),
            "trialCostSeconds": round(self.cost_s, 1),
            "trialChance": round(self.chance, 3),
            "lastingSeconds": round(self.lasting_s, 1),
        }


def possible_trials(inputs: TunerInputs, learned: Learned, comparison: Comparison) -> list[TrialValue]:
    """Returns a trial for each block size that was not measured at this kind of load, the one that is worth most first.

    An engine that follows a schedule measures the block sizes of its table without a trial.
    """
    if isinstance(inputs.speculation, Schedule):
        return []
    lasts_s = lasting_s(learned.past, learned.usual, comparison.concurrency)
    found = [
        trial_value(
            Forecast(block, comparison.speeds[block], comparison.gains[block], comparison.sigmas[block]),
            least_gain_percent=inputs.policy.min_gain_percent,
            cost=comparison.switching_cost,
            factor=learned.past.factor,
            replicas=inputs.replicas,
            lasting_s=lasts_s,
        )
        for block in inputs.policy.block_sizes
        if block in comparison.gains and not is_measured(learned.points, block, comparison.concurrency)
    ]
    return sorted(found, key=lambda trial: (not trial.worthwhile, trial.cost_s - trial.value_s, trial.block))


def trial_value(
    forecast: Forecast, *, least_gain_percent: float, cost: SwitchingCost, factor: float, replicas: int, lasting_s: float
) -> TrialValue:
    """Returns what a trial of the forecast's block size is worth.

    ``least_gain_percent`` is the smallest measured gain after which the fleet changes, ``cost`` is that of changing all replicas,
    ``factor`` the tuner's caution after wasted changes, and ``lasting_s`` how long such load is expected.
    """
    log_gain, log_sigma, block = forecast.log_gain, forecast.log_sigma, forecast.block
    replicas = max(1, replicas)
    restart_s = factor * cost.cost_s / replicas
    left_s = lasting_s - cost.duration_s / replicas - MEASURING_S
    loss_s = MEASURING_S / replicas * upper_mean(-log_gain, log_sigma, 0.0)[0]
    if left_s <= 0:
        return TrialValue(block, 0.0, 2 * restart_s + loss_s, 0.0, lasting_s, log_sigma >= LEAST_SIGMA)
    rest = (replicas - 1) * restart_s / left_s
    gain, chance = upper_mean(log_gain, log_sigma, math.log1p(least_gain_percent / 100), rest)
    if forecast.gain_percent >= least_gain_percent and forecast.confidence >= LEAST_CONFIDENCE:
        # The tuner changes to it without this trial, once the regret or the expected stay justifies that.
        gain = max(0.0, gain - max(0.0, relative_gain(log_gain) - rest))
    return TrialValue(block, left_s * gain, restart_s * (2 - chance) + loss_s, chance, lasting_s, log_sigma >= LEAST_SIGMA)


def upper_mean(log_gain: float, log_sigma: float, least: float, price: float = 0.0) -> tuple[float, float]:
    """Returns the mean of max(0, g − price) over the gains from ``least`` on, and their probability.

    g = 1 − exp(−x) is the gain as a share of the faster speed (``regret.relative_gain``), for a logarithm x that is normal with this mean
    and deviation. The mean is that of a put option with strike 1 − price (Black and Scholes 1973), cut off at ``least``.
    """
    if price >= 1:
        return 0.0, 0.0
    from_ = max(least, -math.log1p(-price))
    if log_sigma == 0:
        gain = -math.expm1(-log_gain) - price if log_gain >= from_ else 0.0
        return max(0.0, gain), float(log_gain >= from_)
    chance = _NORMAL.cdf((log_gain - from_) / log_sigma)
    slower = math.exp(min(700.0, log_sigma**2 / 2 - log_gain)) * _NORMAL.cdf((log_gain - log_sigma**2 - from_) / log_sigma)
    return max(0.0, (1 - price) * chance - slower), chance


def lasting_s(past: Past, usual: Iterable[ObservedLoad], concurrency: float) -> float:
    """Returns for how many seconds of the clock load of this kind is expected, at most a week.

    The time until the load favours another block size comes from earlier such times. Without any, it is expected to last as long again as
    it has lasted (Lindy's law, Gott 1993). The load itself is expected for no longer than its share of the usual loads, which are those of
    about a day.
    """
    rest = expected_stay(past.stays_of(past.favoured), past.favoured_s)
    stay_s = past.favoured_s if rest is None else rest
    known_s = min(DAY_S, past.favoured_s + sum(sum(stays) for _, stays in past.stays))
    return min(WEEK_S, stay_s, _share(tuple(usual), concurrency) * max(known_s, stay_s))


def _share(usual: Sequence[ObservedLoad], concurrency: float) -> float:
    total = sum(load.share for load in usual)
    if not total > 0:
        return 1.0
    return sum(load.share for load in usual if same_kind(load.concurrency, concurrency)) / total


def trials_of_the_day(changes: Iterable[Change], now_s: float) -> list[Change]:
    """Returns all exploratory trials in the last 24 hours."""
    return [change for change in changes if change.exploratory and now_s - change.at_s < DAY_S]


def trials_of_the_week(changes: Iterable[Change], now_s: float, block: int, concurrency: float) -> list[Change]:
    """Returns the exploratory trials of a block size at this kind of load in the last seven days."""
    return [
        change
        for change in changes
        if change.exploratory and change.block == block and now_s - change.at_s < WEEK_S and same_kind(max(change.load, 0.1), concurrency)
    ]

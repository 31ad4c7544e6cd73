"""Finds the block size that is fastest over the loads of a window.

The speed of one replica at concurrency c with block B is c · τ(B) ÷ s(B, c) tokens per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from dflash_controller.tuner.acceptance import Acceptance
from dflash_controller.tuner.step_times import StepTimes

LEAST_CONFIDENCE = 0.65
"""Minimum probability that another block size is faster for a change to it."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class ObservedLoad:
    """One concurrency of a replica and its share of the time. Shares are relative to each other; they need not add up to 1."""

    concurrency: float
    share: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError if the concurrency is not positive or the share is negative."""
        if not (math.isfinite(self.concurrency) and self.concurrency > 0 and math.isfinite(self.share) and self.share >= 0):
            raise ValueError(f"{self} is no load")


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted speed of one block size."""

    block: int
    tokens_per_s: float
    """Tokens per second of one replica, mean over the loads."""
    log_gain: float
    """Logarithm of its speed ÷ that of the current block size; 0 for that one."""
    log_sigma: float
    """Standard deviation of ``log_gain``; 0 for the current block size."""

    @property
    def gain_percent(self) -> float:
        """Gain over the current block size in percent."""
        return 100 * math.expm1(self.log_gain)

    @property
    def confidence(self) -> float:
        """Probability that it is faster than the current block size."""
        return self.confidence_of(0.0)

    def confidence_of(self, gain_percent: float) -> float:
        """Returns the probability that it gains at least ``gain_percent`` over the current block size."""
        short = self.log_gain - math.log1p(gain_percent / 100)
        if self.log_sigma == 0:
            return 1.0 if short > 0 else 0.0
        return _NORMAL.cdf(short / self.log_sigma)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The fastest block size, regardless of the cost of a change to it."""

    current: int
    block: int
    forecasts: tuple[Forecast, ...]
    """Of every block size, the current one included, by block size."""

    @property
    def best(self) -> Forecast:
        return self.of(self.block)

    def of(self, block: int) -> Forecast:
        """Returns the forecast of one block size. Raises KeyError for one that was not compared."""
        for forecast in self.forecasts:
            if forecast.block == block:
                return forecast
        raise KeyError(block)


def legal(candidate_blocks: Iterable[int], current: int, trained_block: int | None) -> tuple[int, ...]:
    """Returns the block sizes to choose from, ascending: those up to the trained one, and the current one. 1 is speculation off."""
    return tuple(
        sorted(
            {
                current,
                *(
                    candidate_block
                    for candidate_block in candidate_blocks
                    if candidate_block >= 1 and (trained_block is None or candidate_block <= trained_block)
                ),
            }
        )
    )


def recommend(
    current: int,
    candidate_blocks: Iterable[int],
    loads: Sequence[ObservedLoad],
    acceptance: Acceptance,
    steps: StepTimes,
    *,
    trained_block: int | None = None,
    capacity: Mapping[int, float] | None = None,
    prefill_share: float = 0.0,
) -> Recommendation:
    """Returns the block size with the most expected tokens per second; on a tie the current one, then the smaller.

    The loads are taken as constant, although a faster block size would leave fewer requests in service. Requests beyond ``capacity`` (by
    block size, where known) wait, so they add no speed. ``prefill_share`` is the part of the time that prefill takes at the current block
    size; no block size changes it, so gains are smaller by it. Raises ValueError if no load has a share.
    """
    weight = sum(load.share for load in loads)
    if not weight > 0:
        raise ValueError("there is no load")
    holds = capacity or {}

    def part(block: int, load: ObservedLoad) -> float:
        served = ObservedLoad(min(load.concurrency, max(1.0, holds.get(block, math.inf))), load.share)
        return _speed(block, served, acceptance, steps) * load.share / weight

    choices = legal(candidate_blocks, current, trained_block)
    speeds = {candidate_block: [part(candidate_block, load) for load in loads] for candidate_block in choices}
    forecasts = tuple(_forecast(candidate_block, current, loads, speeds, acceptance, steps) for candidate_block in choices)
    if prefill_share > 0:
        forecasts = tuple(_beside_prefill(forecast, sum(speeds[current]), prefill_share) for forecast in forecasts)
    best = max(forecasts, key=lambda forecast: (forecast.log_gain, forecast.block == current, -forecast.block))
    return Recommendation(current, best.block, forecasts)


def _beside_prefill(forecast: Forecast, before: float, prefill_share: float) -> Forecast:
    """Returns the forecast for the whole time: prefill keeps its seconds, decoding takes more or fewer (Amdahl's law).

    ``before`` is the speed of the current block size while it decodes.
    """
    time = prefill_share + (1 - prefill_share) * math.exp(-forecast.log_gain)
    sigma = forecast.log_sigma * (1 - prefill_share) * math.exp(-forecast.log_gain) / time
    return Forecast(forecast.block, before * (1 - prefill_share) / time, -math.log(time), sigma)


def _speed(candidate_block: int, load: ObservedLoad, acceptance: Acceptance, steps: StepTimes) -> float:
    return load.concurrency * acceptance.length(candidate_block).value / steps.seconds(candidate_block, load.concurrency)


def _forecast(
    candidate_block: int,
    current: int,
    loads: Sequence[ObservedLoad],
    speeds: dict[int, list[float]],
    acceptance: Acceptance,
    steps: StepTimes,
) -> Forecast:
    total = sum(speeds[candidate_block])
    if candidate_block == current:
        return Forecast(candidate_block, total, 0.0, 0.0)
    lengths = math.hypot(acceptance.length(candidate_block).log_sigma, acceptance.length(current).log_sigma)
    # An error of the curve is the same at all loads, so standard deviations are averaged, not variances.
    times = sum(
        speed / total * math.hypot(steps.at(candidate_block, load.concurrency).log_sigma, steps.at(current, load.concurrency).log_sigma)
        for speed, load in zip(speeds[candidate_block], loads, strict=True)
    )
    return Forecast(candidate_block, total, math.log(total / sum(speeds[current])), math.hypot(lengths, times))

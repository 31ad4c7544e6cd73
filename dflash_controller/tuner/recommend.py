"""The block size that is fastest over the loads of a window.

Speed of one replica at concurrency c with block B is c · τ(B) ÷ s(B, c) tokens per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from dflash_controller.tuner.acceptance import Acceptance
from dflash_controller.tuner.steps import StepTimes

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class ObservedLoad:
    """One concurrency of a replica, and the share of time it was there (relative to the others, not necessarily a part of 1)."""

    concurrency: float
    share: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError where the concurrency is not positive, or the share is negative."""
        if not (math.isfinite(self.concurrency) and self.concurrency > 0 and math.isfinite(self.share) and self.share >= 0):
            raise ValueError(f"{self} is no load")


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one block size would do."""

    block: int
    tokens_per_s: float
    """Of one replica, over the loads."""
    log_gain: float
    """Logarithm of its speed ÷ that of the current block size; 0 for that one."""
    log_sigma: float
    """Standard deviation of ``log_gain``; 0 for the current block size."""

    @property
    def gain_percent(self) -> float:
        """Over the current block size."""
        return 100 * math.expm1(self.log_gain)

    @property
    def confidence(self) -> float:
        """Chance that it is faster than the current block size."""
        return self.confidence_of(0.0)

    def confidence_of(self, gain_percent: float) -> float:
        """Chance that it gains at least so much over the current block size."""
        short = self.log_gain - math.log1p(gain_percent / 100)
        if self.log_sigma == 0:
            return 1.0 if short > 0 else 0.0
        return _NORMAL.cdf(short / self.log_sigma)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The fastest block size. Whether a change to it pays is not said here."""

    current: int
    block: int
    forecasts: tuple[Forecast, ...]
    """Of every block size, the current one included, by block size."""

    @property
    def best(self) -> Forecast:
        return self.of(self.block)

    def of(self, block: int) -> Forecast:
        """Raises KeyError for a block that is not a block size."""
        for forecast in self.forecasts:
            if forecast.block == block:
                return forecast
        raise KeyError(block)


def legal(candidate_blocks: Iterable[int], current: int, trained_block: int | None) -> tuple[int, ...]:
    """The block sizes to choose from, ascending: those a drafter was trained for, and what runs now. Block size 1 is speculation off."""
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
    spread: float = 1.0,
) -> Recommendation:
    """Argmax of expected tokens per second; of equals, the current block size, then the smaller.

    The loads are taken as they are: that a faster block size would leave fewer requests in service is not counted. ``spread`` multiplies
    the uncertainty (1.5 for targets whose step time follows the law less well: mixtures of experts, hybrids). Raises ValueError where no
    load has a share.
    """
    weight = sum(load.share for load in loads)
    if not weight > 0:
        raise ValueError("there is no load")
    choices = legal(candidate_blocks, current, trained_block)
    speeds = {
        candidate_block: [_speed(candidate_block, load, acceptance, steps) * load.share / weight for load in loads]
        for candidate_block in choices
    }
    forecasts = tuple(_forecast(candidate_block, current, loads, speeds, acceptance, steps, spread) for candidate_block in choices)
    best = max(forecasts, key=lambda forecast: (forecast.log_gain, forecast.block == current, -forecast.block))
    return Recommendation(current, best.block, forecasts)


def _speed(candidate_block: int, load: ObservedLoad, acceptance: Acceptance, steps: StepTimes) -> float:
    return load.concurrency * acceptance.length(candidate_block).value / steps.seconds(candidate_block, load.concurrency)


def _forecast(
    candidate_block: int,
    current: int,
    loads: Sequence[ObservedLoad],
    speeds: dict[int, list[float]],
    acceptance: Acceptance,
    steps: StepTimes,
    spread: float,
) -> Forecast:
    total = sum(speeds[candidate_block])
    if candidate_block == current:
        return Forecast(candidate_block, total, 0.0, 0.0)
    lengths = math.hypot(acceptance.length(candidate_block).log_sigma, acceptance.length(current).log_sigma)
    # An error of the curve is the same at all loads, so deviations are averaged, not variances.
    times = sum(
        speed / total * math.hypot(steps.at(candidate_block, load.concurrency).log_sigma, steps.at(current, load.concurrency).log_sigma)
        for speed, load in zip(speeds[candidate_block], loads, strict=True)
    )
    return Forecast(candidate_block, total, math.log(total / sum(speeds[current])), spread * math.hypot(lengths, times))

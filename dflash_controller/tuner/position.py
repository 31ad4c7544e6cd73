"""Finds what a position of a block costs by itself (g) and what a request costs by itself (e): see ``law``.

Both show only where two block sizes were measured at equal T. Until then they are the prior's, with its uncertainty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_controller.tuner.law import OFF, Law, Price
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.step_prior import Limits, StepPrior

EXPONENT_SIGMA = 0.07
"""Prior standard deviation of e. Doubling c at equal T was measured to change the step time by -3 to +15 %."""
COMPARED_SIGMA = 0.042
"""Uncertainty of one comparison of two step times at equal T: 3 % for each."""
MOST_SHARE = 0.8
"""Greatest share of the shortest step that positions can take."""


@dataclass(frozen=True, slots=True)
class PositionPrice:
    """The posterior: its mean, and the standard deviation of seconds per position."""

    price: Price
    position_sigma_s: float


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Two block sizes at equal T: log s of the smaller less that of the larger is ``doubling`` · e - ``positions`` · g."""

    log_apart: float
    log_ratio: float
    positions: float
    """Difference of the block sizes ÷ the step time, per second."""
    tokens: float


def position_price(by_block: Mapping[int, Sequence[StepPoint]], prior: StepPrior, limits: Limits) -> PositionPrice:
    """Returns the posterior of g and e by linear regression with the prior's normal distributions. A negative g is taken as 0."""
    mean_s, sigma_s = _prior_price(by_block, prior)
    found = _comparisons(by_block, prior, limits)
    if not found:
        return PositionPrice(Price(mean_s, 0.0), sigma_s)
    # Comparisons at nearly the same T repeat one deviation from the law, so those of an octave of T count as one.
    octaves = Counter(round(math.log2(one.tokens)) for one in found)
    weights = [1 / (octaves[round(math.log2(one.tokens))] * COMPARED_SIGMA**2) for one in found]
    ee = 1 / EXPONENT_SIGMA**2 + sum(w * one.log_ratio**2 for w, one in zip(weights, found, strict=True))
    ey = sum(w * one.log_ratio * one.log_apart for w, one in zip(weights, found, strict=True))
    if not sigma_s:
        rest = sum(w * one.log_ratio * one.positions * mean_s for w, one in zip(weights, found, strict=True))
        return PositionPrice(Price(mean_s, (ey + rest) / ee), 0.0)
    gg = 1 / sigma_s**2 + sum(w * one.positions**2 for w, one in zip(weights, found, strict=True))
    eg = -sum(w * one.log_ratio * one.positions for w, one in zip(weights, found, strict=True))
    gy = mean_s / sigma_s**2 - sum(w * one.positions * one.log_apart for w, one in zip(weights, found, strict=True))
    determinant = ee * gg - eg * eg
    position_s, sigma = (ee * gy - eg * ey) / determinant, math.sqrt(ee / determinant)
    position_s = max(0.0, min(position_s, _most(by_block)))
    return PositionPrice(Price(position_s, (ey - eg * position_s) / ee), sigma)


def _prior_price(by_block: Mapping[int, Sequence[StepPoint]], prior: StepPrior) -> tuple[float, float]:
    """Returns mean and standard deviation of g in seconds, scaled from the measured step with the fewest tokens."""
    if not prior.position_share and not prior.position_sigma:
        return 0.0, 0.0
    drafting = [point for block, points in by_block.items() if block != OFF for point in points]
    if drafting:
        least = min(drafting, key=lambda point: (point.tokens, point.block))
        seconds, block = least.seconds, least.block
    else:
        least = min(by_block[OFF], key=lambda point: point.tokens)
        seconds, block = least.seconds / prior.off_ratio, 0
    idle = 1 + least.tokens / prior.knee_tokens
    whole = idle + prior.position_share * block
    return prior.position_share * seconds / whole, prior.position_sigma * seconds * idle / whole**2


def _most(by_block: Mapping[int, Sequence[StepPoint]]) -> float:
    return min(MOST_SHARE * point.seconds / block for block, points in by_block.items() if block != OFF for point in points)


def _comparisons(by_block: Mapping[int, Sequence[StepPoint]], prior: StepPrior, limits: Limits) -> list[_Comparison]:
    drafting = sorted(block for block in by_block if block != OFF)
    found = []
    for large in drafting[1:]:
        alone = Law({large: by_block[large]}, prior, limits, Price())
        for small in (block for block in drafting if block < large):
            for point in by_block[small]:
                curve, own_side = alone.curve(small, point.concurrency)
                if not own_side or curve.distance(point.tokens) > 0:
                    continue
                log_s, log_large = math.log(point.seconds), curve.at(point.tokens)
                between_s = math.exp((log_s + log_large) / 2)
                found.append(_Comparison(log_s - log_large, math.log(large / small), (large - small) / between_s, point.tokens))
    return found

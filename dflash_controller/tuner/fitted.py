"""Fits the two models to what was learned. Fits are cached, because the planner evaluates often and the data rarely changes."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

from dflash_controller.tuner.acceptance import Acceptance, Decay
from dflash_controller.tuner.curve import GAP_DOUBLINGS
from dflash_controller.tuner.estimate import Estimate
from dflash_controller.tuner.learned import Learned, Seen
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.step_times import Limits, StepPrior, StepTimes

LEAST_STEPS = 200.0
"""Minimum verify steps in a window for its mean acceptance to be used: the mean is then known to about 3 %."""
FILLED_WEIGHT = 0.5
"""Weight of an interpolated point: less than one load sample."""


class FittedSteps(StepTimes):
    """Step times with a cache: loads come from few bins."""

    def __init__(self, points: tuple[StepPoint, ...], prior: StepPrior, limits: Limits) -> None:
        self._estimates: dict[tuple[int, float], Estimate] = {}
        self._seconds: dict[tuple[int, float], float] = {}
        super().__init__(points, prior, limits)

    def at(self, block: int, concurrency: float) -> Estimate:
        key = block, concurrency
        if key not in self._estimates:
            self._estimates[key] = super().at(block, concurrency)
        return self._estimates[key]

    def seconds(self, block: int, concurrency: float) -> float:
        key = block, concurrency
        if key not in self._seconds:
            self._seconds[key] = super().seconds(block, concurrency)
        return self._seconds[key]


@lru_cache(maxsize=256)
def fitted_steps(points: tuple[StepPoint, ...], prior: StepPrior, limits: Limits, mixture: bool) -> FittedSteps:
    """Returns the fitted step times. Raises ValueError without points."""
    return FittedSteps(points if mixture else (*points, *_between(points, limits)), prior, limits)


def _between(points: tuple[StepPoint, ...], limits: Limits) -> list[StepPoint]:
    """Returns interpolated points of a dense target between loads that are far apart: its step time is a straight line in T (``shape``).

    A curve through few points does not have that shape. Mixtures of experts lie above the line, because more tokens activate more experts.
    """
    found = []
    for before, after in pairwise(sorted(points, key=lambda point: (point.block, point.concurrency))):
        if before.block != after.block or after.concurrency <= before.concurrency or after.seconds <= before.seconds:
            continue
        if limits.regime(before.block, before.concurrency) != limits.regime(after.block, after.concurrency):
            continue
        doublings = math.log2(after.concurrency / before.concurrency)
        if doublings <= GAP_DOUBLINGS:
            continue
        pieces = math.ceil(doublings)
        for piece in range(1, pieces):
            load = before.concurrency * 2 ** (doublings * piece / pieces)
            share = (load - before.concurrency) / (after.concurrency - before.concurrency)
            found.append(StepPoint(before.block, load, before.seconds + share * (after.seconds - before.seconds), FILLED_WEIGHT))
    return found


def fitted_acceptance(learned: Learned, current: int, prior: Decay) -> Acceptance | None:
    """Returns the acceptance over the window, or the last known one while speculation is off; None with too few steps.

    Only the block size that served most of the traffic counts: the few requests of a replica on trial are different ones.
    """
    seen = [found for found in learned.acceptance if found.steps >= LEAST_STEPS]
    own = next((found for found in seen if found.block == current), None) or max(seen, key=lambda found: found.steps, default=None)
    if own is None and current == 1:
        own = learned.drafted
    if own is None:
        return None
    # Rounding by at most half a percent lets the cached fit serve again.
    length = round(own.length * 50) / 50 if own.length >= 3 else own.length
    return _acceptance(own.block, length, _falling(own), prior.learned(learned.decays))


def _falling(seen: Seen) -> tuple[float, ...]:
    return seen.survival if len(seen.survival) == seen.block - 1 else ()


@lru_cache(maxsize=4096)
def _acceptance(block: int, length: float, survival: tuple[float, ...], decay: Decay) -> Acceptance:
    return Acceptance({block: length}, decay, survival)

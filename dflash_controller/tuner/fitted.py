"""The two models as fitted to what was learned. Fitting is repeated only where something moved: the planner looks often."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

from dflash_controller.tuner.acceptance import Acceptance, Decay
from dflash_controller.tuner.curve import GAP_DOUBLINGS
from dflash_controller.tuner.estimate import Estimate
from dflash_controller.tuner.learned import Learned, Seen
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.steps import Limits, StepPrior, StepTimes

LEAST_STEPS = 200.0
"""Verify steps of a window, before its mean acceptance is believed: the mean is then known to some 3 %."""
FILLED_WEIGHT = 0.5
"""Of a point that was put between: less than one load sample."""


class FittedSteps(StepTimes):
    """Remembers what it was asked: loads come from few bins."""

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
    """Raises ValueError without points."""
    return FittedSteps(points if mixture else (*points, *_between(points, limits)), prior, limits)


def _between(points: tuple[StepPoint, ...], limits: Limits) -> list[StepPoint]:
    """What a dense target does between loads that are far apart: its step time is a straight line in T (``shape``), as both ends fix it.

    A curve through few points cannot know that; mixtures of experts, which activate more experts the more tokens there are, lie above.
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
    """Of the window; where nothing is drafted now, as it was last seen. None where too few steps were seen.

    Only what the largest part of the traffic went through is taken: the few requests of a replica on trial are not the same ones.
    """
    seen = [found for found in learned.acceptance if found.steps >= LEAST_STEPS]
    own = next((found for found in seen if found.block == current), None) or max(seen, key=lambda found: found.steps, default=None)
    if own is None and current == 1:
        own = learned.drafted
    if own is None:
        return None
    # Within half a percent, and then the same fit serves again.
    length = round(own.length * 50) / 50 if own.length >= 3 else own.length
    return _acceptance(own.block, length, _falling(own), prior.learned(learned.decays))


def _falling(seen: Seen) -> tuple[float, ...]:
    return seen.survival if len(seen.survival) == seen.block - 1 else ()


@lru_cache(maxsize=4096)
def _acceptance(block: int, length: float, survival: tuple[float, ...], decay: Decay) -> Acceptance:
    return Acceptance({block: length}, decay, survival)

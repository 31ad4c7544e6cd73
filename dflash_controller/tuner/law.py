"""The law of step times, fitted to measurements for given prices of a position and a request.

A step with blocks of B for c requests verifies T = B · c tokens and takes s(B, c) = f(T) · c**e + g · B + h · c. ``f`` is a curve that
never falls. Load at one block size shows only the sum: the prices ``g`` and ``h`` and the exponent ``e`` need two (``price``).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dflash_controller.tuner.curve import Curve
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.step_prior import Limits, StepPrior

OFF = 1
"""The block size that stands for speculation off."""
LEAST_REST = 0.2
"""Minimum share of a step that is left for f, however much the prices would take."""

Regime = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Price:
    """What load at one block size cannot show."""

    position_s: float = 0.0
    """Seconds per position of a block, whatever the load (g)."""
    request_s: float = 0.0
    """Seconds per request, whatever the block (h)."""
    exponent: float = 0.0
    """Exponent of concurrency (e)."""


class Law:
    """Step times under one ``Price``. What was measured of a block takes precedence over the law, if several blocks were."""

    def __init__(self, by_block: Mapping[int, Sequence[StepPoint]], prior: StepPrior, limits: Limits, price: Price) -> None:
        self._prior = prior
        self._limits = limits
        self._price = price
        drafting = sorted(block for block in by_block if block != OFF)
        self._curves = self._fit(by_block, drafting or [OFF])
        compared = [*(drafting if len(drafting) > 1 else ()), *([OFF] if drafting and OFF in by_block else ())]
        self._residuals = {block: self._misses(block, by_block[block]) for block in compared}

    def log_s(self, block: int, concurrency: float) -> float:
        """Returns the logarithm of the step time in seconds."""
        missed = self._residuals.get(block)
        return self._log_law(block, concurrency) + (missed.at(concurrency) if missed is not None else 0.0)

    def curve(self, block: int, concurrency: float) -> tuple[Curve, bool]:
        """Returns the curve that a step is read from, and whether it is that of the step's own side of every limit."""
        regime = self._limits.regime(block, concurrency)
        known = self._nearest(regime)
        return self._curves[known], known == regime

    def _log_law(self, block: int, concurrency: float) -> float:
        off = math.log(self._prior.off_ratio) if block == OFF else 0.0
        rest = off + self._log_f(block, concurrency) + self._price.exponent * math.log(concurrency)
        added = self._added(block, concurrency)
        return math.log(math.exp(rest) + added) if added else rest

    def _added(self, block: int, concurrency: float) -> float:
        return self._price.request_s * concurrency + (0.0 if block == OFF else self._price.position_s * block)

    def _log_f(self, block: int, concurrency: float) -> float:
        """Returns log f, which does not decrease across a limit in T either."""
        regime, tokens = self._limits.regime(block, concurrency), block * concurrency
        known = self._nearest(regime)
        curve = self._curves[known]
        log_s = curve.at(tokens)
        if not self._limits.tokens:
            return log_s
        below = max(
            (self._curves[other].logs[-1] for other in self._curves if other[1] == known[1] and other[0] < known[0]), default=-math.inf
        )
        higher = min((other for other in self._curves if other[1] == known[1] and other[0] > known[0]), default=None)
        if higher is not None:
            above = self._curves[higher].at(self._limits.tokens[higher[0] - 1])
            log_s = min(log_s, max(above, curve.logs[-1]))
        return max(log_s, below)

    def _nearest(self, regime: Regime) -> Regime:
        """Returns the side with data that is the same or nearest in c, and among those the same or next lower in T, or the lowest."""
        return min(self._curves, key=lambda other: (abs(other[1] - regime[1]), other[1], other[0] > regime[0], abs(other[0] - regime[0])))

    def _fit(self, by_block: Mapping[int, Sequence[StepPoint]], blocks: Iterable[int]) -> dict[Regime, Curve]:
        prior = self._prior
        found: dict[Regime, list[tuple[float, float, float]]] = defaultdict(list)
        for block in blocks:
            off = math.log(prior.off_ratio) if block == OFF else 0.0
            for point in by_block[block]:
                rest = max(point.seconds - self._added(block, point.concurrency), LEAST_REST * point.seconds)
                log_f = math.log(rest) - self._price.exponent * math.log(point.concurrency) - off
                found[self._limits.regime(block, point.concurrency)].append((point.tokens, log_f, point.weight))
        return {regime: Curve(points, prior.knee_tokens, prior.end_weight, prior.below_sigma) for regime, points in found.items()}

    def _misses(self, block: int, points: Iterable[StepPoint]) -> Residuals:
        return Residuals(
            (point.concurrency, math.log(point.seconds) - self._log_law(block, point.concurrency), point.weight) for point in points
        )


class Residuals:
    """Differences of a block's measured step times from the law, in log s. They halve with each doubling of concurrency beyond the data."""

    def __init__(self, misses: Iterable[tuple[float, float, float]]) -> None:
        merged: dict[float, tuple[float, float]] = {}
        for concurrency, miss, weight in misses:
            total, mean = merged.get(concurrency, (0.0, 0.0))
            merged[concurrency] = (total + weight, mean + (miss - mean) * weight / (total + weight))
        self._places = sorted(merged)
        self._values = [merged[place][1] for place in self._places]

    def at(self, concurrency: float) -> float:
        places, values = self._places, self._values
        if concurrency <= places[0]:
            return values[0] * concurrency / places[0]
        if concurrency >= places[-1]:
            return values[-1] * places[-1] / concurrency
        right = bisect_right(places, concurrency)
        share = math.log(concurrency / places[right - 1]) / math.log(places[right] / places[right - 1])
        return values[right - 1] + (values[right] - values[right - 1]) * share

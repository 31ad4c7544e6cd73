"""Predicts the step time by block size and concurrency from the block sizes that ran.

A step verifies T = B · c tokens, and its time is nearly a function of T alone: s(B, c) = f(T) · c**e. The published tables of SGLang on
B200 and measurements on an H100 with vLLM and SGLang, for a dense target and a mixture of experts, agree: at equal T, block 8 at twice the
concurrency takes 3 % less to 15 % more time than block 16. So load that varies at one block size shows the step time of every other
without a trial. The exponent e is 0 until two block sizes were observed. From then on, a block's measurements take precedence over the law.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from dflash_controller.tuner.curve import GAP_DOUBLINGS, Curve
from dflash_controller.tuner.estimate import Estimate
from dflash_controller.tuner.points import StepPoint

OFF = 1
"""The block size that stands for speculation off."""

NOISE_SIGMA = 0.03
"""Uncertainty of a measured step time from one day to the next."""
LAW_DOWN_SIGMA, LAW_UP_SIGMA = 0.065, 0.09
"""Uncertainty of the law for a block half, or twice, as large as the nearest that ran; grows with the square root of the doublings."""
BEYOND_SIGMA = 0.10
"""Uncertainty per doubling of T beyond the data."""
OFF_SIGMA = 0.20
"""Uncertainty of the step time without drafter relative to the curve, over 54 published table cells with priors of other targets."""
REGIME_SIGMA = 0.30
"""Uncertainty without data on this side of a limit: beyond a limit of graph capture, step times rose by 20 to 40 % on an H100."""
EXPONENT_SIGMA = 0.07
"""Prior standard deviation of e. Doubling c at equal T was measured to change the step time by -3 to +15 %."""


@dataclass(frozen=True, slots=True)
class StepPrior:
    """Prior from other targets (``priors``), used where nothing was measured."""

    knee_tokens: float
    off_ratio: float
    """Step time without drafter ÷ that of the curve at the same number of tokens: no draft pass, no verification."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes up to which the engine has CUDA graphs, ascending, from its command line. The curve is not extrapolated across them."""

    tokens: tuple[float, ...] = ()
    """In T: vLLM captures by tokens."""
    concurrency: tuple[float, ...] = ()
    """In c: SGLang captures by requests."""

    def regime(self, block: int, concurrency: float) -> tuple[int, int]:
        """Returns on which side of every limit a step lies. A step at the limit still has a graph."""
        return bisect_left(self.tokens, block * concurrency), bisect_left(self.concurrency, concurrency)


class StepTimes:
    """Seconds per verify step of one replica."""

    def __init__(self, points: Iterable[StepPoint], prior: StepPrior, limits: Limits | None = None) -> None:
        """Raises ValueError without points. With data for speculation off only, the curve is inferred from that."""
        self._limits = limits or Limits()
        self._prior = prior
        self._by_block: dict[int, list[StepPoint]] = defaultdict(list)
        for point in points:
            self._by_block[point.block].append(point)
        if not self._by_block:
            raise ValueError("no step time was measured")
        self._drafting = sorted(block for block in self._by_block if block != OFF)
        self._loads: dict[tuple[int, tuple[int, int]], list[float]] = defaultdict(list)
        for point in sorted((p for found in self._by_block.values() for p in found), key=lambda point: point.concurrency):
            self._loads[point.block, self._limits.regime(point.block, point.concurrency)].append(point.concurrency)
        self._exponent = self._compare()
        self._curves = self._fit(self._drafting or [OFF], self._exponent)
        compared = [*(self._drafting if len(self._drafting) > 1 else ()), *([OFF] if self._drafting and OFF in self._by_block else ())]
        self._residuals = {block: self._misses(block) for block in compared}

    @property
    def blocks(self) -> tuple[int, ...]:
        """Block sizes with data."""
        return tuple(sorted(self._by_block))

    @property
    def loads(self) -> int:
        """Number of different concurrencies with data; with 1, the whole curve is the prior's shape."""
        return len({concurrency for loads in self._loads.values() for concurrency in loads})

    @property
    def exponent(self) -> float:
        """The exponent e of the law; 0 until two block sizes have data."""
        return self._exponent

    def at(self, block: int, concurrency: float) -> Estimate:
        """Returns the step time in seconds with its uncertainty. Raises ValueError if block or concurrency is not positive."""
        if not (block > 0 and concurrency > 0):
            raise ValueError(f"block {block} at concurrency {concurrency}")
        sigma = min(self._measured_sigma(block, concurrency), self._law_sigma(block, concurrency))
        return Estimate(self.seconds(block, concurrency), sigma)

    def seconds(self, block: int, concurrency: float) -> float:
        """Returns the step time in seconds, without the uncertainty."""
        missed = self._residuals.get(block)
        return math.exp(self._law(block, concurrency) + (missed.at(concurrency) if missed is not None else 0.0))

    def _law(self, block: int, concurrency: float) -> float:
        off = math.log(self._prior.off_ratio) if block == OFF else 0.0
        return off + self._curve(block, concurrency) + self._exponent * math.log(concurrency)

    def _curve(self, block: int, concurrency: float) -> float:
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

    def _nearest(self, regime: tuple[int, int]) -> tuple[int, int]:
        """Returns the side with data that is the same or nearest in c, and among those the same or next lower in T, or the lowest."""
        return min(self._curves, key=lambda other: (abs(other[1] - regime[1]), other[1], other[0] > regime[0], abs(other[0] - regime[0])))

    def _fit(self, blocks: Iterable[int], exponent: float) -> dict[tuple[int, int], Curve]:
        found: dict[tuple[int, int], list[tuple[float, float, float]]] = defaultdict(list)
        for block in blocks:
            off = math.log(self._prior.off_ratio) if block == OFF else 0.0
            for point in self._by_block[block]:
                log_s = math.log(point.seconds) - exponent * math.log(point.concurrency) - off
                found[self._limits.regime(block, point.concurrency)].append((point.tokens, log_s, point.weight))
        return {regime: Curve(points, self._prior.knee_tokens) for regime, points in found.items()}

    def _compare(self) -> float:
        """Returns e by ridge regression over all T at which two blocks have data."""
        above = below = 0.0
        alone = {block: self._fit([block], 0.0) for block in self._drafting}
        for small in self._drafting:
            for large in (block for block in self._drafting if block > small):
                distance = math.log(large / small)
                for point in self._by_block[small]:
                    curve = alone[large].get(self._limits.regime(small, point.concurrency))
                    if curve is None or curve.distance(point.tokens) > 0:
                        continue
                    above += distance * (math.log(point.seconds) - curve.at(point.tokens))
                    below += distance * distance
        ridge = 2 * NOISE_SIGMA**2 / EXPONENT_SIGMA**2
        return above / (below + ridge)

    def _misses(self, block: int) -> Residuals:
        return Residuals(
            (point.concurrency, math.log(point.seconds) - self._law(block, point.concurrency), point.weight)
            for point in self._by_block[block]
        )

    def _measured_sigma(self, block: int, concurrency: float) -> float:
        seen = self._loads.get((block, self._limits.regime(block, concurrency)))
        if not seen:
            return math.inf
        right = bisect_left(seen, concurrency)
        away = min(abs(math.log2(concurrency / place)) for place in seen[max(0, right - 1) : right + 1])
        inside = seen[0] <= concurrency <= seen[-1]
        return math.hypot(NOISE_SIGMA, BEYOND_SIGMA * max(0.0, away - GAP_DOUBLINGS / 2 if inside else away))

    def _law_sigma(self, block: int, concurrency: float) -> float:
        regime = self._limits.regime(block, concurrency)
        known = self._nearest(regime)
        sigma = math.hypot(BEYOND_SIGMA * self._curves[known].distance(block * concurrency), 0.0 if known == regime else REGIME_SIGMA)
        if block == OFF or not self._drafting:
            return math.hypot(sigma, OFF_SIGMA)
        doublings = min((math.log2(block / seen) for seen in self._drafting), key=abs)
        return math.hypot(sigma, NOISE_SIGMA, (LAW_UP_SIGMA if doublings > 0 else LAW_DOWN_SIGMA) * math.sqrt(abs(doublings)))


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
        right = bisect_left(places, concurrency)
        share = math.log(concurrency / places[right - 1]) / math.log(places[right] / places[right - 1])
        return values[right - 1] + (values[right] - values[right - 1]) * share

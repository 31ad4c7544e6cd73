"""Predicts the step time by block size and concurrency from the block sizes that ran.

A step verifies T = B · c tokens. For dense targets and mixtures of experts its time is nearly a function of T alone. The published tables
of SGLang on B200 and measurements on an H100 with vLLM and SGLang agree that at equal T, block 8 at twice the concurrency takes 3 % less
to 15 % more time than block 16. So load that varies at one block size shows the step time of every other without a trial. With vLLM and
hybrid targets a part of the step goes with B alone, whatever the load (about 0.45 ms per position of a 9B on an H100), and prefill adds
time per request. So s = f(T) · c**e + g · B + h · c (``law``, ``price``). Until two block sizes were observed, g and h are the prior's, and
their uncertainty is part of every prediction.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from dflash_controller.tuner.curve import GAP_DOUBLINGS
from dflash_controller.tuner.estimate import Estimate
from dflash_controller.tuner.law import OFF, Law, Price
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.price import prices
from dflash_controller.tuner.step_prior import Limits, StepPrior

__all__ = ["OFF", "Limits", "StepPrior", "StepTimes"]

NOISE_SIGMA = 0.03
"""Uncertainty of a measured step time from one day to the next."""
PRIOR_POINT_SIGMA = 0.05
"""The same for one measured with other prompts, or by another deployment."""
LAW_DOWN_SIGMA, LAW_UP_SIGMA = 0.065, 0.09
"""Uncertainty of the law for a block half, or twice, as large as the nearest that ran; grows with the square root of the doublings."""
AWAY_SIGMA = 0.10
"""Uncertainty per doubling of concurrency beyond the data of a measured block."""
OFF_SIGMA = 0.20
"""Uncertainty of the step time without drafter relative to the curve, over 54 published table cells with priors of other targets."""
REGIME_SIGMA = 0.30
"""Uncertainty without data on this side of a limit: beyond a limit of graph capture, step times rose by 20 to 40 % on an H100."""


class StepTimes:
    """Seconds per verify step of one replica."""

    def __init__(self, points: Iterable[StepPoint], prior: StepPrior, limits: Limits | None = None) -> None:
        """Raises ValueError without points. With data for speculation off only, the curve is inferred from that."""
        self._limits = limits or Limits()
        self._prior = prior
        by_block: dict[int, list[StepPoint]] = defaultdict(list)
        for point in points:
            by_block[point.block].append(point)
        if not by_block:
            raise ValueError("no step time was measured")
        self._by_block = by_block
        self._drafting = sorted(block for block in by_block if block != OFF)
        self._own = [block for block in self._drafting if not all(point.prior for point in by_block[block])]
        self._seen: dict[tuple[int, tuple[int, int]], list[tuple[float, bool]]] = defaultdict(list)
        for point in sorted((p for found in by_block.values() for p in found), key=lambda point: point.concurrency):
            self._seen[point.block, self._limits.regime(point.block, point.concurrency)].append((point.concurrency, point.prior))
        self._prices = prices(by_block, prior, self._limits)
        self._law = self._under(self._prices.price)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Block sizes with data."""
        return tuple(sorted(self._by_block))

    @property
    def loads(self) -> int:
        """Number of different concurrencies with data; with 1, the whole curve is the prior's shape."""
        return len({concurrency for seen in self._seen.values() for concurrency, _ in seen})

    @property
    def exponent(self) -> float:
        """The exponent e of the law; 0 until two block sizes have data."""
        return self._prices.price.exponent

    @property
    def position_s(self) -> float:
        """Seconds that each position of a block adds whatever the load (g of the law)."""
        return self._prices.price.position_s

    def at(self, block: int, concurrency: float) -> Estimate:
        """Returns the step time in seconds with its uncertainty. Raises ValueError if block or concurrency is not positive."""
        if not (block > 0 and concurrency > 0):
            raise ValueError(f"block {block} at concurrency {concurrency}")
        sigma = min(self._measured_sigma(block, concurrency), self._law_sigma(block, concurrency))
        return Estimate(self.seconds(block, concurrency), sigma)

    def seconds(self, block: int, concurrency: float) -> float:
        """Returns the step time in seconds, without the uncertainty."""
        return math.exp(self._law.log_s(block, concurrency))

    def _under(self, price: Price) -> Law:
        return Law(self._by_block, self._prior, self._limits, price)

    @cached_property
    def _arounds(self) -> tuple[tuple[Law, Law] | None, tuple[Law, Law] | None]:
        """Laws around the price of a position and around that of a request. Only the uncertainty needs them."""
        prices = self._prices
        return (
            self._around(Price(position_s=math.sqrt(prices.position_variance))),
            self._around(Price(request_s=math.sqrt(prices.request_variance))),
        )

    def _around(self, sigma: Price) -> tuple[Law, Law] | None:
        """Returns the laws under prices a standard deviation lower and higher; None if the deviation is 0."""
        if sigma == Price():
            return None
        mean, most = self._prices.price, self._prices.most
        low, high = (
            Price(
                max(0.0, min(most.position_s, mean.position_s + step * sigma.position_s)),
                max(0.0, min(most.request_s, mean.request_s + step * sigma.request_s)),
                mean.exponent,
            )
            for step in (-1, 1)
        )
        return self._under(low), self._under(high)

    def _price_sigma(self, block: int, concurrency: float) -> float:
        """Returns the uncertainty of log s from that of the prices."""
        position, request = (
            (around[1].log_s(block, concurrency) - around[0].log_s(block, concurrency)) / 2 if around else 0.0 for around in self._arounds
        )
        both = 0.0
        if position and request:
            scale = math.sqrt(self._prices.position_variance * self._prices.request_variance)
            both = 2 * position * request * self._prices.covariance / scale
        return math.sqrt(max(0.0, position**2 + request**2 + both))

    def _measured_sigma(self, block: int, concurrency: float) -> float:
        seen = self._seen.get((block, self._limits.regime(block, concurrency)))
        if not seen:
            return math.inf
        own = [place for place, prior in seen if not prior]
        sigmas = [math.hypot(PRIOR_POINT_SIGMA, AWAY_SIGMA * _away([place for place, _ in seen], concurrency))]
        if own:
            sigmas.append(math.hypot(NOISE_SIGMA, AWAY_SIGMA * _away(own, concurrency)))
        return min(sigmas)

    def _law_sigma(self, block: int, concurrency: float) -> float:
        curve, own_side = self._law.curve(block, concurrency)
        sigma = math.hypot(curve.beyond_sigma(block * concurrency), 0.0 if own_side else REGIME_SIGMA)
        sigma = math.hypot(sigma, self._price_sigma(block, concurrency))
        if block == OFF or not self._drafting:
            return math.hypot(sigma, OFF_SIGMA)
        doublings = min((math.log2(block / seen) for seen in self._own or self._drafting), key=abs)
        law = self._prior.spread * (LAW_UP_SIGMA if doublings > 0 else LAW_DOWN_SIGMA) * math.sqrt(abs(doublings))
        return math.hypot(sigma, NOISE_SIGMA if self._own else PRIOR_POINT_SIGMA, law)


def _away(seen: list[float], concurrency: float) -> float:
    """Returns how far, in doublings, a load is outside ascending measured ones, or inside a gap of theirs too wide for a chord."""
    right = bisect_left(seen, concurrency)
    away = min(abs(math.log2(concurrency / place)) for place in seen[max(0, right - 1) : right + 1])
    inside = seen[0] <= concurrency <= seen[-1]
    return max(0.0, away - GAP_DOUBLINGS / 2) if inside else away

"""A curve that never falls, through points in logarithmic scales."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

from dflash_controller.tuner.shape import log_cost

GAP_DOUBLINGS = 1.5
"""Widest gap, in doublings of T, that a chord between neighbouring points bridges."""
FLAT = 32
"""Below the knee ÷ this, computation is at most 3 % of a step and adds no uncertainty."""
END_DOUBLINGS = 1.0
"""Minimum distance, in doublings, over which the slope at an end is taken; between closer points it would be noise."""
BEYOND_SIGMA = 0.10
"""Uncertainty (log s) per doubling of T inside a wide gap, and the least above the data."""
SHAPE_SIGMA = 0.35
"""Uncertainty of the prior's shape, relative to its rise, where one load alone was seen: above the knee, half as many tokens may take half
the time or the same."""
ROOFLINE_START = 100.0
"""Tokens below which no step is bound by computation: the least knee over the tables is 106."""
BOUND_SIGMAS = 2.0
"""Above the data the own slope and the roofline's are the bounds of 95 % of the step times: the farther one is two sigma away."""


class Curve:
    """log s over T. The nodes are the points after isotonic regression: a larger step cannot be faster, so a decrease is noise."""

    def __init__(
        self, points: Iterable[tuple[float, float, float]], knee: float, end_weight: float = 0.5, below_sigma: float = BEYOND_SIGMA
    ) -> None:
        """``points`` are (T, log s, weight), at least one; ``knee`` is that of the prior's shape (see ``shape``).

        ``end_weight`` is the share of the own slope above the data, ``below_sigma`` the uncertainty per doubling below them. Raises
        ValueError without points.
        """
        merged: dict[float, tuple[float, float]] = {}
        for tokens, log_s, weight in points:
            total, mean = merged.get(tokens, (0.0, 0.0))
            merged[tokens] = (total + weight, mean + (log_s - mean) * weight / (total + weight))
        if not merged:
            raise ValueError("a curve needs a point")
        self.tokens = sorted(merged)
        self.logs = _never_falling([(merged[tokens][1], merged[tokens][0]) for tokens in self.tokens])
        self._knee = knee
        self._end_weight = end_weight
        self._below_sigma = below_sigma

    def at(self, tokens: float) -> float:
        """Returns log s at T = ``tokens``.

        Between nodes it follows the chord. Where nodes are far apart it takes the mean of the chord and of a straight line in T and s: the
        chord lies above the prior's shape, the line below what mixtures of experts show. Below the data the slope is the mean of the
        curve's own and of the prior's shape, above them their mean with ``end_weight``: memory-bound steps hardly rise up to the knee, so
        the own slope says little of what is beyond.
        """
        xs, ys = self.tokens, self.logs
        if tokens <= xs[0]:
            return ys[0] + self._beyond(xs[0], tokens, self._end_slope(0), 0.5)
        if tokens >= xs[-1]:
            return ys[-1] + self._beyond(xs[-1], tokens, self._end_slope(-1), self._end_weight)
        right = bisect_left(xs, tokens)
        x0, x1, y0, y1 = xs[right - 1], xs[right], ys[right - 1], ys[right]
        chord = y0 + (y1 - y0) * math.log(tokens / x0) / math.log(x1 / x0)
        if math.log2(x1 / x0) <= GAP_DOUBLINGS:
            return chord
        return (chord + y0 + math.log1p(math.expm1(y1 - y0) * (tokens - x0) / (x1 - x0))) / 2

    def distance(self, tokens: float) -> float:
        """Returns how far, in doublings, T lies outside the data: beyond the nearest end, or inside a gap too wide for a chord."""
        xs = self.tokens
        if tokens >= xs[-1]:
            return math.log2(tokens / xs[-1])
        if tokens <= xs[0]:
            return max(0.0, math.log2(xs[0] / max(tokens, self._knee / FLAT)))
        right = bisect_left(xs, tokens)
        return max(0.0, math.log2(min(tokens / xs[right - 1], xs[right] / tokens)) - GAP_DOUBLINGS / 2)

    def beyond_sigma(self, tokens: float) -> float:
        """Returns the uncertainty of log s from the distance to the data; 0 inside them.

        Above the data: the own end slope is a lower bound, the roofline (time in proportion to T, from ``ROOFLINE_START``) an upper one.
        """
        end = self.tokens[-1]
        if tokens < self.tokens[0]:
            shape = 0.0
            if self._end_slope(0) is None:
                shape = SHAPE_SIGMA * (log_cost(self.tokens[0], self._knee) - log_cost(tokens, self._knee))
            return max(shape, self._below_sigma * self.distance(tokens))
        if tokens <= end:
            return BEYOND_SIGMA * self.distance(tokens)
        rise = self.at(tokens) - self.logs[-1]
        own = (self._end_slope(-1) or 0.0) * math.log(tokens / end)
        roofline = max(0.0, math.log(tokens / max(end, ROOFLINE_START)))
        return max(abs(roofline - rise) / BOUND_SIGMAS, abs(rise - own) / BOUND_SIGMAS, BEYOND_SIGMA * math.log2(tokens / end))

    def _beyond(self, end: float, tokens: float, own: float | None, weight: float) -> float:
        usual = log_cost(tokens, self._knee) - log_cost(end, self._knee)
        return usual if own is None else weight * own * math.log(tokens / end) + (1 - weight) * usual

    def _end_slope(self, end: int) -> float | None:
        """Returns the slope at an end, at most 1; None if all nodes are close together.

        Computation grows in proportion to tokens. A steeper rise is a jump, which does not continue.
        """
        x, y = self.tokens[end], self.logs[end]
        others = list(zip(self.tokens, self.logs, strict=True))
        if end == -1:
            others.reverse()
        far = next((node for node in others[1:] if abs(math.log2(node[0] / x)) >= END_DOUBLINGS), None)
        return None if far is None else min(1.0, (far[1] - y) / math.log(far[0] / x))


def _never_falling(values: list[tuple[float, float]]) -> list[float]:
    """Returns the closest non-decreasing sequence by weighted least squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in values:
        size = 1
        while blocks and blocks[-1][0] > value:
            before, mass, count = blocks.pop()
            value, weight, size = (value * weight + before * mass) / (weight + mass), weight + mass, size + count
        blocks.append((value, weight, size))
    return [value for value, _, size in blocks for _ in range(size)]

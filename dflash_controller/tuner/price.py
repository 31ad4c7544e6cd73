"""Finds what load at one block size cannot show: see ``Price``.

Prices show only where two block sizes were measured at equal T. Until then they are the prior's, with its uncertainty.
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
"""Greatest share of any measured step that a price can take."""
RISE_SIGMA = 0.03
"""How much longer than measured a step may be where the rise of one block's step times bounds the price of a request."""

Vector = tuple[float, float, float]
"""Of exponent, seconds per position, and seconds per request."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The posterior: its mean, and the covariance of seconds per position and per request."""

    price: Price
    position_variance: float
    request_variance: float
    covariance: float
    most: Price
    """Upper bounds that the measured steps set."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Two block sizes at equal T: log s of the smaller less that of the larger, and its derivatives by the three prices."""

    log_apart: float
    slopes: Vector
    tokens: float


def prices(by_block: Mapping[int, Sequence[StepPoint]], prior: StepPrior, limits: Limits) -> Prices:
    """Returns the posterior by linear regression with the prior's normal distributions. Negative prices are taken as 0."""
    means, sigmas = _prior_prices(by_block, prior)
    found = _comparisons(by_block, prior, limits)
    # Comparisons at nearly the same T repeat one deviation from the law, so those of an octave of T count as one.
    octaves = Counter(round(math.log2(one.tokens)) for one in found)
    weights = [1 / (octaves[round(math.log2(one.tokens))] * COMPARED_SIGMA**2) for one in found]
    free = [place for place in range(3) if sigmas[place] > 0]
    values = list(means)
    while True:
        inverse = _inverse(
            [
                [
                    sum(w * one.slopes[row] * one.slopes[column] for w, one in zip(weights, found, strict=True))
                    + (1 / sigmas[row] ** 2 if row == column else 0.0)
                    for column in free
                ]
                for row in free
            ]
        )
        rest = [one.log_apart - sum(one.slopes[place] * values[place] for place in range(3) if place not in free) for one in found]
        right = [
            means[row] / sigmas[row] ** 2 + sum(w * one.slopes[row] * apart for w, one, apart in zip(weights, found, rest, strict=True))
            for row in free
        ]
        for place, row in enumerate(free):
            values[row] = sum(inverse[place][column] * right[column] for column in range(len(free)))
        below = [place for place in free if place > 0 and values[place] < 0]
        if not below:
            break
        # Without new measurements the price may be above 0 by as much as before, so its variance is the prior's.
        values[below[0]] = 0.0
        free = [place for place in free if place != below[0]]
    most = _most(by_block)
    price = Price(min(values[1], most.position_s), min(values[2], most.request_s), values[0] if found else 0.0)
    known = {row: {column: inverse[i][j] for j, column in enumerate(free)} for i, row in enumerate(free)}
    variances = [known.get(place, {}).get(place, sigmas[place] ** 2) for place in (1, 2)]
    return Prices(price, variances[0], variances[1], known.get(1, {}).get(2, 0.0), most)


def _prior_prices(by_block: Mapping[int, Sequence[StepPoint]], prior: StepPrior) -> tuple[Vector, Vector]:
    """Returns means and standard deviations in seconds, scaled from the measured step with the fewest tokens."""
    drafting = [point for block, points in by_block.items() if block != OFF for point in points]
    if drafting:
        least = min(drafting, key=lambda point: (point.tokens, point.block))
        seconds, block = least.seconds, least.block
    else:
        least = min(by_block[OFF], key=lambda point: point.tokens)
        seconds, block = least.seconds / prior.off_ratio, 0
    plain, load = 1 + least.tokens / prior.knee_tokens, least.concurrency
    whole = plain + prior.position_share * block + prior.request_share * load
    empty_s = seconds / whole
    position, request = (1 - prior.position_share * block / whole), (1 - prior.request_share * load / whole)
    return (
        (0.0, prior.position_share * empty_s, prior.request_share * empty_s),
        (EXPONENT_SIGMA, prior.position_sigma * empty_s * position, prior.request_sigma * empty_s * request),
    )


def _most(by_block: Mapping[int, Sequence[StepPoint]]) -> Price:
    """Returns upper bounds of the prices.

    A step is not shorter than its prices. At one block size it rises with each request by the price of one at least, because f never falls.
    """
    drafting = [point for block, points in by_block.items() if block != OFF for point in points] or list(by_block[OFF])
    position_s = min(MOST_SHARE * point.seconds / point.block for point in drafting)
    request_s = min(MOST_SHARE * point.seconds / point.concurrency for point in drafting)
    for points in by_block.values():
        for few in points:
            for many in points:
                if many.concurrency >= 2 * few.concurrency:
                    rise_s = many.seconds * (1 + RISE_SIGMA) - few.seconds
                    request_s = min(request_s, max(0.0, rise_s) / (many.concurrency - few.concurrency))
    return Price(position_s, request_s)


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
                fewer = point.concurrency - point.tokens / large
                slopes = (math.log(large / small), (small - large) / between_s, fewer / between_s)
                found.append(_Comparison(log_s - log_large, slopes, point.tokens))
    return found


def _inverse(matrix: list[list[float]]) -> list[list[float]]:
    """Returns the inverse of a positive definite matrix, by Gauss-Jordan elimination."""
    size = len(matrix)
    rows = [[*row, *(float(place == column) for column in range(size))] for place, row in enumerate(matrix)]
    for place in range(size):
        pivot = rows[place][place]
        rows[place] = [value / pivot for value in rows[place]]
        for other in range(size):
            if other != place:
                factor = rows[other][place]
                rows[other] = [value - factor * own for value, own in zip(rows[other], rows[place], strict=True)]
    return [row[size:] for row in rows]

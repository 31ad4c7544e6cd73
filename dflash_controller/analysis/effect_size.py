"""How far the candidate is from stable in one quotient of counters, and how well that is known.

Everything is in logarithms: equal steps are equal percentages, and the quotient of two sides becomes a difference. A pooled quotient
Σ numerator ÷ Σ denominator has, to first order, the error Σ (numerator_b ÷ Σ numerator − denominator_b ÷ Σ denominator) over blocks
(ratio linearisation, Cochran 1977, ch. 6), so its variance is that of a sum over blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul

from dflash_controller.analysis.blocks import LEAST_BLOCKS, Counts, Side
from dflash_controller.analysis.confidence import chi_square_quantile

Part = Callable[[Counts], float | None]


@dataclass(frozen=True, slots=True)
class Batch:
    """What makes steps dearer: compare at an equal batch."""

    log_batch: Part
    steps: Part
    """Step time is the quotient's denominator ÷ ``steps``."""


_PER_POD = 4
"""Blocks a pod needs to say something of its own."""
_SURE = 0.975
_LAGS = ((1, 2 / 3), (2, 1 / 3))
"""Neighbouring blocks resemble each other where a session outlasts a block and stays on one replica. Their covariance is added with
Bartlett's weights (Newey and West 1987), where it is positive: a negative one is chance."""
PRIOR_SLOPE, PRIOR_SPREAD = 0.3, 0.3
"""d log step time ÷ d log batch before anything is seen. It lies between 0 (the weights' transfer dominates) and 1 (arithmetic does);
published tables of these models on B200 give 0.1 from batch 1 to 8 and 0.4 to 0.7 from 8 to 32."""


@dataclass(frozen=True, slots=True)
class EffectSize:
    """``difference`` is log candidate − log stable. Variances are of the difference."""

    difference: float
    variance: float
    freedom: float
    """Degrees of freedom of ``variance``."""
    bias: float
    """Standard deviation of what replicas of one revision add to the difference. It does not shrink with more samples."""
    bias_at_least: float
    """The same, 97.5 % sure: with two pods seen, one degree of freedom, ``bias`` itself may be several times too large by chance."""


@dataclass(frozen=True, slots=True)
class _Level:
    """One side: log of the quotient."""

    value: float
    variance: float
    freedom: float
    pods: tuple[tuple[float, float, int], ...]
    """Value, share of the side's denominator and number of blocks, by pod."""


def effect_size(candidate: Side, stable: Side, above: Part, below: Part, unseen: float, batch: Batch | None = None) -> EffectSize | None:
    """``above`` ÷ ``below``, candidate against stable. None below 8 blocks on a side, or where the counters are not exported.

    ``unseen``: standard deviation between replicas of one revision that is taken where no revision has two pods to see it from.
    ``batch``: compare at equal batch; ``below`` is then a time that grows with it.
    """
    price = _BatchEffect(0.0, 0.0) if batch is None else _price((candidate, stable), below, batch)
    new, old = (_level(side, above, below, batch, price.slope) for side in (candidate, stable))
    if new is None or old is None:
        return None
    apart = 0.0
    if batch is not None:
        apart = _mean_batch(candidate, below, batch) - _mean_batch(stable, below, batch)
    bias, at_least = _between((new, old), unseen)
    spread = math.sqrt(sum(share * share for level in (new, old) for _, share, _ in level.pods))
    variance = new.variance + old.variance
    freedom = variance**2 / (new.variance**2 / new.freedom + old.variance**2 / old.freedom) if variance > 0 else new.freedom
    return EffectSize(new.value - old.value, variance + apart * apart * price.variance, freedom, bias * spread, at_least * spread)


def _level(side: Side, above: Part, below: Part, batch: Batch | None, slope: float) -> _Level | None:
    """Residuals are taken around each pod's own quotient, so what pods differ by does not enter twice; with few blocks per pod around
    the common one, as a pod's own would then explain too much."""
    pods = [found for _, blocks in side.blocks if (found := _rows(blocks, above, below, batch))]
    count = sum(map(len, pods))
    if count < LEAST_BLOCKS:
        return None
    total_above, total_below = (sum(row[i] for rows in pods for row in rows) for i in (0, 1))
    mean_batch = sum(row[1] * row[2] for rows in pods for row in rows) / total_below
    own = count >= _PER_POD * len(pods)
    squares = alike = 0.0
    levels = []
    for rows in pods:
        pod_above, pod_below = sum(row[0] for row in rows), sum(row[1] for row in rows)
        pod_batch = sum(row[1] * row[2] for row in rows) / pod_below
        quotient = (pod_above / pod_below) if own else total_above / total_below
        centre = pod_batch if own else mean_batch
        residuals = [
            (over - quotient * under) / total_above + slope * (log_batch - centre) * under / total_below for over, under, log_batch in rows
        ]
        squares += sum(residual * residual for residual in residuals)
        for lag, weight in _LAGS:
            alike += 2 * weight * sum(map(mul, residuals, residuals[lag:]))
        levels.append((math.log(pod_above / pod_below) + slope * pod_batch, pod_below / total_below, len(rows)))
    freedom = count - (len(pods) if own else 1)
    value = math.log(total_above / total_below) + slope * mean_batch
    return _Level(value, (squares + max(0.0, alike)) * count / freedom, freedom, tuple(levels))


def _rows(blocks: Sequence[Counts], above: Part, below: Part, batch: Batch | None) -> list[tuple[float, float, float]]:
    """Numerator, denominator and log batch of the blocks that have all of them."""
    rows = []
    for block in blocks:
        over, under, log_batch = above(block), below(block), 0.0 if batch is None else batch.log_batch(block)
        if over is not None and under is not None and log_batch is not None and over > 0 and under > 0:
            rows.append((over, under, log_batch))
    return rows


def _mean_batch(side: Side, below: Part, batch: Batch) -> float:
    rows = [row for _, blocks in side.blocks for row in _rows(blocks, below, below, batch)]
    return sum(under * log_batch for _, under, log_batch in rows) / sum(under for _, under, _ in rows)


@dataclass(frozen=True, slots=True)
class _BatchEffect:
    slope: float
    variance: float


def _price(sides: Sequence[Side], below: Part, batch: Batch) -> _BatchEffect:
    """Slope of log step time over log batch, common to both sides and with an intercept per pod.

    What is seen is weighed against the prior by precision (conjugate normal regression), so the prior stands where the batch hardly
    varies. The slope is kept within 0 ... 1.
    """
    xx = xy = yy = 0.0
    count = 0
    for side in sides:
        for _, blocks in side.blocks:
            rows = _rows(blocks, batch.steps, below, batch)
            if len(rows) < _PER_POD:
                continue
            points = [(log_batch, math.log(under / steps)) for steps, under, log_batch in rows]
            middle_x, middle_y = (sum(point[i] for point in points) / len(points) for i in (0, 1))
            xx += sum((x - middle_x) ** 2 for x, _ in points)
            xy += sum((x - middle_x) * (y - middle_y) for x, y in points)
            yy += sum((y - middle_y) ** 2 for _, y in points)
            count += len(points) - 1
    prior = 1 / PRIOR_SPREAD**2
    if count < _PER_POD or xx <= 0 or yy <= 0:
        return _BatchEffect(PRIOR_SLOPE, 1 / prior)
    noise = max((yy - xy * xy / xx) / max(1, count - 1), 1e-8)
    precision = xx / noise + prior
    slope = (xy / noise + prior * PRIOR_SLOPE) / precision
    return _BatchEffect(min(1.0, max(0.0, slope)), 1 / precision)


def _between(levels: Sequence[_Level], unseen: float) -> tuple[float, float]:
    """Standard deviation between replicas of one revision: the estimate, and a lower bound.

    What pods differ by beyond their sampling error (method of moments, DerSimonian and Laird 1986, floored at 0), pooled over the sides.
    With one degree of freedom the estimate is 0 most of the time where replicas are alike, and otherwise of the size of the sampling
    error of one pod, so it fades as samples come; it is taken as it is. Where no side has two pods nothing can be seen.
    """
    squares = expected = freedom = 0.0
    for level in levels:
        pods = [(value, level.variance / share) for value, share, blocks in level.pods if blocks >= _PER_POD]
        if len(pods) < 2:
            continue
        middle = sum(value for value, _ in pods) / len(pods)
        squares += sum((value - middle) ** 2 for value, _ in pods)
        expected += (len(pods) - 1) * sum(variance for _, variance in pods) / len(pods)
        freedom += len(pods) - 1
    if freedom == 0:
        return unseen, unseen
    least = squares / chi_square_quantile(_SURE, freedom) - expected / freedom
    return math.sqrt(max(0.0, (squares - expected) / freedom)), math.sqrt(max(0.0, least))

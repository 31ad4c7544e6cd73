"""The difference between candidate and stable in one quotient of counters, and its uncertainty.

All values are logarithms: equal steps are equal percentages, and the quotient of two sides becomes a difference. To first order a pooled
quotient Σ numerator ÷ Σ denominator has the error Σ (numerator_b ÷ Σ numerator − denominator_b ÷ Σ denominator) over blocks (ratio
linearisation, Cochran 1977, ch. 6). Its variance is therefore that of a sum over blocks.
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
    """The batch, which raises the step time. Sides are compared at an equal batch."""

    log_batch: Part
    steps: Part
    """Number of steps. The step time is the quotient's denominator ÷ ``steps``."""


_PER_POD = 4
"""Minimum blocks for a value of a single pod."""
_SURE = 0.975
MOST_LAGS = 8
"""Maximum distance of two blocks, in blocks, at which their correlation is counted."""
PRIOR_SLOPE, PRIOR_SPREAD = 0.3, 0.3
"""Mean and standard deviation of the prior for d log step time ÷ d log batch. The slope lies between 0 (the transfer of the weights
dominates) and 1 (arithmetic dominates). Published tables of these models on B200 give 0.1 from batch 1 to 8 and 0.4 to 0.7 from 8 to 32."""


@dataclass(frozen=True, slots=True)
class EffectSize:
    """The difference log candidate − log stable, with its uncertainty. Variances are of this difference."""

    difference: float
    variance: float
    freedom: float
    """Degrees of freedom of ``variance``."""
    bias: float
    """Standard deviation that replicas of one revision add to the difference. It does not shrink with more samples."""
    bias_at_least: float
    """Lower bound of ``bias``, 97.5 % sure. With two pods there is one degree of freedom, so ``bias`` may be several times too large by
    chance."""


@dataclass(frozen=True, slots=True)
class _Level:
    """The logarithm of one side's quotient."""

    value: float
    variance: float
    """Of ``value``, as if blocks were independent."""
    freedom: float
    pods: tuple[tuple[float, float, int], ...]
    """Value, share of the side's denominator and number of blocks, by pod."""
    residuals: tuple[tuple[float, ...], ...]
    """Each block's share of the error of ``value``, by pod in order of time."""


def effect_size(candidate: Side, stable: Side, above: Part, below: Part, unseen: float, batch: Batch | None = None) -> EffectSize | None:
    """Returns ``above`` ÷ ``below``, candidate compared with stable; None below 8 blocks on a side or if the counters are not exported.

    ``unseen`` is the standard deviation between replicas of one revision. It is used if no revision has two pods to measure it.
    ``batch`` compares at an equal batch; ``below`` is then a time that grows with the batch.
    """
    price = _BatchEffect(0.0, 0.0) if batch is None else _price((candidate, stable), below, batch)
    new, old = (_level(side, above, below, batch, price.slope) for side in (candidate, stable))
    if new is None or old is None:
        return None
    apart = 0.0
    if batch is not None:
        apart = _mean_batch(candidate, below, batch) - _mean_batch(stable, below, batch)
    # Blocks that are alike are also worth fewer when the variance is estimated, so they cost degrees of freedom.
    dependence = design_effect((*new.residuals, *old.residuals))
    bias, at_least = _between((new, old), unseen, dependence)
    spread = math.sqrt(sum(share * share for level in (new, old) for _, share, _ in level.pods))
    variance = new.variance + old.variance
    freedom = variance**2 / (new.variance**2 / new.freedom + old.variance**2 / old.freedom) if variance > 0 else new.freedom
    total = variance * dependence + apart * apart * price.variance
    return EffectSize(new.value - old.value, total, freedom / dependence, bias * spread, at_least * spread)


def design_effect(pods: Sequence[Sequence[float]]) -> float:
    """Returns by how much the variance of a sum exceeds that of independent blocks (design effect, Kish 1965), 1 at least.

    Requests of a session are alike and stay on one replica, so neighbouring blocks of a pod are alike while a session outlasts a block. The
    design effect is 1 + 2 Σ ρ_k over the autocorrelations of ``pods``' residuals at lags k = 1, 2, … as long as they are positive (initial
    positive sequence, Geyer 1992). So a longer session counts with more lags, and a negative correlation, which is chance, with none.

    The correlation is caused by the traffic and not by the drafter. So it is pooled over all pods of both sides, because one pod has too
    few blocks. A mean that is taken from n blocks itself makes their autocorrelations too small by the design effect ÷ n (Marriott and Pope
    1954), so this is added in a second pass.
    """
    known = [
        (residuals, square) for residuals in pods if len(residuals) >= _PER_POD and (square := sum(map(mul, residuals, residuals))) > 0
    ]
    effect = 0.0
    for _ in range(2):
        effect = _from_autocorrelations(known, effect)
    return effect


def _from_autocorrelations(pods: Sequence[tuple[Sequence[float], float]], lost: float) -> float:
    """Returns 1 + 2 Σ ρ_k of residuals and their sums of squares by pod. ``lost`` ÷ n is added to each autocorrelation of n blocks."""
    count = sum(len(residuals) for residuals, _ in pods)
    correlations = 0.0
    for lag in range(1, MOST_LAGS + 1):
        alike = sum(len(r) * sum(map(mul, r, r[lag:])) / square + lost for r, square in pods if len(r) > lag)
        if alike <= 0:
            break
        correlations += alike / count
    return 1 + 2 * correlations


def _level(side: Side, above: Part, below: Part, batch: Batch | None, slope: float) -> _Level | None:
    """Returns the level of one side.

    Residuals are taken around each pod's own quotient, so differences between pods are not counted twice. With few blocks per pod they are
    taken around the common quotient, because a pod's own quotient would then explain too much.
    """
    pods = [found for _, blocks in side.blocks if (found := _rows(blocks, above, below, batch))]
    count = sum(map(len, pods))
    if count < LEAST_BLOCKS:
        return None
    total_above, total_below = (sum(row[i] for rows in pods for row in rows) for i in (0, 1))
    mean_batch = sum(row[1] * row[2] for rows in pods for row in rows) / total_below
    own = count >= _PER_POD * len(pods)
    levels, errors = [], []
    for rows in pods:
        pod_above, pod_below = sum(row[0] for row in rows), sum(row[1] for row in rows)
        pod_batch = sum(row[1] * row[2] for row in rows) / pod_below
        quotient = (pod_above / pod_below) if own else total_above / total_below
        centre = pod_batch if own else mean_batch
        residuals = tuple(
            (over - quotient * under) / total_above + slope * (log_batch - centre) * under / total_below for over, under, log_batch in rows
        )
        errors.append(residuals)
        levels.append((math.log(pod_above / pod_below) + slope * pod_batch, pod_below / total_below, len(rows)))
    freedom = count - (len(pods) if own else 1)
    squares = sum(residual * residual for residuals in errors for residual in residuals)
    value = math.log(total_above / total_below) + slope * mean_batch
    return _Level(value, squares * count / freedom, freedom, tuple(levels), tuple(errors))


def _rows(blocks: Sequence[Counts], above: Part, below: Part, batch: Batch | None) -> list[tuple[float, float, float]]:
    """Returns numerator, denominator and log batch of the blocks that have all three."""
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
    """Returns the slope of log step time over log batch, common to both sides, with an intercept per pod.

    The measured slope is weighed against the prior by precision (conjugate normal regression), so the prior decides if the batch hardly
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


def _between(levels: Sequence[_Level], unseen: float, dependence: float) -> tuple[float, float]:
    """Returns the standard deviation between replicas of one revision: the estimate and a lower bound.

    It is the difference between pods beyond their sampling error (method of moments, DerSimonian and Laird 1986, floored at 0), pooled over
    the sides. With one degree of freedom the estimate is mostly 0 if replicas are alike, and otherwise about as large as the sampling error
    of one pod. It fades with more samples, so it is used without correction. If no side has two pods, ``unseen`` is used.
    """
    squares = expected = freedom = 0.0
    for level in levels:
        pods = [(value, level.variance * dependence / share) for value, share, blocks in level.pods if blocks >= _PER_POD]
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

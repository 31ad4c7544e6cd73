"""Bounds that may be evaluated as often as needed.

A test that is repeated every minute at a fixed level errs far more often than its level, because every evaluation is another chance to err.
The bounds here are time-uniform: with the stated probability they hold at all evaluations together. A decision may therefore be taken at
the first evaluation that allows it.

Source: Robbins 1970; Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021, eq. 14
(one-sided normal mixture). Its use with an estimated variance is the asymptotic confidence sequence of Waudby-Smith et al. 2024.
"""

from __future__ import annotations

import math
from statistics import NormalDist

_NORMAL = NormalDist()


def normal_deviate(alpha: float) -> float:
    """Returns the deviate that a standard normal variable exceeds with probability ``alpha``."""
    return -_NORMAL.inv_cdf(alpha)


def student_deviate(z: float, freedom: float) -> float:
    """Returns the deviate of Student's t that is as improbable as ``z`` of the normal distribution.

    A standard error estimated from few blocks is too small about half of the time, and repeated evaluations would find such a moment. The
    Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5) is within 1 % from 5 degrees of freedom for ``z`` up to 3; beyond that it is too
    high.
    """
    z2 = z * z
    first = (z2 + 1) * z / 4
    second = ((5 * z2 + 16) * z2 + 3) * z / 96
    third = (((3 * z2 + 19) * z2 + 17) * z2 - 15) * z / 384
    return z + (first + (second + third / freedom) / freedom) / freedom


def mixture_deviate(error: float, tightest_at: float, alpha: float) -> float:
    """Returns the distance of a one-sided time-uniform bound from the estimate, in standard errors ``error``.

    The bound is exceeded at any time with probability ``alpha`` at most. ``tightest_at`` is the standard error at which the bound costs
    least, in the unit of ``error``. A mixture needs to know when the decision is likely to fall; it is little wider a factor of 3 to either
    side. With information v = 1 / error²: sqrt(2 (v + m) / v · ln(1 + sqrt((v + m) / m) / 2 alpha)), where m is chosen by eq. 16 ibid.
    """
    information = 1 / (error * error)
    log = 2 * math.log(1 / alpha)
    mixed = 1 / (tightest_at * tightest_at) / (log + math.log1p(log))
    ratio = (information + mixed) / mixed
    return math.sqrt(2 * (information + mixed) / information * math.log1p(math.sqrt(ratio) / (2 * alpha)))


def radius(error: float, freedom: float, tightest_at: float, alpha: float, bias: float = 0.0, bias_alpha: float | None = None) -> float:
    """Returns the distance of a one-sided time-uniform bound from the estimate.

    ``error`` is the current standard error of the estimate, from ``freedom`` degrees of freedom. ``bias`` is the standard deviation of an
    error that is drawn once and does not shrink with more samples. It is the same at every evaluation, so it needs no time-uniform deviate;
    it is independent of the sampling error, so it is added in quadrature. If it is the larger of the two, this alone would err up to twice
    as often as stated over all evaluations together, so ``alpha`` is then halved. Both were found by simulation and are checked by a test.
    ``bias_alpha`` is the level for ``bias``, if it is not ``alpha``.
    """
    alpha, bias_alpha = _levels(alpha, bias_alpha, error, bias)
    sampling = student_deviate(mixture_deviate(error, tightest_at, alpha), freedom) * error if error > 0 else 0.0
    return math.hypot(sampling, normal_deviate(bias_alpha) * bias)


def deadline_radius(
    error: float, freedom: float, alpha: float, elapsed_s: float, deadline_s: float, bias: float = 0.0, bias_alpha: float | None = None
) -> float:
    """Returns the distance of a one-sided bound from the estimate that holds at all evaluations until a deadline together.

    By the reflection principle a sum of independent errors exceeds c · sqrt(V) before its variance reaches V with the probability
    2 · P(normal > c). As a bound of the mean this is the boundary of O'Brien and Fleming (1979) in continuous time (Lan and DeMets 1983).
    It is wide early, and at the deadline little wider than that of a single test. The share of information is taken to be that of the time.
    After the deadline its probability is spent, and it is infinite. The other arguments are as for ``radius``.
    """
    if elapsed_s <= 0 or elapsed_s > deadline_s:
        return math.inf
    alpha, bias_alpha = _levels(alpha, bias_alpha, error, bias)
    deviate = normal_deviate(alpha / 2) * math.sqrt(deadline_s / elapsed_s)
    return math.hypot(student_deviate(deviate, freedom) * error, normal_deviate(bias_alpha) * bias)


def _levels(alpha: float, bias_alpha: float | None, error: float, bias: float) -> tuple[float, float]:
    """Returns the levels for the sampling error and for ``bias``, both halved if ``bias`` is the larger of the two (see ``radius``)."""
    divisor = 2 if bias > error else 1
    return alpha / divisor, (alpha if bias_alpha is None else bias_alpha) / divisor


def lasting_radius(alpha: float, bias: float) -> float:
    """Returns the limit of ``radius`` with endless samples."""
    return normal_deviate(alpha / 2) * bias


def chi_square_quantile(probability: float, freedom: float) -> float:
    """Returns a quantile of the chi-square distribution by Wilson and Hilferty's approximation, within 2 % at the probabilities used
    here."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + _NORMAL.inv_cdf(probability) * math.sqrt(part)) ** 3

"""The bounds hold at every look, by simulation."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from dflash_controller.analysis.confidence import (
    chi_square_quantile,
    deadline_radius,
    lasting_radius,
    mixture_deviate,
    normal_deviate,
    radius,
    student_deviate,
)
from dflash_controller.analysis.effect_size import EffectSize
from dflash_controller.analysis.primary import Levels

SCALE = 0.02


def _ever_above(alpha: float, walks: int, steps: int, bound: str, bias: float = 0.0) -> float:
    """Share of random walks whose mean is ever above its bound, looked at after every block."""
    chance = random.Random(11)
    limits = [math.inf, *(_limit(alpha, n, steps, bound, bias) for n in range(1, steps + 1))]
    crossed = 0
    for _ in range(walks):
        total = 0.0
        offset = bias * chance.gauss(0, 1)
        for n in range(1, steps + 1):
            total += chance.gauss(0, 0.1)
            if total / n + offset > limits[n]:
                crossed += 1
                break
    return crossed / walks


def _limit(alpha: float, n: int, steps: int, bound: str, bias: float) -> float:
    """The bound after n blocks."""
    error = 0.1 / math.sqrt(n)
    if bound == "fixed":
        return normal_deviate(alpha) * error
    uniform = radius(error, 1e9, SCALE, alpha, bias)
    return min(uniform, deadline_radius(error, 1e9, alpha / 2, n, steps, bias)) if bound == "both" else uniform


def test_a_time_uniform_bound_is_exceeded_at_any_look_no_more_often_than_stated() -> None:
    assert _ever_above(0.10, walks=1500, steps=300, bound="uniform") <= 0.10


def test_the_same_looks_at_a_fixed_level_err_several_times_more_often() -> None:
    assert _ever_above(0.10, walks=300, steps=300, bound="fixed") > 0.3


@pytest.mark.parametrize("bias", [0.005, 0.02, 0.1])
def test_an_error_drawn_once_is_covered_too(bias: float) -> None:
    assert _ever_above(0.10, walks=1500, steps=200, bound="uniform", bias=bias) <= 0.10


@pytest.mark.parametrize("bias", [0.0, 0.005, 0.02])
def test_with_the_bound_of_the_deadline_both_together_are_exceeded_no_more_often_than_stated(bias: float) -> None:
    assert _ever_above(0.10, walks=1500, steps=300, bound="both", bias=bias) <= 0.10


def test_at_the_deadline_little_more_is_asked_than_of_a_single_test() -> None:
    at_end, uniform = deadline_radius(0.01, 1e9, 0.05, 7200, 7200), radius(0.01, 1e9, SCALE, 0.10)
    assert at_end == pytest.approx(1.96 * 0.01, rel=1e-3)
    assert at_end < 0.85 * uniform
    assert deadline_radius(0.01, 1e9, 0.05, 1800, 7200) == pytest.approx(2 * at_end)
    assert deadline_radius(0.01, 1e9, 0.05, 7201, 7200) == math.inf, "its probability is spent"
    assert deadline_radius(0.01, 1e9, 0.05, 0, 7200) == math.inf


def test_the_bound_costs_least_near_the_scale_it_was_made_for() -> None:
    deviates = {at: mixture_deviate(SCALE, at, 0.05) for at in (SCALE / 10, SCALE, SCALE * 10)}
    assert deviates[SCALE] == min(deviates.values())
    assert deviates[SCALE] < 2.9
    assert normal_deviate(0.05) < deviates[SCALE]


def test_bias_does_not_shrink_with_samples() -> None:
    assert radius(1e-9, 50, SCALE, 0.10, bias=0.03) == pytest.approx(1.645 * 0.03, rel=1e-3)
    assert lasting_radius(0.10, 0.03) == pytest.approx(1.645 * 0.03, rel=1e-3)


@pytest.mark.parametrize(("z", "freedom", "expected"), [(1.645, 10, 1.812), (2.576, 10, 3.169), (1.96, 7, 2.365), (2.576, 30, 2.750)])
def test_few_blocks_widen_as_students_t_does(z: float, freedom: float, expected: float) -> None:
    assert student_deviate(z, freedom) == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(("probability", "freedom", "expected"), [(0.975, 1, 5.024), (0.975, 4, 11.143), (0.95, 2, 5.991)])
def test_chi_square_quantiles(probability: float, freedom: float, expected: float) -> None:
    assert chi_square_quantile(probability, freedom) == pytest.approx(expected, rel=0.02)


def _ever(exceeds: str, first_error: float) -> float:
    """Share of rollouts in which a candidate at the limit passes, or an equal one fails, while the information grows 600-fold."""
    asked = Levels(5.0, 0.10, 0.005, deadline_s=600.0)
    chance, walks = np.random.default_rng(4), 20_000
    total, crossed = np.zeros(walks), np.zeros(walks, dtype=bool)
    for look in range(1, 601):
        total += chance.standard_normal(walks) * first_error
        found = EffectSize(0.0, first_error**2 / look, 1e9, 0.0, 0.0)
        distance = asked.above(found) if exceeds == "above" else asked.below(found, look)[0]
        crossed |= total / look > distance
    return float(crossed.mean())


@pytest.mark.parametrize("first_error", [0.06, 0.03, 0.005])
def test_a_rollout_with_a_deadline_keeps_both_levels(first_error: float) -> None:
    """The errors of the first evaluation are those of dependent, of independent, and of plentiful requests."""
    assert _ever("below", first_error) <= 0.10
    assert _ever("above", first_error) <= 0.005


def test_a_deadline_decides_what_endless_evaluations_leave_open() -> None:
    found = EffectSize(0.0, 0.0123**2, 30.0, 0.0, 0.0)
    ends, endless = Levels(5.0, 0.10, 0.005, deadline_s=7200.0), Levels(5.0, 0.10, 0.005)
    assert ends.below(found, 7100.0)[0] < 0.85 * endless.below(found, 7100.0)[0]
    assert ends.below(found, 900.0)[0] == pytest.approx(1.068 * endless.below(found, 900.0)[0], rel=0.005)

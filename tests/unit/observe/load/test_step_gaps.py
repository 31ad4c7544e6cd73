"""Decode step time beside steps that also prefill, from the distribution of gaps."""

from __future__ import annotations

import math
import random

import pytest

from dflash_controller.model.step_gaps import decode_step_s, prefill_steps

BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, math.inf)
"""vLLM's buckets, as far as they matter here."""


def histogram(values: list[float]) -> tuple[float, dict[float, float]]:
    return sum(values), {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}


def test_a_third_of_the_steps_can_prefill_with_several_requests_in_some() -> None:
    # 692 requests of 64 prompt tokens entered in 1,442 steps; 36 to 38 % of the steps prefilled.
    assert prefill_steps(692, 1442) == pytest.approx(0.38, abs=0.01)
    assert prefill_steps(0, 100) == 0.0


@pytest.mark.parametrize(
    ("seconds", "below", "entered", "passes", "decode_ms"),
    [
        (2262.66, (0, 16418, 28059, 28928, 38046, 42725, 43830, 44068), (692), 1442, 21.3),
        (2252.13, (0, 38298, 38960, 39364, 46912, 53318, 54242, 54298), (683), 1761, 15.5),
    ],
)
def test_two_humps_of_a_real_page_give_the_decode_step(
    seconds: float, below: tuple[float, ...], entered: float, passes: float, decode_ms: float
) -> None:
    """Qwen3.5-9B on an H100 with vLLM 0.26.0 at 32 requests, block 16 and 8: the mean gaps are 51.3 and 41.5 ms."""
    gaps = {bound: float(below[min(i, len(below) - 1)]) for i, bound in enumerate(BOUNDS)}
    found = decode_step_s(seconds, gaps, prefill_steps(entered, passes))
    assert found is not None
    assert 1000 * found == pytest.approx(decode_ms, abs=0.1)


@pytest.mark.parametrize("decode_s", [0.006, 0.015, 0.022, 0.04])
@pytest.mark.parametrize("share", [0.02, 0.15, 0.4])
def test_steps_that_prefill_are_taken_out_within_a_fifth(decode_s: float, share: float) -> None:
    chances = random.Random(7)
    values = [
        chances.gauss(0.11, 0.02) + decode_s if chances.random() < share else decode_s * chances.gauss(1.0, 0.05) for _ in range(20_000)
    ]
    seconds, gaps = histogram(values)
    found = decode_step_s(seconds, gaps, share)
    assert found is not None
    assert found == pytest.approx(decode_s, rel=0.2)
    assert abs(found - decode_s) < abs(seconds / len(values) - decode_s)


@pytest.mark.parametrize("decode_s", [0.009, 0.0248, 0.03, 0.052])
@pytest.mark.parametrize("share", [0.1, 0.4])
def test_one_hump_is_never_cut_in_two(decode_s: float, share: float) -> None:
    """Prefill of a few percent of the step: the gaps lie on both sides of a bound, and that is no second kind of step."""
    chances = random.Random(7)
    values = [decode_s * chances.gauss(1.0, 0.08) * (1.05 if chances.random() < share else 1.0) for _ in range(20_000)]
    seconds, gaps = histogram(values)
    found = decode_step_s(seconds, gaps, share)
    assert found is None or found == pytest.approx(decode_s, rel=0.06)


def test_few_gaps_say_nothing() -> None:
    seconds, gaps = histogram([0.02] * 100 + [0.12] * 20)
    assert decode_step_s(seconds, gaps, 1 / 6) is None

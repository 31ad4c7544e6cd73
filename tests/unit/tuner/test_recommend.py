"""Which block size is fastest."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.tuner.acceptance import Acceptance, Decay
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.recommend import ObservedLoad, legal, recommend
from dflash_controller.tuner.step_times import StepPrior, StepTimes
from tests.support.tuner_inputs import best_blocks

PRIOR = StepPrior(200.0, 0.7)
DECAY = Decay(0.993)
CANDIDATE_BLOCKS = (4, 8, 16)
MOST = 24


def curve(rises: list[float]) -> dict[int, float]:
    """A step time for every T, rising by these shares."""
    times, seconds = {}, 0.008
    for tokens in range(1, 16 * MOST + 1):
        seconds *= 1 + rises[tokens % len(rises)] / tokens
        times[tokens] = seconds
    return times


def seen(times: dict[int, float]) -> StepTimes:
    """The whole curve, from a block of 16 at fractional loads."""
    return StepTimes([StepPoint(16, tokens / 16, seconds) for tokens, seconds in times.items()], PRIOR)


RISES = st.lists(st.one_of(st.floats(0.0, 1.0), st.just(0.0), st.floats(5.0, 30.0)), min_size=1, max_size=40)
SURVIVAL = st.lists(st.floats(0.3, 1.0), min_size=15, max_size=15)


def survival(chances: list[float]) -> tuple[float, ...]:
    return tuple(math.prod(chances[: place + 1]) for place in range(len(chances)))


@given(RISES, SURVIVAL)
def test_on_any_monotone_curve_the_choice_is_the_brute_force_optimum(rises: list[float], chances: list[float]) -> None:
    times, alive = curve(rises), survival(chances)
    acceptance = Acceptance({}, DECAY, alive)
    steps = seen(times)
    for c, pick in enumerate(best_blocks(CANDIDATE_BLOCKS, MOST, acceptance, steps), start=1):
        speeds = {
            candidate_block: c * (1 + sum(alive[: candidate_block - 1])) / times[candidate_block * c]
            for candidate_block in CANDIDATE_BLOCKS
        }
        assert speeds[pick] == pytest.approx(max(speeds.values()), rel=1e-9)
        assert recommend(8, CANDIDATE_BLOCKS, [ObservedLoad(c)], acceptance, steps).best.tokens_per_s == pytest.approx(
            max(speeds.values()), rel=1e-9
        )


@given(RISES, SURVIVAL, st.sampled_from([(4, 8), (8, 16), (4, 16)]), st.floats(0.0, 1.0), st.integers(1, MOST))
def test_more_acceptance_at_depth_never_moves_the_choice_to_a_smaller_block(
    rises: list[float], chances: list[float], candidate_blocks: tuple[int, int], better: float, c: int
) -> None:
    steps, alive = seen(curve(rises)), survival(chances)
    depth = candidate_blocks[0] - 1
    deeper = tuple(share if place < depth else share + better * (alive[depth - 1] - share) for place, share in enumerate(alive))
    before, after = (best_blocks(candidate_blocks, c, Acceptance({}, DECAY, shares), steps)[-1] for shares in (alive, deeper))
    assert after >= before


@given(st.floats(1.5, 15.5), st.floats(0.0, 0.5), st.integers(1, MOST), RISES)
def test_a_longer_mean_never_moves_the_choice_to_a_smaller_block(length: float, more: float, c: int, rises: list[float]) -> None:
    steps = seen(curve(rises))
    before, after = (best_blocks(CANDIDATE_BLOCKS, c, Acceptance({16: value}, DECAY), steps)[-1] for value in (length, length + more))
    assert after >= before


@given(st.lists(st.floats(0.0, 0.3), min_size=1, max_size=12), SURVIVAL)
def test_on_a_curve_that_only_steepens_more_concurrency_never_lengthens_the_block(steps_up: list[float], chances: list[float]) -> None:
    slopes = sorted(min(1.0, sum(steps_up[: place + 1])) for place in range(len(steps_up)))
    times, seconds = {1: 0.008}, 0.008
    for tokens in range(2, 16 * MOST + 1):
        slope = slopes[min(len(slopes) - 1, tokens * len(slopes) // (16 * MOST))]
        seconds *= (tokens / (tokens - 1)) ** slope
        times[tokens] = seconds
    picks = best_blocks(CANDIDATE_BLOCKS, MOST, Acceptance({}, DECAY, survival(chances)), seen(times))
    lengths = {candidate_block: 1 + sum(survival(chances)[: candidate_block - 1]) for candidate_block in CANDIDATE_BLOCKS}
    for c, (before, later) in enumerate(pairwise(picks), start=1):
        # Where two block sizes are equal on the curve itself, rounding decides.
        lost = math.log(lengths[before] / times[before * (c + 1)]) - math.log(lengths[later] / times[later * (c + 1)])
        assert later <= before or abs(lost) < 1e-9


@given(st.lists(st.integers(1, 64), max_size=6), st.integers(1, 32), st.integers(1, 64), st.integers(1, 200))
def test_no_arm_above_the_trained_block_is_ever_chosen(candidate_blocks: list[int], trained: int, current: int, c: int) -> None:
    found = recommend(
        current,
        candidate_blocks,
        [ObservedLoad(c)],
        Acceptance({16: 15.9}, DECAY),
        StepTimes([StepPoint(16, 1, 0.01)], PRIOR),
        trained_block=trained,
    )
    assert found.block <= trained or found.block == current
    assert legal(candidate_blocks, current, trained) == tuple(forecast.block for forecast in found.forecasts)


def test_the_whole_distribution_of_concurrency_decides() -> None:
    steps = seen({tokens: 0.008 * (1 + tokens / 150) for tokens in range(1, 513)})
    acceptance = Acceptance({16: 6.5, 8: 5.2}, DECAY)
    alone, busy = (recommend(16, CANDIDATE_BLOCKS, [ObservedLoad(c)], acceptance, steps) for c in (1, 32))
    assert (alone.block, busy.block) == (16, 8)
    mixed = recommend(16, CANDIDATE_BLOCKS, [ObservedLoad(1, 0.9), ObservedLoad(32, 0.1)], acceptance, steps)
    expected = 0.9 * alone.of(8).tokens_per_s + 0.1 * busy.of(8).tokens_per_s
    assert mixed.of(8).tokens_per_s == pytest.approx(expected)
    assert mixed.block == 8, "a tenth of the time at 32 makes most of the tokens"
    assert recommend(16, CANDIDATE_BLOCKS, [ObservedLoad(1, 9), ObservedLoad(32, 1)], acceptance, steps) == mixed, "shares are relative"


def test_a_collapsed_drafter_is_best_switched_off() -> None:
    steps = StepTimes([StepPoint(16, c, 0.008 * (1 + c * 16 / 150)) for c in (1, 8, 16, 32)], PRIOR)
    for c in (1, 8, 32):
        found = recommend(16, (1, 8, 16), [ObservedLoad(c)], Acceptance({16: 1.02}, DECAY), steps)
        assert found.block == 1
        assert found.best.confidence > 0.95
    assert recommend(16, (1, 8, 16), [ObservedLoad(1)], Acceptance({16: 6.0}, DECAY), steps).block == 16


def test_of_equals_the_current_arm_stays() -> None:
    flat = StepTimes([StepPoint(16, c, 0.01) for c in (0.25, 1, 8, 32)], StepPrior(1e9, 1.0))
    collapsed = Acceptance({}, DECAY, (0.0,) * 15)
    assert [
        recommend(candidate_block, CANDIDATE_BLOCKS, [ObservedLoad(4)], collapsed, flat).block for candidate_block in CANDIDATE_BLOCKS
    ] == list(CANDIDATE_BLOCKS)


def test_confidence_falls_with_the_gain_asked_for() -> None:
    steps = StepTimes([StepPoint(16, c, 0.008 * (1 + c * 16 / 150)) for c in (1, 8, 16, 32)], PRIOR)
    acceptance = Acceptance({16: 6.0}, DECAY)
    best = recommend(16, CANDIDATE_BLOCKS, [ObservedLoad(32)], acceptance, steps).of(8)
    assert best.gain_percent == pytest.approx(100 * math.expm1(best.log_gain))
    assert best.confidence > best.confidence_of(5) > best.confidence_of(best.gain_percent + 5) > 0
    assert best.confidence_of(best.gain_percent) == pytest.approx(0.5)
    assert 0.06 < best.log_sigma < 0.09, "about 7 % from block 16, as the published tables scatter"
    current = recommend(16, CANDIDATE_BLOCKS, [ObservedLoad(32)], acceptance, steps).of(16)
    assert (current.log_gain, current.log_sigma, current.confidence) == (0.0, 0.0, 0.0)


def test_the_best_block_need_not_be_monotone_in_concurrency() -> None:
    """Measured on an H100 with a mixture of experts: seconds by tokens per step."""
    moe = {8: 12.0, 16: 14.1, 32: 18.0, 64: 20.8, 128: 22.2, 256: 23.5, 512: 43.0, 1024: 66.2}
    steps = StepTimes([StepPoint(16, tokens / 16, ms / 1e3) for tokens, ms in moe.items()], PRIOR)
    acceptance = Acceptance({16: 6.42, 8: 5.6}, DECAY)
    picks = best_blocks((8, 16), 64, acceptance, steps)
    assert (picks[0], picks[1], picks[7], picks[31]) == (8, 8, 16, 8)


def test_without_load_nothing_is_recommended() -> None:
    steps = StepTimes([StepPoint(16, 1, 0.01)], PRIOR)
    acceptance = Acceptance({16: 6.0}, DECAY)
    for loads in ([], [ObservedLoad(4, 0.0)]):
        with pytest.raises(ValueError, match="no load"):
            recommend(16, CANDIDATE_BLOCKS, loads, acceptance, steps)
    with pytest.raises(ValueError, match="no load"):
        ObservedLoad(0.0)
    with pytest.raises(KeyError):
        recommend(16, CANDIDATE_BLOCKS, [ObservedLoad(1)], acceptance, steps).of(32)


def test_a_block_whose_requests_would_wait_for_memory_gains_less() -> None:
    acceptance = Acceptance({}, DECAY, survival([0.9] * 15))
    steps = StepTimes([StepPoint(16, c, 0.010 + 0.0002 * c) for c in (1, 2, 4, 8, 16, 32, 48)], PRIOR)
    free = recommend(8, (8, 16), [ObservedLoad(48)], acceptance, steps)
    held = recommend(8, (8, 16), [ObservedLoad(48)], acceptance, steps, capacity={8: 100.0, 16: 20.0})
    assert free.block == 16
    assert held.block == 8
    at_20 = recommend(8, (8, 16), [ObservedLoad(20)], acceptance, steps).of(16).tokens_per_s
    assert held.of(16).tokens_per_s == pytest.approx(at_20)
    low = recommend(8, (8, 16), [ObservedLoad(0.5)], acceptance, steps)
    assert recommend(8, (8, 16), [ObservedLoad(0.5)], acceptance, steps, capacity={16: 20.0}) == low


def test_time_of_prefill_is_the_same_at_every_block() -> None:
    acceptance = Acceptance({}, DECAY, survival([0.9] * 15))
    steps = StepTimes([StepPoint(16, c, 0.010 + 0.0002 * c) for c in (1, 2, 4, 8, 16, 32)], PRIOR)
    decoding = recommend(8, (8, 16), [ObservedLoad(8)], acceptance, steps)
    half = recommend(8, (8, 16), [ObservedLoad(8)], acceptance, steps, prefill_share=0.5)
    speedup = math.exp(decoding.of(16).log_gain)
    assert math.exp(half.of(16).log_gain) == pytest.approx(1 / (0.5 + 0.5 / speedup))
    assert half.of(8).tokens_per_s == pytest.approx(decoding.of(8).tokens_per_s / 2)
    assert half.of(16).tokens_per_s == pytest.approx(half.of(8).tokens_per_s * math.exp(half.of(16).log_gain))
    assert 0 < half.of(16).log_sigma < decoding.of(16).log_sigma

"""Step times of block sizes that did not run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.tuner.curve import Curve
from dflash_controller.tuner.machine import Machine
from dflash_controller.tuner.points import StepPoint, pooled
from dflash_controller.tuner.priors import Priors
from dflash_controller.tuner.shape import fit_knee, log_cost
from dflash_controller.tuner.step_times import Limits, StepPrior, StepTimes

PRIOR = StepPrior(200.0, 0.7)
LOADS = (1, 2, 4, 8, 16, 32)


def law(tokens: float) -> float:
    return 0.008 * (1 + tokens / 150)


def ran(block: int, loads: Iterable[float] = LOADS, s: Callable[[float], float] = law) -> list[StepPoint]:
    return [StepPoint(block, c, s(block * c)) for c in loads]


def test_load_that_varies_at_one_block_tells_the_price_of_another() -> None:
    steps = StepTimes(ran(16), PRIOR)
    for c in LOADS[1:]:
        assert steps.at(8, c).value == pytest.approx(law(8 * c)), "T was seen: block 16 at half the concurrency"


def test_a_bigger_step_is_never_faster_and_a_fall_is_averaged() -> None:
    curve = Curve([(16, 1.0, 1.0), (32, 1.3, 1.0), (64, 1.1, 3.0), (128, 2.0, 1.0)], 200.0)
    assert curve.logs == pytest.approx([1.0, 1.15, 1.15, 2.0])


def test_points_of_the_same_size_are_averaged_by_weight() -> None:
    assert Curve([(16, 1.0, 1.0), (16, 2.0, 3.0)], 200.0).at(16) == pytest.approx(1.75)


def test_beyond_the_ends_own_and_usual_slope_count_alike() -> None:
    curve = Curve([(64, 0.0, 1.0), (128, 0.5 * math.log(2), 1.0)], 200.0)
    usual = log_cost(256, 200.0) - log_cost(128, 200.0)
    assert curve.at(256) == pytest.approx(0.5 * math.log(2) + (0.5 * math.log(2) + usual) / 2)
    below = log_cost(64, 200.0) - log_cost(32, 200.0)
    assert curve.at(32) == pytest.approx(-(0.5 * math.log(2) + below) / 2)


def roofline(tokens: float, knee: float = 260.0) -> float:
    """A step that is bound by memory up to the knee, and by computation above it, with a short transition."""
    return float(0.02 * (1 + (tokens / knee) ** 4) ** 0.25)


@pytest.mark.parametrize("machine", [Machine("sglang"), Machine("vllm"), Machine("sglang", hybrid=True), Machine("vllm", mixture=True)])
@pytest.mark.parametrize("knee", [160.0, 260.0, 420.0])
def test_above_what_was_seen_the_error_reaches_from_the_own_slope_to_the_roofline(machine: Machine, knee: float) -> None:
    """Seen up to 256 tokens, where most of such a curve is still flat: at 512 it was 40 % off, and called 10 %."""
    prior = Priors.load().prior(machine).steps
    steps = StepTimes(ran(8, s=lambda tokens: roofline(tokens, knee)), prior)
    found = steps.at(16, 32)
    apart = math.log(roofline(512, knee) / found.value)
    assert abs(apart) < 2 * found.log_sigma
    assert found.log_sigma > (0.12 if knee < 256 else 0.15), "smaller where the own slope is already that of computation"
    assert steps.at(16, 64).log_sigma > 1.3 * found.log_sigma
    if not machine.mixture:
        assert abs(apart) < 0.3


def test_the_own_slope_of_memory_bound_steps_is_not_continued_beyond_the_knee() -> None:
    points = [(float(tokens), math.log(roofline(tokens)), 1.0) for tokens in (8, 16, 32, 64, 128)]
    own, prior = (Curve(points, 200.0, weight).at(512) for weight in (1.0, 0.0))
    assert own < math.log(roofline(512)) - 0.5
    assert prior == pytest.approx(math.log(roofline(512)), abs=0.2)


def test_one_load_alone_says_less_of_fewer_tokens_the_more_it_is_bound_by_computation() -> None:
    prior = Priors.load().prior(Machine("sglang")).steps
    light, heavy = (StepTimes([StepPoint(16, c, 0.02)], prior).at(8, c).log_sigma for c in (2, 64))
    assert heavy > 1.5 * light
    assert StepTimes(ran(16, (16, 32, 64)), prior).at(8, 64).log_sigma < heavy / 1.5, "two loads show the slope"


def test_a_jump_does_not_go_on_beyond_the_end() -> None:
    curve = Curve([(256, 0.0, 1.0), (512, 3 * math.log(2), 1.0)], 200.0)
    assert curve.at(1024) - curve.at(512) < math.log(2)


def test_close_points_at_the_end_do_not_make_its_slope() -> None:
    steady = [(64.0, 0.0, 1.0), (128.0, 0.2, 1.0)]
    noisy = Curve([*steady, (130.0, 0.3, 1.0)], 200.0)
    assert noisy.at(260) - noisy.at(130) < 0.6, "the slope between 128 and 130 would be 4.5"


def test_in_a_wide_gap_the_curve_lies_below_the_chord() -> None:
    curve = Curve([(16, math.log(law(16)), 1.0), (512, math.log(law(512)), 1.0)], 200.0)
    chord = math.log(law(16)) + math.log(law(512) / law(16)) * math.log(64 / 16) / math.log(512 / 16)
    assert math.log(law(64)) < curve.at(64) < chord


def test_one_load_alone_follows_the_usual_shape() -> None:
    steps = StepTimes([StepPoint(16, 16, 0.02)], PRIOR)
    assert steps.loads == 1
    assert steps.at(8, 16).value == pytest.approx(0.02 * (1 + 128 / 200) / (1 + 256 / 200))


@given(st.lists(st.tuples(st.floats(1, 64), st.floats(0.001, 0.1)), min_size=1, max_size=12), st.floats(0.5, 100), st.floats(1.0, 4.0))
def test_more_tokens_never_take_less_time(points: list[tuple[float, float]], concurrency: float, factor: float) -> None:
    steps = StepTimes([StepPoint(16, c, s) for c, s in points], PRIOR, Limits(tokens=(200.0, 512.0)))
    assert steps.at(16, concurrency).value <= steps.at(16, concurrency * factor).value * (1 + 1e-9)
    assert steps.at(8, concurrency).value <= steps.at(16, concurrency).value * (1 + 1e-9)


def test_what_was_measured_of_a_block_goes_before_the_law() -> None:
    points = [*ran(16), StepPoint(8, 16, law(128) * 1.1), StepPoint(8, 32, law(256) * 1.2)]
    steps = StepTimes(points, PRIOR)
    assert steps.at(8, 32).value == pytest.approx(law(256) * 1.2)
    assert steps.at(8, 16).value == pytest.approx(law(128) * 1.1)
    assert steps.at(16, 8).value == pytest.approx(law(128))
    assert steps.at(8, 32).log_sigma < StepTimes(ran(16), PRIOR).at(8, 32).log_sigma


def test_two_blocks_tell_what_concurrency_costs_by_itself() -> None:
    loads = (1, 2, 4, 8, 16, 32)
    points = [StepPoint(block, c, law(block * c) * c**0.1) for block in (8, 16) for c in loads]
    steps = StepTimes(points, PRIOR)
    assert 0.06 < steps.exponent < 0.1
    assert steps.at(4, 16).value == pytest.approx(law(64) * 16**0.1, rel=0.04)
    assert StepTimes(ran(8) + ran(16), PRIOR).exponent == pytest.approx(0.0, abs=1e-9)


def test_the_curve_is_not_carried_across_a_limit_of_graph_capture() -> None:
    def cliff(tokens: float) -> float:
        return law(tokens) * (1.8 if tokens > 512 else 1.0)

    seen = ran(16, (4, 8, 16, 30, 40, 64), cliff)
    aware, naive = StepTimes(seen, PRIOR, Limits(tokens=(512.0,))), StepTimes(seen, PRIOR)
    assert aware.at(16, 32).value == pytest.approx(cliff(512), rel=0.05)
    assert aware.at(16, 33).value == pytest.approx(cliff(528), rel=0.08)
    assert naive.at(16, 32).value > 1.08 * cliff(512)


def test_a_side_of_a_limit_where_nothing_was_seen_is_uncertain() -> None:
    steps = StepTimes(ran(16), PRIOR, Limits(concurrency=(32.0,)))
    assert steps.at(16, 32).log_sigma < 0.1
    assert steps.at(16, 33).log_sigma > 0.3, "measured one request away, but with a graph"
    assert steps.at(8, 40).log_sigma > 0.3
    assert StepTimes(ran(16), PRIOR).at(8, 40).log_sigma < 0.1


def test_uncertainty_grows_with_the_distance_from_what_was_seen() -> None:
    steps = StepTimes(ran(8), PRIOR)
    inside, edge, far = (steps.at(16, c).log_sigma for c in (8, 32, 128))
    assert inside < edge < far
    assert steps.at(8, 8).log_sigma < steps.at(16, 8).log_sigma
    assert StepTimes(ran(16), PRIOR).at(8, 8).log_sigma < inside


def test_speculation_off_is_priced_from_the_curve_until_it_was_seen() -> None:
    drafting = StepTimes(ran(16), PRIOR)
    assert drafting.at(1, 16).value == pytest.approx(0.7 * law(16))
    measured = StepTimes([*ran(16), StepPoint(1, 16, 0.5 * law(16))], PRIOR)
    assert measured.at(1, 16).value == pytest.approx(0.5 * law(16))
    assert measured.at(1, 32).value < drafting.at(1, 32).value
    assert measured.at(16, 16) == drafting.at(16, 16), "what runs without drafter says nothing of drafting"
    assert measured.exponent == 0.0


def test_drafting_is_priced_from_speculation_off_where_only_that_was_seen() -> None:
    steps = StepTimes([StepPoint(1, c, 0.7 * law(c)) for c in (8, 16, 32, 64, 128, 256)], PRIOR)
    assert steps.at(16, 8).value == pytest.approx(law(128))
    assert steps.at(1, 16).value == pytest.approx(0.7 * law(16))
    assert steps.at(16, 8).log_sigma >= 0.2


def test_the_knee_that_made_the_points_is_found() -> None:
    series = [[(T, level * (1 + T / 180)) for T in (8.0, 64.0, 256.0, 512.0)] for level in (0.01, 0.02)]
    assert fit_knee(series) == pytest.approx(180, rel=1e-3)
    with pytest.raises(ValueError, match="two points"):
        fit_knee([[(8.0, 0.01)], [(16.0, 0.02)]])


def test_neighbours_in_concurrency_are_pooled_by_weight() -> None:
    found = pooled([StepPoint(16, 10, 0.01), StepPoint(16, 10, 0.04, 3.0), StepPoint(16, 20, 0.05), StepPoint(8, 10, 0.01)])
    assert [(point.block, point.weight) for point in found] == [(8, 1.0), (16, 4.0), (16, 1.0)]
    assert found[1].seconds == pytest.approx(math.exp((math.log(0.01) + 3 * math.log(0.04)) / 4))


def test_impossible_points_are_refused() -> None:
    for block, concurrency, seconds in ((0, 1.0, 0.1), (8, 0.0, 0.1), (8, 1.0, math.nan), (8, 1.0, 0.0), (8, math.inf, 0.1)):
        with pytest.raises(ValueError, match="positive"):
            StepPoint(block, concurrency, seconds)
    with pytest.raises(ValueError, match="no step time"):
        StepTimes([], PRIOR)

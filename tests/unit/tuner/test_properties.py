"""What holds of the tuner's choice on any traffic and any step times. What is right is worked out here from plain tables."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_controller.api.speculation import Fixed, Off, Schedule, Speculation
from dflash_controller.engines import ENGINES
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.tuner.acceptance import Acceptance, Decay
from dflash_controller.tuner.cost_benefit import SwitchingCost, cost_benefit, horizon_of
from dflash_controller.tuner.learned import Seen
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.recommend import ObservedLoad, recommend
from dflash_controller.tuner.regret import RegretLedger, relative_gain
from dflash_controller.tuner.schedule import best_schedule, block_at, speed
from dflash_controller.tuner.schedule_price import SchedulePrice
from dflash_controller.tuner.step_times import Limits, StepPrior, StepTimes
from dflash_controller.tuner.window import DecisionWindow
from testbed.contract.examples import request
from testbed.simulator.argv import parse
from testbed.simulator.settings import EngineSettings
from tests.support.releases import default_release
from tests.support.tuner_inputs import best_blocks

VLLM = default_release("vllm")

DECAY = Decay(0.993)
MOST = 12
LONGEST = 16
ALL = tuple(range(1, LONGEST + 1))
LESS = 1e-9
"""Of a logarithm: what rounding may decide."""

FEWER = settings(max_examples=40)
"""Where an example takes milliseconds."""

Table = dict[tuple[int, int], float]
"""Seconds of a step by block and concurrency."""

PRIORS = st.builds(StepPrior, st.floats(20.0, 2000.0), st.floats(0.5, 1.0))
CANDIDATE_BLOCKS = st.lists(st.sampled_from(ALL), min_size=1, max_size=5, unique=True)
DRAFTING = st.lists(st.sampled_from(ALL[1:]), min_size=1, max_size=5, unique=True)
CHANCES = st.lists(st.one_of(st.floats(0.0, 1.0), st.just(1.0), st.just(0.0)), min_size=LONGEST - 1, max_size=LONGEST - 1)
RISES = st.lists(st.one_of(st.floats(0.0, 1.0), st.just(0.0), st.floats(5.0, 60.0)), min_size=1, max_size=30)
"""In percent per token, some of them cliffs."""


def lengths(chances: list[float]) -> dict[int, float]:
    """Acceptance length by block, where draft i is accepted with ``chances[i]`` once all before it were."""
    return {block: 1 + sum(math.prod(chances[: place + 1]) for place in range(block - 1)) for block in ALL}


def accepted(chances: list[float]) -> Acceptance:
    return Acceptance({}, DECAY, tuple(math.prod(chances[: place + 1]) for place in range(len(chances))))


def curve(rises: list[float]) -> dict[int, float]:
    """A step time for every number of tokens, never falling."""
    times, seconds = {}, 0.008
    for tokens in range(1, LONGEST * MOST + 1):
        times[tokens] = seconds
        seconds *= 1 + rises[tokens % len(rises)] / 100
    return times


@st.composite
def tables(draw: st.DrawFn, blocks: st.SearchStrategy[list[int]] = CANDIDATE_BLOCKS) -> Table:
    """Step times of some blocks that follow no law at all but that each rises with concurrency, by cliffs or not."""
    table: Table = {}
    for block in draw(blocks):
        seconds = draw(st.floats(0.004, 0.02))
        for c in range(1, MOST + 1):
            table[block, c] = seconds
            seconds *= 1 + draw(st.sampled_from([0.0, 0.02, 0.1, 0.6]))
    return table


def learned(table: Table, prior: StepPrior, limits: Limits | None = None) -> StepTimes:
    return StepTimes([StepPoint(block, c, seconds) for (block, c), seconds in table.items()], prior, limits)


def log_speeds(table: Table, length: dict[int, float], c: int) -> dict[int, float]:
    return {block: math.log(c * length[block] / seconds) for (block, at), seconds in table.items() if at == c}


@FEWER
@given(RISES, CHANCES, DRAFTING, st.integers(1, LONGEST * MOST), PRIORS)
def test_one_block_seen_on_both_sides_of_a_limit_of_graph_capture_tells_the_best_of_all_blocks(
    rises: list[float], chances: list[float], candidate_blocks: list[int], limit: int, prior: StepPrior
) -> None:
    times, length = curve(rises), lengths(chances)
    seen = StepTimes([StepPoint(LONGEST, tokens / LONGEST, s) for tokens, s in times.items()], prior, Limits(tokens=(limit,)))
    for c, pick in enumerate(best_blocks(candidate_blocks, MOST, accepted(chances), seen), start=1):
        speeds = {
            candidate_block: math.log(c * length[candidate_block] / times[candidate_block * c]) for candidate_block in candidate_blocks
        }
        assert pick in speeds
        assert speeds[pick] >= max(speeds.values()) - LESS


@FEWER
@given(tables(), CHANCES, PRIORS, st.lists(st.integers(1, 200), max_size=2, unique=True), st.lists(st.integers(1, MOST), max_size=2))
def test_blocks_that_were_seen_are_ranked_as_they_were_seen_whatever_the_law_says(
    table: Table, chances: list[float], prior: StepPrior, tokens: list[int], requests: list[int]
) -> None:
    length, candidate_blocks = lengths(chances), {block for block, _ in table}
    steps = learned(table, prior, Limits(tuple(sorted(tokens)), tuple(sorted(set(requests)))))
    for c, pick in enumerate(best_blocks(candidate_blocks, MOST, accepted(chances), steps), start=1):
        speeds = log_speeds(table, length, c)
        assert speeds[pick] >= max(speeds.values()) - LESS
        best = recommend(pick, candidate_blocks, [ObservedLoad(c)], accepted(chances), steps).best
        assert math.log(best.tokens_per_s) == pytest.approx(max(speeds.values()), abs=LESS)


@FEWER
@given(tables(), CHANCES, PRIORS, st.integers(0, LONGEST - 2), st.floats(0.0, 1.0))
def test_a_draft_accepted_more_often_never_moves_the_choice_to_a_smaller_block(
    table: Table, chances: list[float], prior: StepPrior, place: int, more: float
) -> None:
    """Wherever in the block: all drafts after it are reached more often too. Whatever the block sizes, speculation off among them."""
    better = [*chances[:place], chances[place] + more * (1 - chances[place]), *chances[place + 1 :]]
    steps, candidate_blocks = learned(table, prior), {block for block, _ in table}
    before, after = (best_blocks(candidate_blocks, MOST, accepted(each), steps) for each in (chances, better))
    for c, (was, now) in enumerate(zip(before, after, strict=True), start=1):
        speeds = log_speeds(table, lengths(better), c)
        assert now >= was or abs(speeds[now] - speeds[was]) < LESS


@FEWER
@given(
    st.lists(st.floats(0.0, 0.4), min_size=1, max_size=8),
    CHANCES,
    st.lists(st.sampled_from([2, 4, 8, 16]), min_size=2, max_size=4, unique=True),
    st.sampled_from([8, 16]),
    PRIORS,
)
def test_where_the_slope_never_falls_more_concurrency_never_lengthens_the_block(
    steeper: list[float], chances: list[float], candidate_blocks: list[int], block: int, prior: StepPrior
) -> None:
    """A curve through points at each doubling, straight between them in logarithms, seen at one block."""
    slopes = [min(1.0, sum(steeper[: place + 1])) for place in range(8)]
    logs = [math.log(0.008) + math.log(2) * sum(slopes[:place]) for place in range(9)]
    steps = StepTimes([StepPoint(block, 2**place / block, math.exp(log)) for place, log in enumerate(logs)], prior)

    def log_s(tokens: int) -> float:
        place = min(7, int(math.log2(tokens)))
        return logs[place] + slopes[place] * math.log(tokens / 2**place)

    length = lengths(chances)
    picks = best_blocks(candidate_blocks, 16, accepted(chances), steps)
    for c, pick in enumerate(picks, start=1):
        speeds = {candidate_block: math.log(length[candidate_block]) - log_s(candidate_block * c) for candidate_block in candidate_blocks}
        assert speeds[pick] >= max(speeds.values()) - LESS
        later = picks[c] if c < 16 else pick
        assert later <= pick or abs(speeds[pick] - speeds[later]) < LESS


@FEWER
@given(
    st.lists(st.integers(-3, 40), max_size=6),
    st.integers(1, 32),
    st.integers(1, 40),
    CHANCES,
    st.floats(0.0, 20.0),
    st.lists(st.builds(ObservedLoad, st.floats(0.1, 20.0)), max_size=3),
)
def test_no_block_above_the_trained_one_is_ever_chosen(
    candidate_blocks: list[int], trained: int, current: int, chances: list[float], gain: float, loads: list[ObservedLoad]
) -> None:
    acceptance = accepted(chances)
    steps = StepTimes([StepPoint(16, c, 0.008 * (1 + c / 10)) for c in (1, 4, 16)], StepPrior(200.0, 0.7))
    legal = {candidate_block for candidate_block in candidate_blocks if 1 <= candidate_block <= trained}
    if not legal:
        with pytest.raises(ValueError, match="legal"):
            best_schedule(candidate_blocks, MOST, acceptance, steps, trained_block=trained, min_gain_percent=gain, loads=loads)
        return
    assert set(best_blocks(candidate_blocks, MOST, acceptance, steps, trained_block=trained)) <= legal
    assert recommend(current, candidate_blocks, [ObservedLoad(3)], acceptance, steps, trained_block=trained).block in legal | {current}
    found = best_schedule(candidate_blocks, MOST, acceptance, steps, trained_block=trained, min_gain_percent=gain, loads=loads)
    assert {block_at(found, c) for c in range(1, MOST + 1)} <= legal
    assert found.max_block_size <= trained


def worth(blocks: tuple[int, ...], table: Table, length: dict[int, float], cost: float) -> list[float]:
    """Tokens per second at concurrency 1, 2, …, where step c runs ``blocks[c - 1]``."""
    largest = max(blocks)
    slower = [1 + cost if block < largest else 1.0 for block in blocks]
    return [c * length[block] / (table[block, c] * slow) for c, (block, slow) in enumerate(zip(blocks, slower, strict=True), start=1)]


@FEWER
@given(
    tables(st.lists(st.sampled_from(ALL), min_size=1, max_size=3, unique=True)),
    CHANCES,
    st.floats(0.0, 0.1),
    st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5),
)
def test_the_schedule_is_the_best_of_all_assignments_of_blocks_its_price_counted(
    table: Table, chances: list[float], cost: float, shares: list[float]
) -> None:
    length, candidate_blocks, up_to = lengths(chances), sorted({block for block, _ in table}), 5
    steps, acceptance = learned(table, StepPrior(200.0, 0.7)), accepted(chances)
    loads = [ObservedLoad(c, share) for c, share in enumerate(shares, start=1)] if any(shares) else []

    def score(tokens_per_s: list[float]) -> float:
        if loads:
            return sum(share * math.log(speed) for share, speed in zip(shares, tokens_per_s, strict=True)) / sum(shares)
        return sum(math.log(speed) / c for c, speed in enumerate(tokens_per_s, start=1))

    best = max(score(worth(blocks, table, length, cost)) for blocks in itertools.product(candidate_blocks, repeat=up_to))
    options = {"trained_block": None, "min_gain_percent": 0.0, "loads": loads, "price": SchedulePrice(100 * cost)}
    found = best_schedule(candidate_blocks, up_to, acceptance, steps, **options)
    mine = worth(tuple(block_at(found, c) for c in range(1, up_to + 1)), table, length, cost)
    assert score(mine) == pytest.approx(best, abs=1e-7)
    for c, expected in enumerate(mine, start=1):
        assert speed(found, [ObservedLoad(c)], acceptance, steps, price=SchedulePrice(100 * cost)) == pytest.approx(expected)


@FEWER
@given(tables(DRAFTING), CHANCES, st.floats(0.1, 30.0), st.floats(0.0, 8.0))
def test_every_range_of_a_schedule_gains_what_it_must_over_its_neighbours(
    table: Table, chances: list[float], gain: float, cost: float
) -> None:
    length, candidate_blocks = lengths(chances), sorted({block for block, _ in table})
    steps = learned(table, StepPrior(200.0, 0.7))
    found = best_schedule(
        candidate_blocks, MOST, accepted(chances), steps, trained_block=16, min_gain_percent=gain, price=SchedulePrice(cost)
    )
    assert is_whole(found, MOST, candidate_blocks)
    if not isinstance(found, Schedule):
        return
    for (low, high, k), (next_low, next_high, next_k) in pairwise(found.ranges):
        for first, last, own, other in ((low, high, k + 1, next_k + 1), (next_low, next_high, next_k + 1, k + 1)):
            priced = {block: math.log1p(cost / 100) if block < found.max_block_size else 0.0 for block in (own, other)}
            over = {c: log_speeds(table, length, c) for c in range(first, last + 1)}
            gains = sum((over[c][own] - priced[own] - over[c][other] + priced[other]) / c for c in over)
            assert gains / sum(1 / c for c in over) >= math.log1p(gain / 100) - LESS


def is_whole(found: Speculation, up_to: int, candidate_blocks: list[int]) -> bool:
    match found:
        case Schedule(ranges):
            joined = [low for low, _, _ in ranges[1:]] == [high + 1 for _, high, _ in ranges[:-1]]
            moves = all(before != after for (_, _, before), (_, _, after) in pairwise(ranges))
            return (
                joined and moves and ranges[0][0] == 1 and ranges[-1][1] == up_to and {k + 1 for _, _, k in ranges} <= set(candidate_blocks)
            )
        case Fixed(block):
            return block in candidate_blocks
        case Off():
            return 1 in candidate_blocks


@FEWER
@given(tables(), CHANCES, st.floats(0.0, 10.0))
def test_an_engine_takes_every_schedule_and_runs_what_was_meant(table: Table, chances: list[float], gain: float) -> None:
    candidate_blocks = sorted({block for block, _ in table})
    steps = learned(table, StepPrior(200.0, 0.7))
    found = best_schedule(candidate_blocks, MOST, accepted(chances), steps, trained_block=16, min_gain_percent=gain)
    asked = dataclasses.replace(request("vllm", VLLM, "Qwen/Qwen3.5-35B-A3B", 1), speculation=found, max_concurrency=MOST)
    launched = ENGINES["vllm"].launch(asked)
    taken = parse("vllm", VLLM, [*launched.command, *launched.args])
    engine = EngineSettings("vllm", VLLM, "t", "m", 1, block_size=taken.block_size, schedule=taken.schedule or ())
    assert taken.block_size == found.max_block_size
    assert [engine.block_for(c) for c in range(1, MOST + 9)] == [block_at(found, c) for c in range(1, MOST + 9)]


GAINS = st.floats(-2.0, 2.0)


@given(GAINS, st.floats(1.0, 1000.0))
def test_what_one_arm_gains_the_other_loses_as_a_share_of_the_faster_one(gain: float, old: float) -> None:
    new = old * math.exp(gain)
    assert relative_gain(gain) == pytest.approx((new - old) / max(new, old), abs=1e-12)
    assert relative_gain(gain) == -relative_gain(-gain)


@FEWER
@given(st.lists(st.floats(-0.5, 0.5), max_size=8))
def test_what_one_arm_is_owed_the_other_owes(gains: list[float]) -> None:
    """Both begin with a debt of five minutes, which no later look uses up."""
    there, back = RegretLedger(), RegretLedger()
    for minute, (gain, other) in enumerate([*[(0.7, 0.7)] * 11, *((gain, -gain) for gain in gains)]):
        there.note(60.0 * minute, 16, {8: gain}, 1e5, None)
        back.note(60.0 * minute, 8, {16: other}, 1e5, None)
    assert there.past(0.0).regret(8) + back.past(0.0).regret(16) == pytest.approx(2 * 600.0 * relative_gain(0.7), abs=0.1)


@pytest.mark.parametrize("high", [0.05, 0.3, 0.45, 0.5, 0.55, 0.7, 0.95])
def test_usual_loads_never_favour_both_of_two_block_sizes(high: float) -> None:
    usual = [ObservedLoad(1.0, 1 - high), ObservedLoad(32.0, high)]
    steps = StepTimes([StepPoint(16, c, 0.008 * (1 + c / 10)) for c in (1, 4, 16, 64)], StepPrior(200.0, 0.7))
    acceptance = Acceptance({16: 6.42, 8: 5.14}, DECAY)
    there, back = (
        horizon_of(candidate_block, now, usual, usual, acceptance, steps, bound_s=1800.0, per_day=4, last=False)
        for candidate_block, now in ((8, 16), (16, 8))
    )
    assert there.later == pytest.approx(-back.later, abs=1e-12)
    assert not (there.better_later and back.better_later)


def test_loads_that_come_and_go_too_fast_to_follow_lead_to_the_block_size_that_is_faster_on_average() -> None:
    """Block 16 alone is 13 % faster for an hour, block 8 is 20 % faster for the next, and so on: in the mean over time block 8 is."""
    lead = {1.0: math.log(1 / 1.13), 32.0: math.log(1.2)}
    steps = StepTimes(
        [StepPoint(block, c, 0.01 if block == 16 else 0.01 / math.exp(lead[c])) for block in (8, 16) for c in lead], StepPrior(200.0, 0.7)
    )
    even = Acceptance({8: 5.0, 16: 5.0}, DECAY)
    usual = [ObservedLoad(c, 0.5) for c in lead]

    def pays_after(hours: int, candidate_block: int) -> bool:
        ledger = RegretLedger()
        current = 24 - candidate_block
        gains = {c: lead[c] if candidate_block == 8 else -lead[c] for c in lead}
        for minute in range(60 * hours):
            ledger.note(60.0 * minute, current, {candidate_block: gains[1.0 if minute // 60 % 2 == 0 else 32.0]}, 600.0, None)
        now = 32.0 if candidate_block == 8 else 1.0
        horizon = horizon_of(candidate_block, current, [ObservedLoad(now)], usual, even, steps, bound_s=1800.0, per_day=4, last=False)
        past = ledger.past(3600.0 * hours)
        return cost_benefit(candidate_block, gains[now], current, past, SwitchingCost(600.0, 600.0), horizon).worthwhile

    assert not pays_after(4, 8), "as much as the change costs must be lost first"
    assert pays_after(72, 8)
    assert not any(pays_after(hours, 16) for hours in (4, 71, 151))


def window_of(lengths_by_minute: list[float], steps: list[float] | None = None, block: int = 8) -> DecisionWindow:
    """One pod, a load sample a minute."""
    window = DecisionWindow()
    for minute, length in enumerate(lengths_by_minute):
        count = steps[minute] if steps else 1000.0
        window.add(LoadSample(60.0 * minute + 59, 60.0, block, 4.0, 0.01, count, count * length, count * length))
    return window


def acceptance_at_the_end(lengths_by_minute: list[float], steps: list[float] | None = None) -> Seen:
    (seen,) = window_of(lengths_by_minute, steps).over(60.0 * len(lengths_by_minute), 300.0).acceptance
    return seen


def noisy(length: float, count: int, draw: random.Random, noise: float = 0.05) -> list[float]:
    return [length * math.exp(draw.gauss(0.0, noise)) for _ in range(count)]


def test_who_looks_at_noise_every_minute_hardly_ever_sees_another_acceptance() -> None:
    """The mean of five minutes alone is off by more than 4 % at every fourteenth look."""
    minutes = noisy(5.0, 800, random.Random(1))
    ends = range(65, len(minutes), 2)
    alone = [abs(math.log(sum(minutes[end - 5 : end]) / 25.0)) > 0.04 for end in ends]
    together = [abs(math.log(acceptance_at_the_end(minutes[end - 65 : end]).length / 5.0)) > 0.04 for end in ends]
    assert sum(alone) > 0.05 * len(alone)
    assert sum(together) < 0.01 * len(together)


@pytest.mark.parametrize("after", [4.2, 1.05])
def test_other_traffic_is_seen_within_the_window(after: float) -> None:
    for seed in range(20):
        draw = random.Random(seed)
        before = noisy(5.0, 60, draw)
        assert acceptance_at_the_end([*before, *noisy(after, 5, draw)]).length == pytest.approx(after, rel=0.07)


def test_a_slight_change_is_seen_in_full_before_long() -> None:
    for seed in range(20):
        draw = random.Random(seed)
        assert acceptance_at_the_end([*noisy(5.0, 60, draw), *noisy(4.7, 40, draw)]).length == pytest.approx(4.7, rel=0.03)


def test_minutes_before_the_window_add_certainty_and_no_steps_and_busy_ones_no_more_than_others() -> None:
    hour = [5.0, 5.1] * 30
    seen = acceptance_at_the_end([*hour, 5.0, 5.1, 5.0, 5.1, 5.0])
    assert seen.steps == 5000.0
    assert seen.length == pytest.approx(5.05, abs=0.01)
    busy = acceptance_at_the_end([*hour, 5.0, 5.1, 5.0, 5.1, 5.0], [1e5, 1e3] * 30 + [1000.0] * 5)
    assert busy.length == pytest.approx(5.05, abs=0.01)


def test_a_block_that_no_longer_serves_is_not_kept_in_the_window() -> None:
    window = window_of([5.0] * 30)
    for minute in range(30, 40):
        window.add(LoadSample(60.0 * minute + 59, 60.0, 16, 4.0, 0.01, 1000.0, 6000.0, 6000.0))
    assert [seen.block for seen in window.over(2400.0, 300.0).acceptance] == [16]

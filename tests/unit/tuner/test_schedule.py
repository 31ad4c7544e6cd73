"""The table of block sizes by concurrency, and what a speculation is worth."""

from __future__ import annotations

import csv
import math
from itertools import pairwise
from pathlib import Path

import pytest

from dflash_controller.api.speculation import Fixed, Off, Schedule
from dflash_controller.tuner.acceptance import Acceptance, Decay
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.recommend import ObservedLoad, recommend
from dflash_controller.tuner.schedule import best_schedule, block_at, mean_log_speed, speed, true_step_s
from dflash_controller.tuner.schedule_price import MEASURED_PRICE, SchedulePrice
from dflash_controller.tuner.step_times import StepPrior, StepTimes
from testbed.simulator.batching import SCHEDULE_DRAFT_COST

PRIOR = StepPrior(200.0, 0.7)
DECAY = Decay(0.9925)
H100 = Path(__file__).resolve().parents[3] / "testbed" / "data" / "h100_vllm_dense.csv"
DENSE = StepTimes([StepPoint(16, c, 0.008 * (1 + c * 16 / 150)) for c in (0.5, 1, 2, 4, 8, 16, 32, 64)], PRIOR)
USUAL = Acceptance({16: 6.42, 8: 5.14}, DECAY)


def measured(run: str) -> dict[tuple[int, int], float]:
    """Tokens per second by block and clients of one run of the H100's table."""
    with H100.open(newline="") as rows:
        found = [row for row in csv.DictReader(rows) if row["notes"].startswith(f"{run};")]
    return {(int(row["block_size"]), int(row["concurrency"])): float(row["tok_per_s"]) for row in found}


def learned_from(table: dict[tuple[int, int], float]) -> StepTimes:
    return StepTimes([StepPoint(b, c, c * USUAL.lengths[b] / tok_per_s) for (b, c), tok_per_s in table.items()], PRIOR)


def table_for(up_to: int = 64, gain: float = 3.0, **options: object) -> object:
    asked = {"candidate_blocks": (8, 16), "acceptance": USUAL, "steps": DENSE, "trained_block": 16, **options}
    return best_schedule(asked.pop("candidate_blocks"), up_to, asked.pop("acceptance"), asked.pop("steps"), min_gain_percent=gain, **asked)


def test_the_price_lies_between_the_two_that_were_measured_and_is_the_simulators() -> None:
    true, scheduled = measured("default"), measured("schedule")
    prices = [100 * (true[8, c] / scheduled[16, c] - 1) for c in (32, 64)]
    assert prices == [pytest.approx(3.4, abs=0.1), pytest.approx(6.1, abs=0.1)]
    assert prices[0] < MEASURED_PRICE.below_percent < prices[1]
    assert pytest.approx(1 + MEASURED_PRICE.below_percent / 100) == SCHEDULE_DRAFT_COST


def test_a_measured_schedule_is_as_fast_as_foreseen_from_runs_of_its_blocks_alone() -> None:
    steps = learned_from(measured("default"))
    schedule = Schedule(((1, 16, 15), (17, 64, 7)))
    for (_, clients), tok_per_s in measured("schedule").items():
        assert speed(schedule, [ObservedLoad(clients)], USUAL, steps) == pytest.approx(tok_per_s, rel=0.025), clients


def test_from_the_measured_runs_the_long_block_serves_few_requests_and_the_short_one_many() -> None:
    found = table_for(steps=learned_from(measured("default")), gain=5.0)
    assert isinstance(found, Schedule)
    (first, last, few), (begin, end, many) = found.ranges
    assert (first, few, many, end) == (1, 15, 7, 64)
    assert last + 1 == begin
    assert 16 <= last < 32, "at 16 the longer block was 9 % faster, at 32 the shorter one 62 %"


def test_a_mixture_of_experts_gets_three_ranges() -> None:
    """Step times (ms by tokens) of 128 experts on an H100, the first one as steep as it may be: short, long, short."""
    moe = {4: 8.0, 8: 11.0, 16: 14.1, 32: 18.0, 64: 20.8, 128: 22.2, 256: 23.5, 512: 43.0, 1024: 66.2}
    steps = StepTimes([StepPoint(16, tokens / 16, ms / 1e3) for tokens, ms in moe.items()], PRIOR)
    found = table_for(steps=steps, acceptance=Acceptance({16: 6.42, 8: 5.6}, DECAY), gain=1.0, price=SchedulePrice(0.0))
    assert isinstance(found, Schedule)
    assert [k for _, _, k in found.ranges] == [7, 15, 7]


def test_a_run_that_gains_too_little_joins_its_neighbour() -> None:
    """Block 16 is 20 % faster up to 4, 3 % slower to 12, 2 % faster to 16, and 30 % slower above."""

    def faster(c: int) -> float:
        return 1.2 if c <= 4 else 0.97 if c <= 12 else 1.02 if c <= 16 else 0.7

    points = [StepPoint(b, c, c * USUAL.lengths[b] / (100 * c * (faster(c) if b == 16 else 1.0))) for b in (8, 16) for c in range(1, 33)]
    steps = StepTimes(points, PRIOR)

    def at(gain: float, **options: float) -> object:
        return table_for(32, gain, steps=steps, **{"price": SchedulePrice(0.0), **options})

    assert at(0.0) == at(1.9) == Schedule(((1, 4, 15), (5, 12, 7), (13, 16, 15), (17, 32, 7)))
    assert at(2.1) == at(14.0) == Schedule(((1, 4, 15), (5, 32, 7))), "2 % more from 13 to 16 is not worth a range"
    assert at(15.0) == Fixed(16), "the mean from 5 on is 14.5 % more, and 20 % more up to 4 weigh as much over the doublings"
    assert at(0.0, price=SchedulePrice(4.5)) == Schedule(((1, 16, 15), (17, 32, 7))), "3 % more from 5 to 12 are not worth the price"


def test_one_range_is_a_fixed_block_and_a_block_of_one_is_off() -> None:
    assert table_for(2) == Fixed(16)
    assert table_for(candidate_blocks=(8,)) == Fixed(8)
    assert table_for(trained_block=8) == Fixed(8), "16 is above the trained block"
    assert table_for(candidate_blocks=(1, 8, 16), acceptance=Acceptance({16: 1.01}, DECAY)) == Off()


def test_speculation_may_be_off_for_part_of_the_load() -> None:
    """Hardly accepted drafts: worth it while steps are bound by memory, and not when they are bound by computing."""
    steep = StepTimes([StepPoint(b, c, 0.008 * max(1.0, b * c / 64)) for b in (1, 8) for c in (1, 2, 4, 8, 16, 32, 64)], PRIOR)
    found = table_for(candidate_blocks=(1, 8), acceptance=Acceptance({8: 2.0}, DECAY), steps=steep)
    assert isinstance(found, Schedule)
    assert (found.ranges[0][2], found.ranges[-1][2]) == (7, 0)
    assert found.max_block_size == 8


def test_the_loads_seen_decide_whether_a_table_is_worth_its_price() -> None:
    assert isinstance(table_for(), Schedule)
    assert table_for(loads=[ObservedLoad(48)]) == Fixed(8), "nothing to gain from a table where a true block 8 is faster"
    assert table_for(loads=[ObservedLoad(1)]) == Fixed(16)
    both = table_for(loads=[ObservedLoad(1, 0.95), ObservedLoad(64, 0.05)])
    assert isinstance(both, Schedule)
    assert (block_at(both, 1), block_at(both, 64)) == (16, 8)


def test_a_table_runs_from_one_to_its_end_without_gap() -> None:
    for up_to in (3, 17, 64, 200):
        found = table_for(up_to, 1.0, candidate_blocks=(1, 2, 4, 8, 16))
        if isinstance(found, Schedule):
            assert found.ranges[0][0] == 1
            assert found.ranges[-1][1] == up_to
            assert all(high + 1 == low for (_, high, _), (low, _, _) in pairwise(found.ranges))


def test_the_speed_of_one_block_is_that_of_the_recommendation() -> None:
    loads = [ObservedLoad(1, 3.0), ObservedLoad(6.5, 2.0), ObservedLoad(32)]
    for block, speculation in ((16, Fixed(16)), (8, Fixed(8)), (1, Off())):
        expected = recommend(block, (), loads, USUAL, DENSE).best.tokens_per_s
        assert speed(speculation, loads, USUAL, DENSE) == pytest.approx(expected)


def test_the_speed_of_a_table_is_that_of_its_blocks_and_its_price() -> None:
    schedule = Schedule(((1, 8, 15), (9, 16, 7)))
    few, many, past = (speed(schedule, [ObservedLoad(c)], USUAL, DENSE) for c in (8, 9, 40))
    assert few == pytest.approx(speed(Fixed(16), [ObservedLoad(8)], USUAL, DENSE))
    assert many == pytest.approx(speed(Fixed(8), [ObservedLoad(9)], USUAL, DENSE) / 1.045)
    assert past == pytest.approx(speed(Fixed(8), [ObservedLoad(40)], USUAL, DENSE) / 1.045), "past the last range it goes on"
    between = (
        0.75 * speed(Fixed(16), [ObservedLoad(8.25)], USUAL, DENSE) + 0.25 * speed(Fixed(8), [ObservedLoad(8.25)], USUAL, DENSE) / 1.045
    )
    assert speed(schedule, [ObservedLoad(8.25)], USUAL, DENSE) == pytest.approx(between), (
        "8.25 requests are 8 for three quarters of the steps"
    )
    assert speed(schedule, [ObservedLoad(0.5)], USUAL, DENSE) == pytest.approx(speed(Fixed(16), [ObservedLoad(0.5)], USUAL, DENSE))
    mixed = speed(schedule, [ObservedLoad(8, 3.0), ObservedLoad(9, 1.0)], USUAL, DENSE)
    assert mixed == pytest.approx(0.75 * few + 0.25 * many)


def test_the_block_of_a_step() -> None:
    schedule = Schedule(((1, 8, 15), (9, 16, 0)))
    assert [block_at(schedule, requests) for requests in (1, 8, 9, 16, 99)] == [16, 16, 1, 1, 1]
    assert (block_at(Fixed(8), 5), block_at(Off(), 5)) == (8, 1)


def test_a_step_measured_under_a_table_tells_that_of_a_true_block() -> None:
    schedule = Schedule(((1, 8, 15), (9, 16, 7)))
    assert true_step_s(0.01045, 8, schedule) == pytest.approx(0.01)
    assert true_step_s(0.01, 16, schedule) == true_step_s(0.01, 8, Fixed(8)) == true_step_s(0.01, 1, Off()) == 0.01
    points = [StepPoint(16, c, DENSE.seconds(16, c)) for c in (1, 4, 8)]
    points += [StepPoint(8, c, true_step_s(1.045 * DENSE.seconds(8, c), 8, schedule)) for c in (9, 12, 16)]
    again = StepTimes(points, PRIOR)
    assert speed(schedule, [ObservedLoad(12)], USUAL, again) == pytest.approx(
        speed(schedule, [ObservedLoad(12)], USUAL, DENSE), rel=0.01
    ), "priced once"


def test_what_cannot_be_asked() -> None:
    for options in ({"candidate_blocks": (32,)}, {"candidate_blocks": ()}, {"up_to": 0}):
        with pytest.raises(ValueError, match="legal"):
            table_for(**options)
    with pytest.raises(ValueError, match="no load"):
        speed(Fixed(8), [], USUAL, DENSE)
    with pytest.raises(ValueError, match="no load"):
        mean_log_speed(Fixed(8), [ObservedLoad(1, 0.0)], USUAL, DENSE)
    assert math.isfinite(speed(Off(), [ObservedLoad(1e6)], USUAL, DENSE))

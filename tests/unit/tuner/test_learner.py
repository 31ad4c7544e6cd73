"""What a deployment shows is learned, forgotten and kept."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from dflash_controller.api.conditions import Reason
from dflash_controller.api.speculation import Fixed
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.tuner.acceptance import mean_length
from dflash_controller.tuner.decision import TunerDecision
from dflash_controller.tuner.learned import PairKnowledge
from dflash_controller.tuner.learner import Learned, Learner
from dflash_controller.tuner.step_times import StepPrior

START = 1_800_000_000.0
PRIOR = StepPrior(200.0, 0.7)
FIRST, DECAY = 0.85, 0.993
LATER = {"earlier", "context", "borrowed"}
"""What records of the first release do not have."""


def step_s(block: int, load: float) -> float:
    return 0.008 * (1 + block * load / 200)


def load_sample(at_s: float, block: int = 16, load: float = 8.0, **more: Any) -> LoadSample:
    seconds = step_s(block, load)
    steps = 60 / seconds * load
    values: dict[str, Any] = {
        "at_s": at_s,
        "seconds": 60.0,
        "block": block,
        "concurrency": load,
        "step_s": seconds,
        "steps": steps,
        "committed": steps * mean_length(FIRST, DECAY, block),
        "tokens": steps * mean_length(FIRST, DECAY, block),
    }
    return LoadSample(**{**values, **more})


def minutes(first: int, count: int, **what: Any) -> Iterator[tuple[float, LoadSample]]:
    for minute in range(first, first + count):
        at_s = START + 60 * minute
        yield at_s, load_sample(at_s, **what)


def fed(learner: Learner, first: int, count: int, **what: Any) -> float:
    now_s = START
    for at_s, one in minutes(first, count, **what):
        learner.take([one], at_s)
        now_s = at_s
    return now_s


def weighed(block: int, change_to: int | None = None, cost_s: float = 60.0, **gains: float) -> TunerDecision:
    numbers: dict[str, float | str] = {"block": block, "costSeconds": cost_s, "gainPercent": max(0.0, *gains.values())}
    numbers.update({f"gainPercent{candidate_block[1:]}": gain for candidate_block, gain in gains.items()})
    target = Fixed(change_to) if change_to is not None else None
    return TunerDecision("Tuning", Reason.TUNED, "", target, target, numbers)


def noted(learner: Learner, first: int, count: int, decision: TunerDecision) -> float:
    now_s = START
    for minute in range(first, first + count):
        now_s = START + 60 * minute
        learner.note(decision, now_s)
    return now_s


def test_loads_are_shares_of_the_window_and_of_the_last_days() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 60, load=1.0)
    now_s = fed(learner, 61, 60, load=32.0)
    learned = learner.learned(now_s, 300)
    assert [(load.concurrency, load.share) for load in learned.loads] == [(32.0, 1.0)]
    assert [load.concurrency for load in learned.usual] == [1.0, 32.0]
    assert learned.usual[1].share == pytest.approx(0.5, abs=0.03)
    assert learned.load_samples == 6
    both = learner.learned(now_s, 7200)
    assert [load.share for load in both.loads] == pytest.approx([0.5, 0.5], abs=0.02)


def test_a_window_is_as_short_as_a_slot() -> None:
    by_the_minute, by_seconds = Learner(PRIOR), Learner(PRIOR, slot_s=5.0)
    for learner in (by_the_minute, by_seconds):
        learner.take([load_sample(START + 5 * i, load=1.0 if i < 4 else 32.0, seconds=5.0) for i in range(8)], START + 35)
    shown = [[(load.concurrency, load.share) for load in learner.learned(START + 35, 6).loads] for learner in (by_the_minute, by_seconds)]
    assert shown == [[(1.0, 0.5), (32.0, 0.5)], [(32.0, 1.0)]]
    assert by_seconds.learned(START + 35, 6).load_samples == 3
    fast = [learner.learned(START + 35, 6).speeds[0][1] for learner in (by_the_minute, by_seconds)]
    assert fast[1] > 1.5 * fast[0]


def test_step_times_are_pooled_by_block_and_load() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 30, load=8.0)
    now_s = fed(learner, 31, 10, load=8.1, block=8)
    points = learner.learned(now_s).points
    assert [(point.block, point.concurrency) for point in points] == [(8, 8.1), (16, 8.0)]
    assert points[1].seconds == pytest.approx(step_s(16, 8.0), rel=1e-3)
    assert points[1].weight == pytest.approx(30, rel=0.01)


def test_unfit_stretches_tell_acceptance_and_load_but_no_step_time() -> None:
    learner = Learner(PRIOR)
    now_s = fed(learner, 1, 10, excluded="Prefill")
    learned = learner.learned(now_s)
    assert learned.points == ()
    assert learned.acceptance[0].length == pytest.approx(mean_length(FIRST, DECAY, 16), abs=0.01)
    assert learned.loads


def test_the_speed_of_each_block_is_measured_over_the_window() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 30, load=8.0)
    now_s = fed(learner, 31, 10, block=8, load=16.0)
    learner.take([load_sample(now_s, block=8, load=16.0, step_s=9.0, excluded="Unsteady")], now_s)
    expected = {block: mean_length(FIRST, DECAY, block) * load / step_s(block, load) for block, load in ((16, 8.0), (8, 16.0))}
    both = learner.learned(now_s, 1800)
    assert dict(both.speeds) == pytest.approx(expected, rel=0.01)
    assert [block for block, _ in learner.learned(now_s, 300).speeds] == [8]
    assert learner.learned(now_s + 3600, 300).speeds == ()
    assert Learned.from_json(json.loads(json.dumps(both.to_json()))) == both


def test_without_speculation_a_step_is_a_token() -> None:
    learner = Learner(PRIOR)
    now_s = fed(learner, 1, 10, block=1, load=4.0, committed=0.0)
    assert dict(learner.learned(now_s).speeds) == pytest.approx({1: 4.0 / step_s(1, 4.0)}, rel=1e-3)


def test_a_doubted_load_teaches_acceptance_and_nothing_else() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 10, load=8.0)
    now_s = fed(learner, 11, 5, load=24.0, inconsistent=True)
    learned = learner.learned(now_s, 3600)
    assert (learned.load_samples, learned.inconsistent) == (15, 5)
    assert [load.concurrency for load in learned.loads] == [8.0]
    assert [load.concurrency for load in learned.usual] == [8.0]
    assert [point.concurrency for point in learned.points] == [8.0]
    assert learned.acceptance[0].steps == pytest.approx(10 * load_sample(0).steps + 5 * load_sample(0, load=24.0).steps, rel=1e-4)
    assert Learned.from_json(json.loads(json.dumps(learned.to_json()))) == learned
    fed(learner, 16, 5, load=8.0)
    assert learner.learned(now_s + 300, 240).inconsistent == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"context": math.nan},
        {"step_s": math.nan},
        {"seconds": math.inf},
        {"concurrency": -1.0},
        {"at_s": START + 9999},
        {"block": 0},
        {"steps": 0.0, "tokens": 0.0},
    ],
)
def test_impossible_stretches_are_left_out(wrong: dict[str, Any]) -> None:
    learner = Learner(PRIOR)
    learner.take([replace(load_sample(START), **wrong)], START)
    assert learner.learned(START) == Learner(PRIOR).learned(START)


def test_survival_by_position_is_the_mean_over_steps_and_never_rises() -> None:
    learner = Learner(PRIOR)
    alive = tuple(0.9**place for place in range(1, 16))
    now_s = fed(learner, 1, 5, survival=alive)
    learner.take([load_sample(now_s, survival=(0.5, *[0.6] * 14))], now_s)
    seen = learner.learned(now_s).acceptance[0]
    assert len(seen.survival) == 15
    assert 0.8 < seen.survival[0] < 0.9
    assert list(seen.survival) == sorted(seen.survival, reverse=True)


def test_a_change_of_block_tells_how_acceptance_falls() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 40, block=16)
    now_s = fed(learner, 45, 40, block=8)
    assert learner.learned(now_s).decays == pytest.approx([DECAY], abs=2e-3)


def test_two_blocks_hours_apart_tell_nothing_of_it() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 40, block=16)
    now_s = fed(learner, 200, 40, block=8)
    assert learner.learned(now_s).decays == ()


def test_what_lasts_starts_a_new_epoch_and_what_does_not_is_left_out() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 60, load=8.0)
    fed(learner, 61, 60, load=16.0)
    fed(learner, 121, 19, load=16.0, step_s=2 * step_s(16, 16.0))
    now_s = fed(learner, 140, 5, load=16.0)
    assert learner.epoch == 0
    assert learner.learned(now_s).points[-1].seconds == pytest.approx(step_s(16, 16.0), rel=0.01)
    now_s = fed(learner, 145, 25, load=16.0, step_s=2 * step_s(16, 16.0))
    assert learner.epoch == 1
    near, far = learner.learned(now_s).points[-1], learner.learned(now_s + 1).points
    assert near.seconds == pytest.approx(2 * step_s(16, 16.0), rel=0.01)
    assert len(far) in (1, 2)


LOADS = (2.0, 4.0, 8.0, 16.0, 32.0)


def by_load(learner: Learner, now_s: float) -> dict[float, float]:
    return {point.concurrency: point.seconds for point in learner.learned(now_s).points}


def seen_at(context: float) -> Learner:
    """Five loads, each for a hundred minutes, of requests with that mean context."""
    learner = Learner(PRIOR)
    for place, load in enumerate(LOADS):
        fed(learner, 100 * place, 100, load=load, requests=10.0, context=context)
    return learner


@pytest.mark.parametrize("factor", [1.8, 1 / 1.8, 8.0])
def test_requests_of_another_length_start_a_new_epoch(factor: float) -> None:
    """What was known keeps its shape, at the level of what is seen now."""
    learner = seen_at(1000.0)
    now_s = fed(learner, 501, 60, load=8.0, requests=10.0, context=1000.0 * factor, step_s=1.2 * step_s(16, 8.0))
    assert learner.epoch == 1
    found = by_load(learner, now_s)
    assert list(found) == list(LOADS)
    for load in LOADS:
        assert found[load] == pytest.approx(1.2 * step_s(16, load), rel=0.06), "the first stretches were still taken for the old epoch's"
    weights = {point.concurrency: point.weight for point in learner.learned(now_s).points}
    assert weights[8.0] > 20
    assert weights[32.0] == 1
    now_s = fed(learner, 561, 10, load=32.0, requests=10.0, context=1000.0 * factor, step_s=1.4 * step_s(16, 32.0))
    assert by_load(learner, now_s)[32.0] == pytest.approx(1.4 * step_s(16, 32.0), rel=0.01)


def test_requests_that_hardly_change_start_none() -> None:
    learner = seen_at(1000.0)
    draw = random.Random(3)
    for minute in range(501, 1100):
        # Ten requests whose contexts scatter as much as their mean.
        context = sum(draw.expovariate(1 / 1300.0) for _ in range(10)) / 10
        fed(learner, minute, 1, requests=10.0, context=context)
    assert learner.epoch == 0


def test_a_minute_of_long_requests_starts_none_and_neither_do_a_few() -> None:
    learner = seen_at(1000.0)
    fed(learner, 501, 1, requests=500.0, context=1000.0)
    fed(learner, 502, 1, requests=10.0, context=8000.0)
    assert learner.epoch == 0
    few = Learner(PRIOR)
    fed(few, 1, 4, requests=20.0, context=1000.0)
    fed(few, 5, 1, requests=5.0, context=50_000.0)
    assert few.epoch == 0


def test_engines_that_do_not_tell_the_context_start_none() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 60)
    assert learner.epoch == 0


def test_the_context_and_what_was_known_before_survive_a_restart() -> None:
    learner = Learner.from_json(json.loads(json.dumps(seen_at(1000.0).to_json())), PRIOR)
    now_s = fed(learner, 501, 40, requests=10.0, context=3000.0)
    assert learner.epoch == 1
    back = Learner.from_json(json.loads(json.dumps(learner.to_json())), PRIOR)
    assert list(by_load(back, now_s)) == pytest.approx(LOADS, rel=1e-3)
    fed(back, 541, 40, requests=10.0, context=3000.0)
    assert back.epoch == 1


def test_epoch_after_epoch_the_shape_is_kept_and_the_record_stays_small() -> None:
    learner, context = seen_at(1000.0), 1000.0
    now_s = START
    for turn in range(12):
        context = 4000.0 if context == 1000.0 else 1000.0
        for place in range(40):
            load = 2 ** (place / 8)
            now_s = fed(learner, 600 + 200 * turn + 4 * place, 4, load=load, requests=30.0, context=context)
    assert learner.epoch == 12
    found = by_load(learner, now_s)
    assert min(found) < 2
    assert max(found) > 28
    assert len(found) > 35
    assert all(seconds == pytest.approx(step_s(16, load), rel=0.02) for load, seconds in found.items())
    assert len(json.dumps(learner.to_json(), separators=(",", ":"))) <= 8192


def test_old_step_times_lose_weight() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 30, load=8.0)
    now_s = fed(learner, 1 + 3 * 1440, 10, load=32.0)
    points = learner.learned(now_s).points
    assert points[0].weight == pytest.approx(15, rel=0.02)


def test_debt_grows_while_another_arm_is_better_and_falls_while_it_is_not() -> None:
    learner = Learner(PRIOR)
    now_s = noted(learner, 0, 61, weighed(16, _8=25.0))
    assert learner.learned(now_s).past.regret(8) == pytest.approx(3600 * (1 - 1 / 1.25), abs=1)
    now_s = noted(learner, 61, 30, weighed(16, _8=-20.0))
    assert learner.learned(now_s).past.regret(8) == pytest.approx(3600 * 0.2 - 1800 * 0.2, abs=20)
    now_s = noted(learner, 91, 60, weighed(16, _8=-20.0))
    assert learner.learned(now_s).past.regret(8) == 0


def test_time_that_nobody_saw_makes_no_debt() -> None:
    learner = Learner(PRIOR)
    learner.note(weighed(16, _8=25.0), START)
    learner.note(weighed(16, _8=25.0), START + 86400)
    assert learner.learned(START).past.regret(8) == pytest.approx(300 * 0.2)


def test_decisions_that_weighed_nothing_count_for_nothing() -> None:
    learner = Learner(PRIOR)
    noted(learner, 0, 10, TunerDecision("Frozen", Reason.FROZEN, ""))
    assert learner.learned(START).past == Learner(PRIOR).learned(START).past


def test_stays_are_how_long_the_load_favoured_an_arm() -> None:
    learner = Learner(PRIOR)
    noted(learner, 0, 61, weighed(16, _8=-20.0))
    noted(learner, 61, 30, weighed(16, _8=20.0))
    noted(learner, 91, 1, weighed(16, _8=1.0))
    now_s = noted(learner, 92, 11, weighed(16, _8=-20.0))
    past = learner.learned(now_s).past
    assert past.stays_of(16) == (61 * 60,)
    assert past.stays_of(8) == (31 * 60,)
    assert (past.favoured, past.favoured_s) == (16, 600.0)


def test_a_wasted_change_doubles_the_factor_and_clean_days_halve_it() -> None:
    learner = Learner(PRIOR)
    noted(learner, 0, 10, weighed(16, 8, _8=20.0))
    noted(learner, 20, 10, weighed(8, _16=20.0))
    noted(learner, 30, 1, weighed(8, 16, _16=20.0))
    now_s = noted(learner, 40, 1, weighed(16, _8=-20.0))
    past = learner.learned(now_s).past
    assert (past.wasted, past.factor, past.previous) == (1, 4.0, 8)
    now_s = noted(learner, 41, 2 * 1440, weighed(16, _8=-20.0))
    assert learner.learned(now_s).past.factor == 1.0


def test_a_change_that_earned_its_cost_is_not_wasted() -> None:
    learner = Learner(PRIOR)
    noted(learner, 0, 10, weighed(16, 8, _8=20.0))
    noted(learner, 20, 120, weighed(8, _16=-20.0))
    now_s = noted(learner, 140, 1, weighed(16, _8=20.0))
    assert learner.learned(now_s).past.wasted == 0


def test_step_times_unlike_those_predicted_are_counted_once_for_each_change() -> None:
    learner = Learner(PRIOR)
    for load in (1.0, 4.0, 16.0, 32.0):
        fed(learner, int(1 + load * 20), 20, load=load)
    learner.note(weighed(16, 8, _8=20.0), START + 60 * 700)
    now_s = fed(learner, 701, 10, block=8, load=16.0)
    assert (learner.learned(now_s).misses, abs(learner.learned(now_s).model_error) < 0.05) == (0, True)
    learner.note(weighed(8, 4, _4=20.0), now_s)
    now_s = fed(learner, 711, 30, block=4, load=16.0, step_s=1.6 * step_s(4, 16.0))
    learned = learner.learned(now_s)
    assert (learned.misses, learned.missed) == (1, 4)
    assert learned.model_error == pytest.approx(math.log(1.6), abs=0.05)
    assert learner.learned(now_s + 86400 + 3600).misses == 0


def test_an_exploratory_trial_promises_nothing_so_that_what_it_shows_is_no_miss() -> None:
    for reason, misses in ((Reason.TUNED, 1), (Reason.EXPLORING, 0)):
        learner = Learner(PRIOR)
        fed(learner, 1, 60, load=16.0)
        learner.note(replace(weighed(16, 8, _8=20.0), reason=reason), START + 60 * 61)
        now_s = fed(learner, 62, 30, block=8, load=16.0, step_s=1.6 * step_s(8, 16.0))
        assert learner.learned(now_s).misses == misses


@pytest.mark.parametrize(("minutes", "count"), [(9, 0), (10, 1), (60, 1)])
def test_a_trial_shows_one_decay_because_both_blocks_get_the_same_traffic_at_once(minutes: int, count: int) -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 60, load=16.0)
    for minute in range(61, 61 + minutes):
        at_s = START + 60 * minute
        for block, on_trial in ((16, False), (8, True)):
            committed = 4000.0 * mean_length(0.85, 0.98, block)
            learner.take([LoadSample(at_s, 60.0, block, 16.0, step_s(block, 16.0), 4000.0, committed, committed)], at_s, on_trial=on_trial)
    decays = learner.learned(START + 60 * (61 + minutes)).decays
    assert len(decays) == count
    assert all(decay == pytest.approx(0.98, abs=0.004) for decay in decays)


def test_what_a_replica_on_trial_shows_is_learned_and_is_no_miss() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 60, load=16.0)
    learner.note(weighed(16, 8, _8=20.0), START + 60 * 61)
    for minute in range(62, 92):
        at_s = START + 60 * minute
        tried = LoadSample(at_s, 60.0, 8, 16.0, 1.6 * step_s(8, 16.0), 1000.0, 4000.0, 4000.0)
        learner.take([tried], at_s, on_trial=True)
    learned = learner.learned(START + 60 * 92)
    assert learned.misses == 0
    assert {point.block for point in learned.points} == {8, 16}


@cache
def rich() -> tuple[Learner, float]:
    """As much as a learner can hold."""
    learner, draw = Learner(PRIOR), random.Random(1)
    now_s = START
    for minute in range(1500):
        now_s = START + 60 * minute
        block, load = draw.choice((4, 8, 16)), 2 ** draw.uniform(-1, 8)
        learner.take([load_sample(now_s, block, load, survival=tuple(0.912345**place for place in range(1, block)))], now_s)
        gain = draw.uniform(-30, 30)
        learner.note(
            weighed(
                16 if minute % 200 < 100 else 8,
                draw.choice((8, 16)) if minute % 50 == 0 else None,
                _1=-70.0,
                _4=gain,
                _8=-gain,
                _16=gain / 2,
            ),
            now_s,
        )
    return learner, now_s


def test_what_is_kept_is_small_and_comes_back_the_same() -> None:
    learner, now_s = rich()
    text = json.dumps(learner.to_json(), separators=(",", ":"))
    assert len(text) <= 8192
    back = Learner.from_json(json.loads(text), PRIOR)
    assert json.dumps(back.to_json(), separators=(",", ":")) == text
    was, now = learner.learned(now_s), back.learned(now_s)
    assert now.past == was.past
    assert (now.decays, now.drafted, now.misses) == (was.decays, was.drafted, was.misses)
    assert now.points[0].seconds == pytest.approx(was.points[0].seconds, rel=1e-3)
    fed(back, 1500, 10)


def test_a_record_stays_small_with_all_that_can_be_borrowed() -> None:
    """After an epoch has ended too, so that earlier and borrowed step times are both there."""
    learner = Learner.from_json(json.loads(json.dumps(rich()[0].to_json())), PRIOR)
    lent = [[block, 400.0, place / 8, -3.9123, START] for block in (4, 8, 16) for place in range(40)]
    learner.borrow([PairKnowledge(lent), PairKnowledge(lent)])
    now_s = fed(learner, 1600, 60, requests=100.0, context=900.0)
    fed(learner, 1700, 60, requests=100.0, context=9000.0)
    assert learner.epoch == rich()[0].epoch + 1
    data = learner.to_json()
    assert len(data["earlier"]) == len(data["borrowed"]) == 40
    assert len(json.dumps({**data, "pools": rich()[0].to_json()["pools"]}, separators=(",", ":"))) <= 8192
    back = Learner.from_json(json.loads(json.dumps(data)), PRIOR)
    assert back.to_json() == data
    assert any(point.prior for point in back.learned(now_s).points)


def test_decays_of_the_same_drafter_are_borrowed_until_there_are_own_ones() -> None:
    learner = Learner(PRIOR)
    learner.borrow([PairKnowledge(), PairKnowledge([[16, 9.0, 2.0, -4.0, START]], decays=(0.98, 0.985))])
    assert learner.learned(START).decays == (0.98, 0.985)
    learner.borrow([PairKnowledge([[16, 9.0, 2.0, -4.0, START]])])
    assert learner.learned(START).decays == ()
    assert rich()[0].lend().decays == rich()[0].learned(rich()[1]).decays


def test_what_is_damaged_is_forgotten() -> None:
    sound = json.loads(json.dumps(rich()[0].to_json()))
    empty = Learner(PRIOR).to_json()
    assert Learner.from_json(None, PRIOR).to_json() == empty
    draw = random.Random(2)
    for key in sound:
        for bad in (None, [], {}, "x", -1, math.nan, [[1]], [None], {"at": "x"}):
            learner = Learner.from_json({**sound, key: bad}, PRIOR)
            fed(learner, 5000, 3)
            learner.note(weighed(16, _8=draw.uniform(-9, 9)), START + 60 * 5003)
            json.dumps(learner.to_json(), allow_nan=False)
        missing = {name: value for name, value in sound.items() if name != key}
        if key not in LATER:
            assert Learner.from_json(missing, PRIOR).to_json() == empty


def test_records_of_earlier_releases_are_read() -> None:
    sound = json.loads(json.dumps(rich()[0].to_json()))
    old = {key: value for key, value in sound.items() if key not in LATER}
    back = Learner.from_json(old, PRIOR)
    assert back.to_json() == {**sound, "context": Learner(PRIOR).to_json()["context"]}
    now_s = fed(back, 1500, 10, requests=100.0, context=900.0)
    assert back.learned(now_s).points


def test_points_are_decode_steps_and_speeds_are_what_was_served() -> None:
    learner = Learner(PRIOR)
    now_s = fed(learner, 1, 30, prefill_share=0.4)
    learned = learner.learned(now_s)
    assert learned.points[0].seconds == pytest.approx(0.6 * step_s(16, 8.0), rel=1e-3)
    assert learned.prefill_share == pytest.approx(0.4)
    whole = 8.0 / step_s(16, 8.0) * mean_length(FIRST, DECAY, 16)
    assert dict(learned.speeds)[16] == pytest.approx(whole, rel=0.01)


def test_windows_that_were_mostly_prefill_are_counted() -> None:
    learner = Learner(PRIOR)
    now_s = fed(learner, 1, 10, excluded="Prefill")
    learned = learner.learned(now_s)
    assert (learned.prefilling, learned.waiting, learned.load_samples) == (6, 0, 6)
    full = Learner(PRIOR)
    now_s = fed(full, 1, 10, excluded="CacheFull")
    assert (full.learned(now_s).prefilling, full.learned(now_s).waiting) == (0, 6)
    assert not full.learned(now_s).points
    assert Learned.from_json(learned.to_json()) == learned


def test_windows_with_a_lasting_queue_are_counted_as_waiting_and_teach_step_times() -> None:
    learner = Learner(PRIOR)
    now_s = fed(learner, 1, 10, queued=True)
    learned = learner.learned(now_s)
    assert (learned.waiting, learned.load_samples) == (6, 6)
    assert learned.points[0].seconds == pytest.approx(step_s(16, 8.0), rel=1e-3)


def test_windows_of_an_engine_in_its_warm_up_teach_acceptance_and_loads_and_no_step_times() -> None:
    learner = Learner(PRIOR)
    now_s = fed(learner, 1, 10, excluded="WarmUp")
    learned = learner.learned(now_s)
    assert (learned.points, learned.speeds) == ((), ())
    assert (learned.warming, learned.load_samples) == (6, 6)
    assert learned.acceptance
    assert learned.loads
    assert Learned.from_json(learned.to_json()) == learned


def test_a_change_is_not_compared_with_the_prediction_by_windows_of_a_warm_up() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 30)
    noted(learner, 31, 1, weighed(16, change_to=8, _8=20.0))
    slow = {"block": 8, "step_s": 2 * step_s(8, 8.0)}
    now_s = fed(learner, 32, 10, **slow, excluded="WarmUp")
    assert (learner.learned(now_s).misses, learner.learned(now_s).model_error) == (0, 0.0)
    now_s = fed(learner, 42, 10, **slow)
    assert learner.learned(now_s).misses == 1

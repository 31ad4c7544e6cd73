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
from dflash_controller.planning.tuner.acceptance import mean_length
from dflash_controller.planning.tuner.decision import Decision
from dflash_controller.planning.tuner.learner import Learner
from dflash_controller.planning.tuner.steps import StepPrior
from dflash_controller.planning.tuner.stretch import Stretch

START = 1_800_000_000.0
PRIOR = StepPrior(200.0, 0.7)
FIRST, DECAY = 0.85, 0.993


def step_s(block: int, load: float) -> float:
    return 0.008 * (1 + block * load / 200)


def stretch(at_s: float, block: int = 16, load: float = 8.0, **more: Any) -> Stretch:
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
    return Stretch(**{**values, **more})


def minutes(first: int, count: int, **what: Any) -> Iterator[tuple[float, Stretch]]:
    for minute in range(first, first + count):
        at_s = START + 60 * minute
        yield at_s, stretch(at_s, **what)


def fed(learner: Learner, first: int, count: int, **what: Any) -> float:
    now_s = START
    for at_s, one in minutes(first, count, **what):
        learner.take([one], at_s)
        now_s = at_s
    return now_s


def weighed(block: int, change_to: int | None = None, cost_s: float = 60.0, **gains: float) -> Decision:
    numbers: dict[str, float | str] = {"block": block, "costSeconds": cost_s, "gainPercent": max(0.0, *gains.values())}
    numbers.update({f"gainPercent{arm[1:]}": gain for arm, gain in gains.items()})
    target = Fixed(change_to) if change_to is not None else None
    return Decision("Tuning", Reason.TUNED, "", target, target, numbers)


def noted(learner: Learner, first: int, count: int, decision: Decision) -> float:
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
    assert learned.stretches == 6
    both = learner.learned(now_s, 7200)
    assert [load.share for load in both.loads] == pytest.approx([0.5, 0.5], abs=0.02)


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
    now_s = fed(learner, 1, 10, unfit="Prefill")
    learned = learner.learned(now_s)
    assert learned.points == ()
    assert learned.acceptance[0].length == pytest.approx(mean_length(FIRST, DECAY, 16), abs=0.01)
    assert learned.loads


@pytest.mark.parametrize(
    "wrong",
    [
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
    learner.take([replace(stretch(START), **wrong)], START)
    assert learner.learned(START) == Learner(PRIOR).learned(START)


def test_survival_by_position_is_the_mean_over_steps_and_never_rises() -> None:
    learner = Learner(PRIOR)
    alive = tuple(0.9**place for place in range(1, 16))
    now_s = fed(learner, 1, 5, survival=alive)
    learner.take([stretch(now_s, survival=(0.5, *[0.6] * 14))], now_s)
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


def test_old_step_times_lose_weight() -> None:
    learner = Learner(PRIOR)
    fed(learner, 1, 30, load=8.0)
    now_s = fed(learner, 1 + 3 * 1440, 10, load=32.0)
    points = learner.learned(now_s).points
    assert points[0].weight == pytest.approx(15, rel=0.02)


def test_debt_grows_while_another_arm_is_better_and_falls_while_it_is_not() -> None:
    learner = Learner(PRIOR)
    now_s = noted(learner, 0, 61, weighed(16, _8=25.0))
    assert learner.learned(now_s).past.debt(8) == pytest.approx(3600 * (1 - 1 / 1.25), abs=1)
    now_s = noted(learner, 61, 30, weighed(16, _8=-20.0))
    assert learner.learned(now_s).past.debt(8) == pytest.approx(3600 * 0.2 - 1800 * 0.25, abs=20)
    now_s = noted(learner, 91, 60, weighed(16, _8=-20.0))
    assert learner.learned(now_s).past.debt(8) == 0


def test_time_that_nobody_saw_makes_no_debt() -> None:
    learner = Learner(PRIOR)
    learner.note(weighed(16, _8=25.0), START)
    learner.note(weighed(16, _8=25.0), START + 86400)
    assert learner.learned(START).past.debt(8) == pytest.approx(300 * 0.2)


def test_decisions_that_weighed_nothing_count_for_nothing() -> None:
    learner = Learner(PRIOR)
    noted(learner, 0, 10, Decision("Frozen", Reason.FROZEN, ""))
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


@cache
def rich() -> tuple[Learner, float]:
    """As much as a learner can hold."""
    learner, draw = Learner(PRIOR), random.Random(1)
    now_s = START
    for minute in range(1500):
        now_s = START + 60 * minute
        block, load = draw.choice((4, 8, 16)), 2 ** draw.uniform(-1, 8)
        learner.take([stretch(now_s, block, load, survival=tuple(0.912345**place for place in range(1, block)))], now_s)
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
        assert Learner.from_json(missing, PRIOR).to_json() == empty

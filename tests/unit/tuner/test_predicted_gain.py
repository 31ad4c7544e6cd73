"""What is promised of a change at the load that is there, and what of it must be kept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dflash_controller.api.speculation import Fixed, Schedule
from dflash_controller.model.prediction import Prediction
from dflash_controller.tuner.learned import Learned
from dflash_controller.tuner.predicted_gain import predict
from dflash_controller.tuner.recommend import ObservedLoad
from tests.unit.tuner.test_policy import asked, known, length, step_s

EIGHT, SIXTEEN = Fixed(8), Fixed(16)


def told(learned: Learned | None, least: float = 5.0) -> Prediction:
    return predict(learned, SIXTEEN, EIGHT, mixture=False, min_gain_percent=least)


def test_the_gain_is_the_one_at_the_load_of_now() -> None:
    right = math.log(length(8) / length(16) * step_s(16, 32.0) / step_s(8, 32.0))
    assert told(known(32.0)).gain == pytest.approx(right, abs=0.03)
    assert told(known(1.0)) == Prediction(), "there the long block is faster"
    mixed = replace(known(32.0), loads=(ObservedLoad(1.0, 0.5), ObservedLoad(32.0, 0.5)))
    assert 0 < told(mixed).gain < told(known(32.0)).gain


def test_half_of_it_must_be_kept_or_what_is_asked_of_any_change() -> None:
    found = told(known(32.0), least=60.0)
    assert found.least == pytest.approx(found.gain / 2)
    assert told(known(32.0), least=2.0).least == pytest.approx(math.log(1.02))


def test_a_schedule_can_be_promised() -> None:
    table = Schedule(((1, 8, 15), (9, 64, 7)))
    found = predict(known(32.0), SIXTEEN, table, mixture=False, min_gain_percent=5.0)
    assert 0 < found.gain < told(known(32.0)).gain, "a shorter block under a table costs a little more than a true one"


def test_where_nothing_can_be_predicted_nothing_is_promised() -> None:
    for learned in (None, Learned(), known(points=()), known(loads=(), usual=()), known(acceptance=())):
        assert told(learned) == Prediction()


def test_while_the_only_replica_is_on_trial_what_was_seen_last_counts() -> None:
    learned = known(32.0)
    quiet = replace(learned, loads=(), acceptance=(), drafted=learned.acceptance[0], usual=(ObservedLoad(32.0),))
    assert told(quiet).gain == pytest.approx(told(learned).gain)


def test_the_promise_is_what_the_decision_was_made_by() -> None:
    from dflash_controller.tuner.policy import decide

    decision = decide(asked(), known(32.0))
    assert decision.change_to == EIGHT
    assert math.expm1(told(known(32.0)).gain) == pytest.approx(float(decision.numbers["gainPercent"]) / 100, abs=1e-3)

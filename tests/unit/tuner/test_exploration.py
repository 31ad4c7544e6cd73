"""When a block size is tried because its gain is not known, and when that is only said."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from dflash_controller.api.conditions import Reason
from dflash_controller.api.speculation import Fixed, Schedule
from dflash_controller.tuner import comparison
from dflash_controller.tuner.cost_benefit import SwitchingCost
from dflash_controller.tuner.decision import GAIN_ERROR, GAIN_MEASURED, TRIAL_BLOCK, Change, TunerDecision
from dflash_controller.tuner.exploration import (
    MEASURING_S,
    WEEK_S,
    TrialValue,
    lasting_s,
    trial_value,
    upper_mean,
)
from dflash_controller.tuner.learned import Learned, Past
from dflash_controller.tuner.load_kind import is_measured, same_kind
from dflash_controller.tuner.machine import Machine
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.policy import decide, replay
from dflash_controller.tuner.priors import Priors
from dflash_controller.tuner.recommend import Forecast, ObservedLoad, Recommendation, recommend
from tests.support.tuner_inputs import AUTO, tuner_inputs
from tests.unit.tuner.test_policy import DAY, NOW, known, step_s


class Belief:
    """What the tuner believes of every other block size, whatever was learned."""

    def __init__(self) -> None:
        self.log_gain: float | None = 0.0
        self.log_sigma = 0.3

    def recommend(self, current: int, *positional: Any, **named: Any) -> Recommendation:
        found = recommend(current, *positional, **named)
        forecasts = tuple(
            forecast
            if forecast.block == current
            else replace(
                forecast,
                log_gain=forecast.log_gain if self.log_gain is None else self.log_gain - forecast.block / 1e6,
                log_sigma=self.log_sigma,
            )
            for forecast in found.forecasts
        )
        best = max(forecasts, key=lambda forecast: (forecast.log_gain, forecast.block == current))
        return Recommendation(current, best.block, forecasts)


@pytest.fixture
def belief() -> Iterator[Belief]:
    belief = Belief()
    with patch.object(comparison, "recommend", belief.recommend):
        yield belief


def lasting(load: float = 8.0, hours: float = 8.0, **more: Any) -> Learned:
    """Known with block 16, at a load that has lasted for some hours and is all that is usual."""
    values: dict[str, Any] = {"past": Past(favoured=16, favoured_s=hours * 3600), "usual": (ObservedLoad(load),), **more}
    return known(load, **values)


def asked(learned: Learned, **more: Any) -> TunerDecision:
    return decide(tuner_inputs(**{"restart_s": 120.0, **more}), learned)


def test_a_block_size_at_which_requests_would_wait_for_memory_is_neither_chosen_nor_tried() -> None:
    """Of ten requests, six fit at 16: by step times alone it would be worth a trial."""
    prior = Priors.load().prior(Machine("vllm", hybrid=True))
    learned = lasting(10.0, block=8, past=Past(favoured=8, favoured_s=8 * 3600))
    fits = {"speculation": Fixed(8), "restart_s": 120.0, "surge": True}
    free = decide(tuner_inputs(**fits), learned, prior=prior)
    short = decide(tuner_inputs(**fits, capacity=((8, 12.4), (16, 6.1))), learned, prior=prior)
    assert (free.reason, free.change_to) == (Reason.EXPLORING, Fixed(16))
    assert (short.reason, short.change_to, short.recommendation) == (Reason.TUNED, None, Fixed(8))
    assert float(short.numbers["gainPercent16"]) < float(free.numbers["gainPercent16"]) - 20


def test_what_is_uncertain_is_tried_although_the_mean_promises_nothing(belief: Belief) -> None:
    decision = asked(lasting())
    assert (decision.state, decision.reason, decision.change_to) == ("Tuning", Reason.EXPLORING, Fixed(8))
    assert decision.recommendation == Fixed(16), "by the mean the active block size stays the best"
    assert "-0.0 % is inferred, with an error of 30 %" in decision.message
    assert decision.numbers[TRIAL_BLOCK] == 8
    assert float(decision.numbers["trialValueSeconds"]) > float(decision.numbers["trialCostSeconds"]) > 0
    assert decision.numbers[f"{GAIN_ERROR}8"] == 30
    assert decision.numbers[f"{GAIN_MEASURED}8"] == 0


def test_a_mean_gain_below_the_least_one_is_tried_where_the_error_is_large(belief: Belief) -> None:
    belief.log_gain = math.log(1.03)
    assert asked(lasting()).change_to == Fixed(8)
    belief.log_sigma = 0.05
    assert asked(lasting()).reason is Reason.GAIN_TOO_SMALL


@pytest.mark.parametrize(
    ("log_gain", "log_sigma", "reason"),
    [
        (-0.5, 0.12, Reason.TUNED),  # surely slower
        (0.0, 0.05, Reason.TUNED),  # known well enough
        (-0.1, 0.3, Reason.EXPLORING),
        (0.3, 0.3, Reason.GAIN_TOO_SMALL),  # the tuner changes anyway, once the regret justifies it
    ],
)
def test_only_what_knowing_would_change_is_worth_a_trial(belief: Belief, log_gain: float, log_sigma: float, reason: Reason) -> None:
    belief.log_gain, belief.log_sigma = log_gain, log_sigma
    assert asked(lasting()).reason is reason


def test_a_load_that_has_just_begun_or_is_rare_is_not_explored(belief: Belief) -> None:
    assert asked(lasting(hours=0.1)).change_to is None
    assert asked(lasting(hours=4)).change_to == Fixed(8)
    rare = lasting(hours=4, usual=(ObservedLoad(8.0, 0.05), ObservedLoad(32.0, 0.95)))
    assert asked(rare).change_to is None


def test_a_slow_restart_asks_for_a_load_that_lasts_longer(belief: Belief) -> None:
    assert asked(lasting(hours=1)).change_to == Fixed(8)
    assert asked(lasting(hours=1), restart_s=1800.0).change_to is None
    assert asked(lasting(hours=48), restart_s=1800.0).change_to == Fixed(8)


def test_what_was_measured_at_such_load_is_not_explored_again(belief: Belief) -> None:
    learned = lasting()
    near = StepPoint(8, 9.0, step_s(8, 9.0), 10.0)
    far = StepPoint(8, 32.0, step_s(8, 32.0), 10.0)
    thin = replace(near, weight=1.0)
    measured = asked(replace(learned, points=(*learned.points, near)))
    assert (measured.change_to, measured.numbers[f"{GAIN_MEASURED}8"]) == (None, 1)
    for point in (far, thin):
        assert asked(replace(learned, points=(*learned.points, point))).change_to == Fixed(8)


def trial(at_s: float = NOW - 2 * DAY, load: float = 8.0, *, block: int = 8, refused: bool = True) -> Change:
    return Change(at_s, block, False, load, refused, True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"policy": replace(AUTO, mode="Advise")}, "spec.tuning.mode is Advise"),
        ({"policy": replace(AUTO, exploration=False)}, "spec.tuning.exploration.enabled is false"),
        ({"policy": replace(AUTO, max_trials_per_week=0)}, "maxTrialsPerWeek is 0"),
        ({"replicas": 1, "serving": 1, "measured": 1}, "the only replica would be on trial"),
        ({"replicas": 1, "serving": 1, "measured": 1, "policy": replace(AUTO, allow_downtime=True)}, "the only replica would be on trial"),
        ({"changes": (trial(),)}, "1 were made at such load in seven days"),
        ({"changes": (trial(load=10.0),)}, "1 were made at such load in seven days"),
        ({"changes": (trial(NOW - 9000, 1.0), trial(NOW - 7200, 32.0))}, "2 were made in the last 24 hours"),
        ({"changes": (Change(NOW - 600, 16, True),)}, "minDwell"),
        ({"policy": replace(AUTO, max_changes_per_day=0)}, "maxChangesPerDay"),
        ({"changes": (Change(NOW - 0.9 * DAY, 8, False),)}, "the next attempt is possible in 2.4 hours"),
        ({"changes": (trial(NOW - 0.9 * DAY, 32.0, refused=False),)}, "its last trial failed"),
    ],
)
def test_where_no_trial_is_made_the_status_says_what_it_would_cost_and_why(belief: Belief, more: dict[str, Any], words: str) -> None:
    decision = asked(lasting(), **more)
    assert (decision.reason, decision.change_to, decision.recommendation) == (Reason.GAIN_UNKNOWN, None, Fixed(16))
    assert "block 16 is the fastest" in decision.message
    assert "The gain of block 8 is not known" in decision.message
    assert f"A trial on one replica would cost {float(decision.numbers['trialCostSeconds']):.0f} s of full speed" in decision.message
    assert words in decision.message.partition("None is made: ")[2]
    assert len(decision.message) < 1024


def test_surge_lets_a_single_replica_explore(belief: Belief) -> None:
    assert asked(lasting(), replicas=1, serving=1, measured=1, surge=True).change_to == Fixed(8)


def test_another_load_another_block_size_and_another_week_are_not_counted(belief: Belief) -> None:
    for other in (trial(load=16.0), trial(block=4), trial(NOW - 7.1 * DAY)):
        assert asked(lasting(), changes=(other,)).change_to == Fixed(8)
    twice = replace(AUTO, max_trials_per_week=2)
    assert asked(lasting(), changes=(trial(),), policy=twice).change_to == Fixed(8)


def test_a_refused_exploratory_trial_does_not_keep_the_block_size_from_a_load_that_favours_it() -> None:
    """It measured one load, and promised nothing; a change that promised something and failed does."""
    recent = NOW - 0.5 * DAY
    for load in (1.0, 32.0):
        assert decide(tuner_inputs(changes=(trial(recent, load),)), known(32.0)).change_to == Fixed(8)
    assert decide(tuner_inputs(changes=(Change(recent, 8, False),)), known(32.0)).reason is Reason.DWELLING
    assert decide(tuner_inputs(changes=(trial(recent, 1.0, refused=False),)), known(32.0)).reason is Reason.DWELLING


def test_a_change_that_was_measured_and_refused_backs_off_at_such_load_only() -> None:
    """The curves know what was measured. At another load they predict anew; at the same one the trial would end the same way."""
    recent = NOW - 0.5 * DAY
    assert decide(tuner_inputs(changes=(Change(recent, 8, False, 4.0, True),)), known(32.0)).change_to == Fixed(8)
    for same in (Change(recent, 8, False, 30.0, True), Change(recent, 8, False, 0.0, True), Change(recent, 8, False, 4.0, False)):
        assert decide(tuner_inputs(changes=(same,)), known(32.0)).reason is Reason.DWELLING


def test_a_refused_exploratory_trial_leaves_the_changes_of_the_day_to_the_others() -> None:
    one = replace(AUTO, max_changes_per_day=1)
    recent = NOW - 0.5 * DAY
    assert decide(tuner_inputs(policy=one, changes=(trial(recent, 1.0),)), known(32.0)).change_to == Fixed(8)
    for counted in (Change(recent, 16, True, 1.0, False, True), Change(recent, 16, False, 1.0, True)):
        assert decide(tuner_inputs(policy=one, changes=(counted,)), known(32.0)).reason is Reason.CHANGES_EXHAUSTED


def test_under_a_schedule_the_engine_measures_the_block_sizes_itself(belief: Belief) -> None:
    table = Schedule(((1, 8, 15), (9, 64, 7)))
    assert asked(lasting(), speculation=table).reason is not Reason.EXPLORING


def test_speculation_off_is_explored_only_if_it_is_listed(belief: Belief) -> None:
    belief.log_gain, belief.log_sigma = -0.05, 0.4
    assert asked(lasting(), policy=replace(AUTO, block_sizes=(16,))).reason is Reason.TUNED
    listed = asked(lasting(), policy=replace(AUTO, block_sizes=(1, 16)))
    assert (listed.reason, listed.numbers[TRIAL_BLOCK]) == (Reason.EXPLORING, 1)


def test_of_several_block_sizes_the_best_that_may_be_tried_is_tried(belief: Belief) -> None:
    three = replace(AUTO, block_sizes=(4, 8, 16))
    first = asked(lasting(), policy=three)
    assert (first.reason, first.numbers[TRIAL_BLOCK]) == (Reason.EXPLORING, 4), "they are equal but for a trifle"
    second = asked(lasting(), policy=three, changes=(trial(block=4),))
    assert (second.reason, second.numbers[TRIAL_BLOCK]) == (Reason.EXPLORING, 8)
    both = asked(lasting(), policy=three, changes=(trial(NOW - 3 * DAY, block=4), trial()))
    assert both.reason is Reason.GAIN_UNKNOWN


def test_a_decision_to_explore_comes_out_again_when_it_is_replayed(belief: Belief) -> None:
    decision = asked(lasting(), changes=(trial(NOW - 8 * DAY),))
    assert decision.reason is Reason.EXPLORING
    assert replay(json.loads(json.dumps(decision.inputs))) == decision


def test_exploration_is_on_and_a_trial_a_week_is_made_where_an_old_log_line_says_nothing(belief: Belief) -> None:
    inputs = json.loads(json.dumps(asked(lasting()).inputs))
    del inputs["tuner_inputs"]["policy"]["exploration"], inputs["tuner_inputs"]["policy"]["max_trials_per_week"]
    inputs["tuner_inputs"]["changes"] = [[NOW - 9 * DAY, 8, False]]
    assert replay(inputs).reason is Reason.EXPLORING


@pytest.mark.parametrize("mean", [-0.3, -0.05, 0.0, 0.1])
@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.4])
@pytest.mark.parametrize(("least", "price"), [(0.0, 0.0), (0.05, 0.0), (0.05, 0.2), (-0.5, 0.1)])
def test_the_upper_mean_is_the_integral(mean: float, sigma: float, least: float, price: float) -> None:
    total = chance = 0.0
    pieces = 4000
    for piece in range(pieces):
        x = mean + sigma * (16 * (piece + 0.5) / pieces - 8)
        share = math.exp(-(((x - mean) / sigma) ** 2) / 2) / math.sqrt(2 * math.pi) * 16 / pieces
        gain = -math.expm1(-x) - price
        if x >= least and gain > 0:
            total, chance = total + share * gain, chance + share
    assert upper_mean(mean, sigma, least, price) == pytest.approx((total, chance), abs=2e-3)


def test_certainty_has_the_value_of_the_gain_or_none() -> None:
    assert upper_mean(0.2, 0.0, 0.05) == pytest.approx((-math.expm1(-0.2), 1.0))
    assert upper_mean(0.01, 0.0, 0.05) == (0.0, 0.0)
    assert upper_mean(0.2, 0.3, 0.05, 1.0) == (0.0, 0.0)


def value(log_gain: float = 0.0, log_sigma: float = 0.3, *, replicas: int = 4, lasts_s: float = DAY, factor: float = 1.0) -> TrialValue:
    cost = SwitchingCost(100.0 * replicas, 300.0 * replicas)
    forecast = Forecast(8, 100.0, log_gain, log_sigma)
    return trial_value(forecast, least_gain_percent=5.0, cost=cost, factor=factor, replicas=replicas, lasting_s=lasts_s)


def test_the_value_grows_with_the_error_and_with_the_time_and_the_cost_with_what_is_expected_to_be_lost() -> None:
    assert value(log_sigma=0.1).value_s < value(log_sigma=0.2).value_s < value(log_sigma=0.4).value_s
    assert value(lasts_s=3600.0).value_s < value().value_s
    assert value(-0.5).cost_s > value(0.0).cost_s > 100.0
    assert value(factor=4.0).cost_s > value().cost_s
    assert value(replicas=1).cost_s > value(replicas=8).cost_s > 0, "what is lost while it is measured is one replica's"
    assert value(lasts_s=MEASURING_S).value_s == 0


def test_what_a_trial_brings_and_costs_by_hand() -> None:
    """One of two replicas: 100 s there, as much back in half of the cases, and a loss of some 11 % for half of 900 s."""
    found = value(replicas=2, lasts_s=DAY)
    left_s = DAY - 300.0 - MEASURING_S
    gain, chance = upper_mean(0.0, 0.3, math.log(1.05), 100.0 / left_s)
    assert found.chance == pytest.approx(chance)
    assert found.value_s == pytest.approx(left_s * gain)
    assert found.cost_s == pytest.approx(100.0 * (2 - chance) + 450.0 * upper_mean(0.0, 0.3, 0.0)[0])


def test_a_load_lasts_as_long_as_such_loads_did_or_as_long_again() -> None:
    past = Past(favoured=16, favoured_s=3600.0)
    assert lasting_s(past, (ObservedLoad(8.0),), 8.0) == 3600
    assert lasting_s(replace(past, stays=((16, (7200.0, 10_800.0)),)), (ObservedLoad(8.0),), 8.0) == pytest.approx(5400)
    assert lasting_s(past, (ObservedLoad(8.0, 0.25), ObservedLoad(1.0, 0.75)), 8.0) == pytest.approx(900)
    since = replace(past, stays=((8, (5 * DAY,)),))
    assert lasting_s(since, (ObservedLoad(8.0, 0.04), ObservedLoad(1.0, 0.96)), 8.0) == pytest.approx(0.04 * DAY), "a step an hour ago"
    assert lasting_s(replace(past, favoured_s=1e9), (), 8.0) == WEEK_S


def test_loads_of_one_kind_differ_by_a_factor_of_1_4() -> None:
    assert same_kind(8.0, 11.0)
    assert same_kind(11.0, 8.0)
    assert not same_kind(8.0, 12.0)
    assert not is_measured((StepPoint(8, 8.0, 0.01, 9.0),), 16, 8.0)

"""Whether the block is changed, and why not."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import TuningPolicy
from dflash_controller.api.speculation import Fixed, Off, Schedule
from dflash_controller.tuner.acceptance import Acceptance, Decay, mean_length
from dflash_controller.tuner.crossover import between
from dflash_controller.tuner.decision import CROSSOVER, MEASURED, PREDICTED, Change, TunerDecision, TunerInputs
from dflash_controller.tuner.learned import Learned, Past, Seen
from dflash_controller.tuner.machine import Machine
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.policy import decide, replay
from dflash_controller.tuner.priors import Priors
from dflash_controller.tuner.recommend import ObservedLoad
from dflash_controller.tuner.step_times import StepTimes
from tests.support.tuner_inputs import AUTO as WITHOUT_DOWNTIME
from tests.support.tuner_inputs import NOW_S, tuner_inputs

NOW = NOW_S
DAY = 86400.0
KNEE = 200.0
FIRST, DECAY = 0.85, 0.993
AUTO = replace(WITHOUT_DOWNTIME, allow_downtime=True)


def step_s(block: int, load: float) -> float:
    return 0.008 * (1 + block * load / KNEE)


def length(block: int) -> float:
    return mean_length(FIRST, DECAY, block)


def known(load: float = 32.0, block: int = 16, regret: float = 10_000.0, **more: Any) -> Learned:
    """A dense target that was seen at all loads with one block, and is now at ``load``."""
    points = tuple(StepPoint(block, c, step_s(block, c), 50.0) for c in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0))
    past = Past(
        regrets=tuple((candidate_block, regret) for candidate_block in (1, 4, 8, 16) if candidate_block != block),
        favoured=8,
        favoured_s=3600.0,
    )
    values: dict[str, Any] = {
        "points": points,
        "loads": (ObservedLoad(load),),
        "usual": (ObservedLoad(1.0, 0.5), ObservedLoad(32.0, 0.5)),
        "acceptance": (Seen(block, 1e5, 1e5 * length(block)),) if block > 1 else (),
        "load_samples": 20,
        "past": past,
    }
    return Learned(**{**values, **more})


def asked(**more: Any) -> TunerInputs:
    return tuner_inputs(**{"policy": AUTO, "restart_s": 120.0, **more})


def policy(**more: Any) -> TuningPolicy:
    return replace(AUTO, **more)


def test_a_lasting_load_that_favours_the_other_block_changes_to_it() -> None:
    decision = decide(asked(), known())
    assert decision.change_to == decision.recommendation == Fixed(8)
    assert decision.state == "Tuning"
    assert float(decision.numbers["gainPercent"]) > 20
    assert float(decision.numbers["confidence"]) > 0.95
    assert "block 8 is expected to give" in decision.message


@pytest.mark.parametrize(
    ("tuner_inputs", "learned", "state", "reason", "words"),
    [
        (asked(policy=policy(mode="Off")), known(), "Off", Reason.TUNING_OFF, "spec.tuning.mode"),
        (asked(frozen="a rollout is under way"), known(), "Frozen", Reason.FROZEN, "a rollout is under way"),
        (asked(metrics="no answer"), known(), "Held", Reason.METRICS_MISSING, "no answer"),
        (asked(leaving="its node is drained"), known(), "Held", Reason.REPLICA_LEAVING, "its node is drained"),
        (asked(leaving="evicted", serving=1), known(), "Held", Reason.REPLICA_LEAVING, "evicted"),
        (asked(degraded="a pod is missing"), known(), "Held", Reason.TOO_FEW_REPLICAS, "a pod is missing"),
        (asked(serving=1), known(), "Held", Reason.TOO_FEW_REPLICAS, "1 of 2"),
        (asked(replicas=0, serving=0), known(), "Held", Reason.TOO_FEW_REPLICAS, "0 of 0"),
        (asked(replicas=8, serving=8, measured=1), known(), "Held", Reason.METRICS_MISSING, "from 1 pods"),
        (asked(), known(inconsistent=11), "Held", Reason.LOAD_UNCERTAIN, "in most of the last 300 s"),
        (asked(), known(1.0, inconsistent=10), "Tuning", Reason.TUNED, "block 16 is the fastest"),
        (asked(), known(load_samples=3, inconsistent=3), "Learning", Reason.LEARNING, "3 load samples"),
        (asked(), Learned(), "Learning", Reason.LEARNING, "0 load samples"),
        (
            asked(),
            known(points=(), prefilling=16),
            "Learning",
            Reason.LEARNING,
            "16 of 20 load samples in the last 300 s were mostly",
        ),
        (asked(), known(points=(), waiting=16), "Learning", Reason.LEARNING, "In 16 of 20 load samples in the last 300 s requests waited"),
        (asked(), known(points=(), warming=16), "Learning", Reason.LEARNING, "16 of 20 load samples in the last 300 s are of engines that"),
        (asked(), known(points=(), warming=4), "Learning", Reason.LEARNING, "Not enough traffic"),
        (asked(), known(points=(), prefilling=4), "Learning", Reason.LEARNING, "Not enough traffic"),
        (asked(), known(acceptance=()), "Learning", Reason.LEARNING, "20 load samples"),
        (asked(), known(1.0), "Tuning", Reason.TUNED, "block 16 is the fastest at 1.0 requests"),
        (asked(policy=policy(min_gain_percent=80)), known(), "Tuning", Reason.GAIN_TOO_SMALL, "less than the 80 %"),
        (asked(), known(regret=0.0), "Tuning", Reason.GAIN_TOO_SMALL, "does not justify a change yet"),
        (asked(changes=(Change(NOW - 600, 16, True),)), known(), "Tuning", Reason.DWELLING, "600 s ago"),
        (
            asked(changes=tuple(Change(NOW - h * 3600, 16, True) for h in (9, 7, 5, 3))),
            known(),
            "Tuning",
            Reason.CHANGES_EXHAUSTED,
            "4 changes",
        ),
        (asked(policy=policy(max_changes_per_day=0)), known(), "Tuning", Reason.CHANGES_EXHAUSTED, "maxChangesPerDay is 0"),
        (
            asked(replicas=1, serving=1, measured=1, policy=policy(allow_downtime=False)),
            known(),
            "Tuning",
            Reason.DOWNTIME_NOT_ALLOWED,
            "allowDowntime",
        ),
        (asked(changes=(Change(NOW - 0.9 * DAY, 8, False),)), known(), "Tuning", Reason.DWELLING, "tried and rolled back"),
        (asked(), known(misses=2, missed=8, model_error=0.4), "Held", Reason.MODEL_MISMATCH, "+40 %"),
    ],
)
def test_each_gate_says_why(tuner_inputs: TunerInputs, learned: Learned, state: str, reason: Reason, words: str) -> None:
    decision = decide(tuner_inputs, learned)
    assert (decision.state, decision.reason) == (state, reason)
    assert words in decision.message
    assert decision.change_to is None


def test_surge_or_leave_to_do_so_lets_a_single_replica_change() -> None:
    single = {"replicas": 1, "serving": 1, "measured": 1}
    assert decide(asked(**single, surge=True, policy=policy(allow_downtime=False)), known()).change_to == Fixed(8)
    assert decide(asked(**single), known()).change_to == Fixed(8)


def test_an_arm_that_was_given_up_is_left_for_a_day_and_then_for_two() -> None:
    once = (Change(NOW - 1.1 * DAY, 8, False),)
    twice = (Change(NOW - 9 * DAY, 8, False), *once)
    assert decide(asked(changes=once), known()).change_to == Fixed(8)
    assert decide(asked(changes=twice), known()).change_to is None
    kept = (Change(NOW - 9 * DAY, 8, False), Change(NOW - 5 * DAY, 8, True), *once)
    assert decide(asked(changes=kept), known()).change_to == Fixed(8)


def test_when_the_next_change_is_allowed() -> None:
    assert decide(asked(), known()).next_change_allowed_at_s is None
    assert decide(asked(changes=(Change(NOW - 600, 16, True),)), known()).next_change_allowed_at_s == NOW + 1200
    four = tuple(Change(NOW - h * 3600, 16, True) for h in (9, 7, 5, 3))
    assert decide(asked(changes=four), known()).next_change_allowed_at_s == NOW + 15 * 3600


def test_advise_says_the_same_and_never_acts_and_auto_then_acts_on_it() -> None:
    advised = decide(asked(policy=policy(mode="Advise")), known())
    acted = decide(asked(), known())
    assert advised.change_to is None
    assert advised.state == "Advising"
    assert advised.recommendation == acted.recommendation == acted.change_to
    assert (advised.reason, advised.message) == (acted.reason, acted.message)


def test_with_one_load_seen_a_gain_below_15_percent_is_not_enough() -> None:
    single = (StepPoint(16, 12.0, step_s(16, 12.0), 100.0),)
    learned = known(12.0, points=single, regret=150.0)
    decision = decide(asked(), learned)
    assert 5 < float(decision.numbers["gainPercent"]) < 15
    assert decision.reason is Reason.GAIN_TOO_SMALL
    assert "only one load" in decision.message
    assert decide(asked(), known(12.0, regret=150.0)).change_to == Fixed(8)
    assert decide(asked(), known(12.0, points=single, regret=1000.0)).change_to == Fixed(8)


def test_a_decision_is_repeated_with_the_prior_of_its_engine_and_kind() -> None:
    prior = Priors.load().prior(Machine("vllm", hybrid=True))
    made, usual = decide(asked(), known(), prior=prior), decide(asked(), known())
    assert made.numbers != usual.numbers
    assert replay(json.loads(json.dumps(made.inputs))) == made
    of_old = json.loads(json.dumps(usual.inputs))
    for added in ("positionShare", "requestShare", "endWeight", "belowSigma", "spread"):
        del of_old["prior"][added]
    assert replay(of_old).recommendation == usual.recommendation, "a decision of an earlier release"


def test_step_times_that_others_measured_are_stored_with_the_decision() -> None:
    lent = tuple(replace(point, block=8, prior=True) for point in known().points)
    made = decide(asked(), known(points=(*known().points, *lent)))
    assert replay(json.loads(json.dumps(made.inputs))) == made


def test_a_mixture_of_experts_is_trusted_less() -> None:
    for engine in ("", "sglang", "vllm"):
        priors = [Priors.load().prior(Machine(engine, mixture=kind)) for kind in (False, True)]
        dense, mixture = (decide(asked(mixture=prior is priors[1]), known(), prior=prior) for prior in priors)
        assert float(mixture.numbers["confidence"]) < float(dense.numbers["confidence"])


def test_a_load_that_will_be_gone_soon_is_not_followed() -> None:
    short = Past(regrets=((8, 300.0),), favoured=8, favoured_s=60.0, stays=((8, (600.0, 620.0)), (16, (600.0,))), factor=1.0)
    seldom = (ObservedLoad(1.0, 0.9), ObservedLoad(32.0, 0.1))
    assert decide(asked(), known(past=short, usual=seldom)).reason is Reason.GAIN_TOO_SMALL
    long = replace(short, regrets=((8, 0.0),), stays=((8, (40_000.0,)), (16, (40_000.0,))))
    assert decide(asked(), known(past=long, usual=seldom)).change_to == Fixed(8)


def test_the_last_change_of_a_day_must_suit_the_usual_load() -> None:
    three = tuple(Change(NOW - h * 3600, 16, True) for h in (9, 7, 5))
    assert decide(asked(changes=three), known(usual=(ObservedLoad(1.0, 0.95), ObservedLoad(32.0, 0.05)))).change_to is None
    assert decide(asked(changes=three), known(usual=(ObservedLoad(1.0, 0.05), ObservedLoad(32.0, 0.95)))).change_to == Fixed(8)


def test_step_times_that_were_not_as_predicted_twice_lead_back() -> None:
    learned = known(32.0, 8, misses=2, missed=8, model_error=0.4)
    learned = replace(learned, past=replace(learned.past, previous=16))
    decision = decide(asked(speculation=Fixed(8)), learned)
    assert (decision.state, decision.reason, decision.change_to) == ("Held", Reason.MODEL_MISMATCH, Fixed(16))
    dwelling = asked(speculation=Fixed(8), changes=(Change(NOW - 600, 8, True),))
    assert decide(dwelling, learned).change_to is None
    faster = replace(learned, model_error=-0.4)
    assert decide(asked(speculation=Fixed(8)), faster).change_to is None


def test_off_is_chosen_when_every_block_loses_and_only_then() -> None:
    broken = known(acceptance=(Seen(16, 1e5, 1.02e5),))
    decision = decide(asked(), broken)
    assert decision.change_to == Off()
    assert decide(asked(policy=policy(block_sizes=(4, 8, 16))), known(1.0)).recommendation == Fixed(16)


def test_while_off_the_last_acceptance_is_believed() -> None:
    points = tuple(StepPoint(16, c, step_s(16, c)) for c in (1.0, 8.0, 32.0))
    broken = known(8.0, 1, points=points, drafted=Seen(16, 1e5, 1.02e5))
    assert decide(asked(speculation=Off()), broken).reason is Reason.TUNED
    sound = known(1.0, 1, points=points, drafted=Seen(16, 1e5, 1e5 * length(16)))
    assert decide(asked(speculation=Off()), sound).change_to == Fixed(16)


def test_an_engine_that_can_follows_a_table() -> None:
    eager = Seen(16, 1e5, 1e5 * mean_length(0.93, DECAY, 16))
    learned = known(64.0, acceptance=(eager,), usual=(ObservedLoad(1.0, 0.5), ObservedLoad(64.0, 0.5)))
    decision = decide(asked(schedule=True, policy=policy(min_gain_percent=2.0)), learned)
    assert isinstance(decision.change_to, Schedule)
    assert decision.change_to.ranges[0][2] == 15
    assert decision.change_to.ranges[-1][2] == 7
    settled = decide(asked(schedule=True, speculation=decision.change_to, policy=policy(min_gain_percent=2.0)), learned)
    assert (settled.reason, settled.change_to) == (Reason.TUNED, None)


@st.composite
def questions(draw: st.DrawFn) -> tuple[TunerInputs, Learned]:
    trained = draw(st.sampled_from([4, 8, 16]))
    current = draw(st.sampled_from([block for block in (4, 8, 16) if block <= trained]))
    candidate_blocks = tuple(sorted(draw(st.sets(st.sampled_from([1, 4, 8, 16, 32]), min_size=1))))
    changes = tuple(
        Change(NOW - ago, 8, kept)
        for ago, kept in sorted(draw(st.lists(st.tuples(st.floats(0, 2 * DAY), st.booleans()), max_size=6)), reverse=True)
    )
    replicas = draw(st.integers(1, 8))
    tuner_inputs = asked(
        policy=policy(mode=draw(st.sampled_from(["Auto", "Advise"])), block_sizes=candidate_blocks),
        speculation=Fixed(current),
        trained_block=trained,
        mixture=draw(st.booleans()),
        replicas=replicas,
        serving=replicas,
        measured=min(4, replicas),
        surge=draw(st.booleans()),
        restart_s=draw(st.floats(10, 1000)),
        changes=changes,
        schedule=draw(st.booleans()) and draw(st.booleans()),
        max_concurrency=8,
    )
    chance = draw(st.floats(0.01, 0.99))
    tau = mean_length(chance, DECAY, current)
    learned = known(
        draw(st.floats(0.5, 64)),
        current,
        draw(st.floats(0, 5000)),
        acceptance=(Seen(current, 1e5, 1e5 * tau),),
        decays=(0.99,),
        misses=draw(st.sampled_from([0, 0, 2])),
        missed=current,
        model_error=0.3,
    )
    learned = replace(
        learned, past=replace(learned.past, previous=draw(st.sampled_from([block for block in (1, 4, 8, 16) if block <= trained])))
    )
    return tuner_inputs, learned


@settings(max_examples=60, deadline=None)
@given(questions())
def test_never_above_the_trained_block_never_within_the_dwell_and_the_same_when_replayed(question: tuple[TunerInputs, Learned]) -> None:
    tuner_inputs, learned = question
    decision = decide(tuner_inputs, learned)
    for speculation in (decision.recommendation, decision.change_to):
        assert speculation is None or speculation.max_block_size <= tuner_inputs.trained_block
    if tuner_inputs.policy.mode == "Advise":
        assert decision.change_to is None
    if decision.change_to is not None:
        assert not tuner_inputs.changes or NOW - tuner_inputs.changes[-1].at_s >= tuner_inputs.policy.min_dwell_s
        assert sum(NOW - change.at_s < DAY for change in tuner_inputs.changes) < tuner_inputs.policy.max_changes_per_day
        assert decision.change_to == decision.recommendation or decision.reason in (Reason.MODEL_MISMATCH, Reason.EXPLORING)
    assert all(math.isfinite(value) for value in decision.numbers.values() if not isinstance(value, str))
    assert len(decision.numbers) < 64
    assert replay(json.loads(json.dumps(decision.inputs))) == decision


@pytest.mark.parametrize("load", [1.0, 32.0])
def test_the_load_at_which_the_two_fastest_change_places_is_told(load: float) -> None:
    """Where tokens per step gain what a step costs more: r = (1 + 16 c / 200) ÷ (1 + 8 c / 200)."""
    ratio = length(16) / length(8)
    numbers = decide(asked(), known(load)).numbers
    assert numbers[CROSSOVER] == pytest.approx((ratio - 1) / (16 / KNEE - ratio * 8 / KNEE), rel=0.05)


def test_where_one_block_is_always_faster_nothing_changes_places() -> None:
    flat = tuple(StepPoint(block, c, 0.01, 50.0) for block in (8, 16) for c in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0))
    assert CROSSOVER not in decide(asked(), known(points=flat)).numbers


def test_of_several_crossovers_the_nearest_to_the_load_is_told() -> None:
    """Block 8 wins alone and in crowds, 16 in between."""
    acceptance = Acceptance({16: 6.0, 8: 5.0}, Decay(DECAY))
    eights = {1.0: 0.0100, 4.0: 0.0100, 16.0: 0.0100, 50.0: 0.0100}
    sixteens = {1.0: 0.0140, 4.0: 0.0110, 16.0: 0.0110, 50.0: 0.0140}

    class Measured(StepTimes):
        """As told, whatever the law."""

        def __init__(self) -> None:
            """Nothing is fitted."""

        def seconds(self, block: int, concurrency: float) -> float:
            told = eights if block == 8 else sixteens
            place = max(place for place in told if place <= concurrency)
            return told[place]

    turns = [between(16, 8, acceptance, Measured(), 64, near) for near in (1.0, 3.0, 30.0, 64.0)]
    assert turns == pytest.approx([4.0, 4.0, 50.0, 50.0], rel=0.01)
    assert between(16, 8, acceptance, Measured(), 2, 1.0) is None


def test_measured_speeds_stand_beside_predicted_ones() -> None:
    numbers = decide(asked(), known(speeds=((16, 4321.0),))).numbers
    assert numbers[f"{MEASURED}16"] == 4321.0
    assert {name for name in numbers if name.startswith(PREDICTED)} == {f"{PREDICTED}8", f"{PREDICTED}16"}


def test_log_lines_of_earlier_releases_can_be_replayed() -> None:
    decision = decide(asked(), known())
    old = json.loads(json.dumps(decision.inputs))
    del old["tuner_inputs"]["leaving"], old["learned"]["inconsistent"]
    assert replay(old).change_to == decision.change_to


@pytest.mark.parametrize("damage", [{}, {"tuner_inputs": {}}, {"tuner_inputs": None}])
def test_inputs_that_are_not_sound_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        replay(damage)


def test_a_log_line_stays_small() -> None:
    points = tuple(StepPoint(block, 2 ** (place / 4), 0.012345, 123.45) for block in (8, 16) for place in range(40))
    loads = tuple(ObservedLoad(2 ** (place / 8), 0.0123) for place in range(48))
    decision: TunerDecision = decide(asked(), known(points=points, usual=loads))
    assert len(json.dumps(decision.inputs, separators=(",", ":"))) < 8192


def test_time_of_prefill_that_no_block_changes_makes_the_gain_smaller() -> None:
    alone, beside = decide(asked(), known()), decide(asked(), known(prefill_share=0.5))
    gains = [float(decision.numbers["gainPercent8"]) for decision in (alone, beside)]
    assert gains[1] == pytest.approx(100 * (1 / (0.5 + 0.5 / (1 + gains[0] / 100)) - 1), abs=0.1)


def test_a_decision_with_capacities_is_replayed_alike() -> None:
    decision = decide(asked(capacity=((8, 105.0), (16, 20.0)), max_concurrency=20), known(prefilling=1, prefill_share=0.2))
    again = replay(json.loads(json.dumps(decision.inputs)))
    assert again == decision
    assert decision.numbers["tokensPerSecond16"] < decide(asked(), known(prefill_share=0.2)).numbers["tokensPerSecond16"]

"""A trial that the tuner makes because a gain is not known: told as such, judged by the least gain, and held against nobody."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from dflash_controller.analysis.verdict import AnalysisDecision, Judgement, MetricVerdict, Outcome
from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.api.speculation import Fixed
from dflash_controller.planning.revisions.revision import HISTORY_ENTRIES, Origin, RevisionState, history_entry, read, state_annotations
from dflash_controller.planning.state.inputs import Knowledge
from dflash_controller.planning.state.plan import Event
from dflash_controller.planning.tuning import changes
from dflash_controller.tuner.decision import Change, TunerDecision, TunerInputs
from dflash_controller.tuner.learned import Learned
from dflash_controller.tuner.priors import Prior
from dflash_controller.tuner.schedule_price import SchedulePrice
from tests.support.planning_world import PASSED, UNDECIDED, World
from tests.unit.planning.test_planner import states
from tests.unit.planning.test_rollouts import candidate, phase, replicas
from tests.unit.planning.test_tuning import Policy, block, history, shown, tuned, tuning


def refusal(*metrics: str) -> Judgement:
    verdicts = tuple(MetricVerdict(metric, Outcome.FAILED, "worse", 1.0, 2.0, 5.0, 1e4, 1e4) for metric in metrics)
    return Judgement(AnalysisDecision.FAIL, Reason.ANALYSIS_FAILED, f"{metrics[0]}: 9 % slower", verdicts)


NOT_FASTER, BROKEN = refusal("speed", "latency"), refusal("speed", "errors")


class Explorer(Policy):
    """Explores what it wants, at 8 requests."""

    def decide(self, tuner_inputs: TunerInputs, learned: Learned, *, prior: Prior) -> TunerDecision:
        decision = super().decide(tuner_inputs, learned, prior=prior)
        if decision.change_to is None:
            return decision
        return replace(decision, reason=Reason.EXPLORING, numbers={"concurrency": 8.04}, recommendation=tuner_inputs.speculation)


@pytest.fixture
def policy() -> Iterator[Explorer]:
    policy = Explorer()
    with patch("dflash_controller.planning.tuning.decide", policy.decide):
        yield policy


def exploring(policy: Policy, **spec: Any) -> World:
    """A deployment that explores block 8 on one replica."""
    world = tuned(**spec)
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    world.settle()
    return world


def ended(world: World, policy: Policy, judgement: Judgement) -> list[Event]:
    """The events from the end of the trial on."""
    world.judgement = judgement
    events: list[Event] = []
    for _ in range(12):
        events += [step for step in world.plan().steps if isinstance(step, Event)]
        world.reconcile()
        if "Failed" in states(world).values():
            policy.wants = None
        world.controllers()
    return events


def tried(world: World) -> list[Change]:
    return changes(record for item in world.of_kind("ControllerRevision") if (record := read(item)) is not None)


def test_a_change_that_explores_is_told_as_such(policy: Explorer) -> None:
    world = tuned()
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    reported = []
    for _ in range(12):
        reported += [step.reason for step in world.plan().steps if isinstance(step, Event)]
        world.reconcile()
        world.controllers()
    assert "TunerExploring" in reported
    assert (phase(world), world.condition("Reconciling"), world.condition("Ready")) == ("Analyzing", "False", "True")
    revision = world.deployment["status"]["revisions"][0]
    assert (revision["origin"], revision["reason"], revision["state"]) == ("Tuner", "Exploring", "Candidate")
    assert history(world, candidate(world))[-1] | {"at": ""} == {
        "at": "",
        "origin": "Tuner",
        "outcome": "Candidate",
        "reason": "Exploring",
        "load": "8.0",
        "exploratory": "true",
    }
    assert policy.asked[-1].frozen == f"{candidate(world)} is on trial because its gain is not known"
    assert replicas(world)[candidate(world)] == 1


def test_it_is_judged_by_the_least_gain_and_not_by_a_prediction(policy: Explorer) -> None:
    world = exploring(policy, tuning={"mode": "Auto", "minGainPercent": 3})
    assert world.question is not None
    promise = world.question.promise
    assert promise is not None
    assert (promise.exploratory, promise.gain, promise.least) == (True, 0.0, pytest.approx(math.log(1.03)))


def test_one_that_is_not_faster_calls_nobody_and_is_no_failure_of_the_block_size(policy: Explorer) -> None:
    world = exploring(policy)
    events = ended(world, policy, NOT_FASTER)
    assert {event.type for event in events} == {"Normal"}
    assert "was measured and is not fast enough" in next(event.message for event in events if event.reason == "NotFaster")
    assert (phase(world), block(world)) == ("Completed", "16")
    assert {kind: status for kind, (status, _) in shown(world).items()} == {"Ready": "True", "Reconciling": "False", "Stalled": "False"}
    (change,) = tried(world)
    assert (change.block, change.kept, change.load, change.refused, change.exploratory) == (8, False, 8.0, True, True)
    assert policy.asked[-1].changes == (change,)
    assert world.serving() == 3


@pytest.mark.parametrize("judgement", [BROKEN, refusal("acceptanceLength"), refusal("restarts")])
def test_one_that_fails_otherwise_is_a_failure_like_any_other(policy: Explorer, judgement: Judgement) -> None:
    world = exploring(policy)
    events = ended(world, policy, judgement)
    assert [event.type for event in events if event.reason == "AnalysisFailed"] == ["Warning"]
    (change,) = tried(world)
    assert (change.exploratory, change.refused) == (True, False)


def test_one_that_stays_without_a_verdict_has_measured_too(policy: Explorer) -> None:
    world = exploring(policy, rollout={"deadline": "1h", "onInconclusive": "Hold"})
    policy.wants = None
    world.advance(3700)
    world.settle()
    assert (phase(world), block(world), world.condition("Stalled")) == ("Completed", "16", "False")
    assert [(change.kept, change.refused) for change in tried(world)] == [(False, True)]


def test_one_that_is_faster_is_promoted(policy: Explorer) -> None:
    world = exploring(policy)
    world.judgement = PASSED
    world.settle()
    assert (block(world), phase(world)) == ("8", "Completed")
    assert [(change.kept, change.load) for change in tried(world)] == [(True, 8.0)]
    policy.wants = None
    world.settle()
    assert tuning(world)["state"] in ("Tuning", "Frozen")


def test_a_refused_block_size_is_open_to_the_user(policy: Explorer) -> None:
    world = exploring(policy)
    ended(world, policy, NOT_FASTER)
    world.judgement = PASSED
    world.edit(lambda spec: spec.update(blockSize=8))
    world.settle()
    assert (block(world), world.condition("Ready")) == ("8", "True")


def test_the_same_block_size_can_be_explored_at_another_load(policy: Explorer) -> None:
    world = exploring(policy)
    ended(world, policy, NOT_FASTER)
    assert len(world.of_kind("ControllerRevision")) == 2
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    world.settle()
    ended(world, policy, NOT_FASTER)
    assert len(tried(world)) == 2
    assert len(world.of_kind("ControllerRevision")) == 2, "the stored revision is tried again"


def test_where_one_replica_is_left_it_is_not_stopped_for_a_trial_even_with_leave_to_do_so(policy: Explorer) -> None:
    world = tuned(replicas=2, tuning={"mode": "Auto", "allowDowntime": True})
    policy.wants, world.judgement = Fixed(8), UNDECIDED
    world.reconcile()
    world.edit(lambda spec: spec.update(replicas=1))
    for _ in range(8):
        world.reconcile()
        assert world.serving() >= 1
        world.controllers()
    assert replicas(world)[world.deployment["status"]["stableRevision"]] == 1


def test_leaving_auto_ends_it(policy: Explorer) -> None:
    world = exploring(policy)
    world.edit(lambda spec: spec["tuning"].update(mode="Advise"))
    world.settle()
    assert world.deployment["status"].get("candidateRevision") is None
    assert block(world) == "16"


def test_an_exploratory_trial_counts_for_its_week_however_often_the_block_size_changes(policy: Explorer) -> None:
    world = exploring(policy)
    ended(world, policy, NOT_FASTER)
    record = next(record for item in world.of_kind("ControllerRevision") if (record := read(item)) and record.speculation == Fixed(8))
    for hour in range(2 * HISTORY_ENTRIES):
        at = world.now + timedelta(hours=hour)
        outcome = (RevisionState.CANDIDATE, RevisionState.STABLE)[hour % 2]
        text = state_annotations(record, outcome, at, Origin.TUNER, "Tuned")[names.ANNOTATION_HISTORY]
        record = replace(record, history=tuple(json.loads(text)))
    assert len(record.history) == HISTORY_ENTRIES
    assert [change.load for change in changes([record]) if change.exploratory] == [8.0]
    late = state_annotations(record, RevisionState.STABLE, world.now + timedelta(days=8), Origin.TUNER, "Tuned")
    kept = json.loads(late[names.ANNOTATION_HISTORY])
    assert not any(entry.get("exploratory") for entry in kept)


@pytest.mark.parametrize("load", ["x", "-1", "nan", "inf", ""])
def test_a_damaged_load_makes_an_entry_an_ordinary_one(policy: Explorer, load: str) -> None:
    world = exploring(policy)
    record = next(record for item in world.of_kind("ControllerRevision") if (record := read(item)) and record.speculation == Fixed(8))
    entries = [
        history_entry(world.now, Origin.TUNER, outcome, "x") | {"load": load, "exploratory": "true"}
        for outcome in (RevisionState.CANDIDATE, RevisionState.FAILED)
    ]
    (change,) = changes([replace(record, history=tuple(entries))])
    assert (change.load, change.kept, change.refused, change.exploratory) == (0.0, False, False, False)


def test_what_is_unknown_is_said_in_advise_and_noise_causes_no_write(policy: Explorer) -> None:
    world = tuned(tuning={"mode": "Advise"})
    policy.reason = Reason.GAIN_UNKNOWN
    for minutes, reason in ((30, "Tuned"), (31, "GainUnknown")):
        world.advance(60 * minutes)
        world.tuning = Knowledge(
            learned=Learned(),
            measured=3,
            reported=("Advising", "GainUnknown", "16", "wants "),
            reported_since=world.now - timedelta(seconds=301),
        )
        world.reconcile()
        assert tuning(world)["reason"] == reason, "one reason to change nothing takes the place of another once an hour"
    assert block(world) == "16"
    assert world.condition("TuningReady") == "True"


@pytest.mark.parametrize(
    ("actuator", "price", "asked"),
    [
        ("Auto", None, False),
        ("Auto", SchedulePrice(12.0, 9.0), True),
        ("Schedule", None, True),
        ("Restart", SchedulePrice(12.0, 9.0), False),
    ],
)
def test_auto_never_chooses_a_schedule_whose_price_is_not_known(
    policy: Explorer, actuator: str, price: SchedulePrice | None, asked: bool
) -> None:
    world = tuned(engine={"name": "vllm", "version": "0.26.0"}, tuning={"mode": "Auto", "actuator": actuator})
    world.tuning = replace(world.tuning, schedule_price=price)
    world.reconcile()
    found = policy.asked[-1]
    assert found.schedule is asked
    assert bool(found.no_schedule) is not asked
    if actuator == "Auto" and price is None:
        assert found.no_schedule == "its price is not known for this engine and kind of target"
    assert found.schedule_price == (price or SchedulePrice(4.5))


class Promising(Policy):
    """Wants a change that is expected to gain, at 8 requests."""

    def decide(self, tuner_inputs: TunerInputs, learned: Learned, *, prior: Prior) -> TunerDecision:
        decision = super().decide(tuner_inputs, learned, prior=prior)
        return replace(decision, numbers={**decision.numbers, "concurrency": 8.04})


@pytest.mark.parametrize(("judgement", "refused"), [(NOT_FASTER, True), (BROKEN, False)])
def test_of_an_ordinary_change_too_the_load_is_kept_and_whether_it_was_measured(judgement: Judgement, refused: bool) -> None:
    policy = Promising()
    with patch("dflash_controller.planning.tuning.decide", policy.decide):
        world = exploring(policy)
        ended(world, policy, judgement)
    (change,) = tried(world)
    assert (change.load, change.refused, change.exploratory, change.kept) == (8.0, refused, False, False)

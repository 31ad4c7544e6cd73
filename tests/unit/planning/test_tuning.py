"""The tuner's part in a plan: its changes are revisions like others, never reported as the user's, and never against the spec."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.api.speculation import Fixed, Speculation
from dflash_controller.model.metrics_health import MetricsHealth
from dflash_controller.planning.revisions.revision import read
from dflash_controller.planning.state.inputs import Knowledge
from dflash_controller.planning.state.plan import Event
from dflash_controller.planning.status.tuning import standing
from dflash_controller.planning.tuning import changes
from dflash_controller.tuner.decision import TunerDecision, TunerInputs
from dflash_controller.tuner.learned import Learned
from dflash_controller.tuner.machine import Machine
from dflash_controller.tuner.predicted_gain import predict
from dflash_controller.tuner.priors import Prior, Priors
from tests.support.planning_world import FAILED, PASSED, UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled, states
from tests.unit.planning.test_rollouts import annotate, candidate, phase, replicas, told
from tests.unit.tuner.test_policy import known


class Policy:
    """Stands for ``tuner.policy.decide``: wants one block, whatever was learned, unless something stands against any change."""

    def __init__(self) -> None:
        self.wants: Speculation | None = None
        self.asked: list[TunerInputs] = []
        self.priors: list[Prior] = []
        self.reason = Reason.TUNED

    def decide(self, tuner_inputs: TunerInputs, learned: Learned, *, prior: Prior) -> TunerDecision:
        self.asked.append(tuner_inputs)
        self.priors.append(prior)
        mode = tuner_inputs.policy.mode
        if mode == "Off":
            return TunerDecision("Off", Reason.TUNING_OFF, "off")
        if tuner_inputs.frozen:
            return TunerDecision("Frozen", Reason.FROZEN, tuner_inputs.frozen)
        wants = self.wants or tuner_inputs.speculation
        change = wants if mode == "Auto" and wants != tuner_inputs.speculation else None
        return TunerDecision(
            "Tuning" if mode == "Auto" else "Advising", self.reason, f"wants {wants.label()}", wants, change, {"gainPercent": 20.0}
        )


@pytest.fixture
def policy() -> Iterator[Policy]:
    policy = Policy()
    with patch("dflash_controller.planning.tuning.decide", policy.decide):
        yield policy


def tuned(**spec: Any) -> World:
    """A settled deployment at block 16 of which the tuner knows something."""
    world = settled(**{"replicas": 3, "tuning": {"mode": "Auto"}, **spec})
    world.tuning = Knowledge(learned=Learned(), measured=3)
    world.settle()
    return world


@pytest.mark.parametrize(
    ("engine", "target", "machine"),
    [
        ("vllm", {"hybrid": True, "mixtureOfExperts": False}, Machine("vllm", hybrid=True)),
        ("sglang", {"hybrid": True, "mixtureOfExperts": True}, Machine("sglang", hybrid=True, mixture=True)),
        ("vllm", {"hybrid": False, "mixtureOfExperts": False}, Machine("vllm")),
    ],
)
def test_the_tuner_starts_from_what_is_known_of_the_engine_with_such_targets(
    policy: Policy, engine: str, target: dict[str, bool], machine: Machine
) -> None:
    world = settled(engine={"name": engine}, target={"model": "Qwen/Qwen3.5-9B", **target}, tuning={"mode": "Auto"}, replicas=3)
    world.tuning = Knowledge(learned=Learned(), measured=3)
    world.settle()
    assert policy.priors[-1] == Priors.load().prior(machine)


def block(world: World) -> str:
    return str(world.deployment["status"]["speculation"]["label"])


def tuning(world: World) -> dict[str, Any]:
    return dict(world.deployment["status"]["tuning"])


def history(world: World, name: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(
        world.children["ControllerRevision", name]["metadata"]["annotations"][names.ANNOTATION_HISTORY]
    )
    return found


def try_in_vain(world: World, policy: Policy) -> None:
    """Block 8 is tried, judged bad, and not wanted any more."""
    world.judgement, policy.wants = FAILED, Fixed(8)
    while "Failed" not in states(world).values():
        world.reconcile()
        world.controllers()
    policy.wants = None
    world.settle()


def test_auto_changes_the_block_through_a_trial_and_nobody_is_told_that_the_user_changed_something(policy: Policy) -> None:
    world = tuned()
    before = world.deployment["status"]["stableRevision"]
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    seen = set()
    for _ in range(12):
        world.reconcile()
        seen |= {(kind, world.condition(kind)) for kind in ("Ready", "Reconciling", "Stalled")}
        world.controllers()
    assert phase(world) == "Analyzing"
    assert replicas(world) == {before: 2, candidate(world): 1}
    assert seen <= {("Ready", "True"), ("Reconciling", "False"), ("Stalled", "False")}
    assert [entry["origin"] for entry in history(world, candidate(world))] == ["Tuner"]
    assert (tuning(world)["state"], tuning(world)["reason"]) == ("Frozen", "Frozen")
    world.judgement = PASSED
    for _ in range(20):
        world.reconcile()
        seen |= {(kind, world.condition(kind)) for kind in ("Reconciling", "Stalled")}
        world.controllers()
    assert (block(world), phase(world)) == ("8", "Completed")
    assert {value for kind, value in seen if kind == "Reconciling"} == {"False"}
    stable = world.deployment["status"]["stableRevision"]
    assert world.deployment["status"]["revisions"][0]["origin"] == "Tuner"
    assert (history(world, before)[-1]["origin"], history(world, before)[-1]["reason"]) == ("Tuner", "Replaced")
    assert replicas(world)[stable] == 3
    assert policy.asked[-1].speculation == Fixed(8)
    assert [(change.block, change.kept) for change in policy.asked[-1].changes] == [(8, True)]


def test_what_the_tuner_tries_is_held_against_what_it_promised_and_what_a_user_changes_is_not(policy: Policy) -> None:
    world = tuned()
    world.tuning = Knowledge(learned=known(32.0), measured=3)
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    world.settle()
    assert world.question is not None
    assert world.question.promise is not None
    assert world.question.promise.gain > 0.1
    assert world.question.promise.least == pytest.approx(math.log(1.05))
    policy.wants = None
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert world.question.promise is None


def test_a_trial_is_held_against_a_promise_that_knows_the_engine_and_the_kind_of_target(policy: Policy) -> None:
    target = {"model": "Qwen/Qwen3.5-9B", "hybrid": True, "mixtureOfExperts": False}
    world = tuned(engine={"name": "vllm"}, target=target)
    world.tuning = Knowledge(learned=known(32.0), measured=3)
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    world.settle()
    assert world.question is not None
    promised, usual = (
        predict(known(32.0), Fixed(16), Fixed(8), mixture=True, min_gain_percent=5.0, prior=prior)
        for prior in (Priors.load().prior(Machine("vllm", hybrid=True)), None)
    )
    assert world.question.promise == promised != usual


def test_the_way_back_takes_the_stored_revision_again(policy: Policy) -> None:
    world = tuned()
    first = world.deployment["status"]["stableRevision"]
    policy.wants = Fixed(8)
    world.settle()
    world.advance(1800)
    policy.wants = Fixed(16)
    world.settle()
    assert world.deployment["status"]["stableRevision"] == first
    assert len(world.of_kind("ControllerRevision")) == 2
    assert [(change.block, change.kept) for change in policy.asked[-1].changes] == [(8, True), (16, True)]


def test_advise_shows_the_same_and_changes_nothing_until_auto(policy: Policy) -> None:
    world = tuned(tuning={"mode": "Advise"})
    policy.wants = Fixed(8)
    world.advance(60)
    world.settle()
    world.tuning = replace(world.tuning, reported=("Advising", "Tuned", "8", "wants "), reported_since=world.now)
    world.advance(301)
    world.settle()
    assert (tuning(world)["state"], tuning(world)["recommendation"], block(world)) == ("Advising", "8", "16")
    assert len(world.of_kind("ControllerRevision")) == 1
    world.edit(lambda spec: spec["tuning"].update(mode="Auto"))
    world.settle()
    assert block(world) == "8"


def test_what_was_tried_in_vain_is_told_and_calls_nobody(policy: Policy) -> None:
    world = tuned()
    try_in_vain(world, policy)
    assert (phase(world), block(world)) == ("Completed", "16")
    assert (world.condition("Ready"), world.condition("Stalled")) == ("True", "False")
    assert [(change.block, change.kept) for change in policy.asked[-1].changes] == [(8, False)]
    policy.wants, world.judgement = Fixed(8), PASSED
    world.settle()
    assert (phase(world), block(world)) == ("Completed", "8")


def test_a_trial_without_a_verdict_ends_by_itself(policy: Policy) -> None:
    world = tuned(rollout={"deadline": "1h", "onInconclusive": "Hold"})
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    world.settle()
    assert phase(world) == "Analyzing"
    policy.wants = None
    world.advance(3700)
    world.settle()
    assert (phase(world), block(world), world.condition("Stalled")) == ("Completed", "16", "False")


def test_a_held_rollback_is_for_humans_and_their_changes_not_for_the_tuners(policy: Policy) -> None:
    world = tuned(rollout={"automaticRollback": False})
    try_in_vain(world, policy)
    assert (phase(world), block(world)) == ("Completed", "16")


def test_a_change_of_the_spec_goes_before(policy: Policy) -> None:
    world = tuned()
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    world.settle()
    tried = candidate(world)
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert candidate(world) != tried
    assert states(world)[2] == "Superseded"
    assert world.condition("Reconciling") == "True"
    assert policy.asked[-1].frozen


def test_leaving_auto_in_the_middle_of_a_trial_ends_it(policy: Policy) -> None:
    world = tuned()
    stable = world.deployment["status"]["stableRevision"]
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    world.settle()
    world.edit(lambda spec: spec["tuning"].update(mode="Advise"))
    world.settle()
    assert world.deployment["status"].get("candidateRevision") is None
    assert replicas(world)[stable] == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: spec.update(suspend=True), "spec.suspend is true"),
        (lambda spec: spec.update(rollout={"paused": True}), "spec.rollout.paused is true"),
        (lambda spec: spec.update(rollout={"window": {"schedule": "0 3 1 1 1", "duration": "1h"}}), "spec.rollout.window is closed"),
    ],
)
def test_nothing_is_changed_while_the_user_says_so(policy: Policy, change: Any, words: str) -> None:
    world = tuned()
    world.edit(change)
    policy.wants = Fixed(8)
    world.settle()
    assert policy.asked[-1].frozen == words
    assert (block(world), len(world.of_kind("ControllerRevision"))) == ("16", 1)


def test_a_pin_goes_before(policy: Policy) -> None:
    world = tuned()
    annotate(world, names.ANNOTATION_PIN, world.deployment["status"]["stableRevision"])
    policy.wants = Fixed(8)
    world.settle()
    assert block(world) == "16"
    assert policy.asked[-1].frozen


def test_a_wavering_decision_is_not_written(policy: Policy) -> None:
    """Only what has stood for a whole window, or what is acted upon."""
    world = tuned(tuning={"mode": "Advise"})
    shown = tuning(world)
    for wants, reason in [(Fixed(8), Reason.GAIN_TOO_SMALL), (Fixed(16), Reason.TUNED)] * 5:
        policy.wants, policy.reason = wants, reason
        world.tuning = replace(world.tuning, reported=("Advising", reason.value, wants.label(), "wants "), reported_since=world.now)
        world.advance(60)
        world.reconcile()
        assert tuning(world) == shown


def test_one_reason_to_leave_things_as_they_are_takes_the_place_of_another_once_an_hour(policy: Policy) -> None:
    world = tuned(tuning={"mode": "Advise"})
    shown = tuning(world)
    policy.wants, policy.reason = Fixed(8), Reason.GAIN_TOO_SMALL
    world.tuning = replace(world.tuning, reported=("Advising", "GainTooSmall", "8", "wants "), reported_since=world.now)
    world.advance(1800)
    world.reconcile()
    assert tuning(world) == shown
    world.advance(1800)
    world.reconcile()
    assert tuning(world)["reason"] == "GainTooSmall"
    policy.reason = Reason.DOWNTIME_NOT_ALLOWED
    world.tuning = replace(world.tuning, reported=("Advising", "DowntimeNotAllowed", "8", "wants "), reported_since=world.now)
    world.advance(301)
    world.reconcile()
    assert tuning(world)["reason"] == "DowntimeNotAllowed", "a change that would pay is news"


class Saying(Policy):
    """Decides nothing, in these words."""

    def __init__(self) -> None:
        super().__init__()
        self.said = TunerDecision("Learning", Reason.LEARNING, "Not enough traffic for a decision: 0 load samples in the last 300 s")

    def decide(self, tuner_inputs: TunerInputs, learned: Learned, *, prior: Prior) -> TunerDecision:
        return self.said


def test_another_cause_of_the_same_reason_takes_its_place_once_it_has_stood() -> None:
    """Requests that wait are no lack of traffic, and a deployment that has both in turn is not written at each evaluation."""
    policy = Saying()
    with patch("dflash_controller.planning.tuning.decide", policy.decide):
        world = tuned(tuning={"mode": "Advise"})
        none = tuning(world)
        assert none["message"].startswith("Not enough traffic")
        waiting = "In {} of 9 load samples in the last 300 s requests waited for a slot or for memory"
        policy.said = replace(policy.said, message=waiting.format(8))
        world.tuning = replace(world.tuning, reported=standing(policy.said), reported_since=world.now)
        world.advance(60)
        world.reconcile()
        assert tuning(world) == none
        policy.said = replace(policy.said, message=waiting.format(7))
        world.advance(241)
        world.reconcile()
        shown = tuning(world)
        assert shown["message"] == waiting.format(7)
        policy.said = replace(policy.said, message=waiting.format(6))
        world.advance(3600)
        world.reconcile()
        assert tuning(world) == shown, "other numbers of the same cause are no news"


def test_another_cause_to_leave_things_as_they_are_takes_the_place_of_one_once_an_hour() -> None:
    policy = Saying()
    policy.said = TunerDecision("Advising", Reason.GAIN_TOO_SMALL, "block 8 gives 4.1 %, less than the 5 % asked for", Fixed(8))
    with patch("dflash_controller.planning.tuning.decide", policy.decide):
        world = tuned(tuning={"mode": "Advise"})
        shown = tuning(world)
        policy.said = replace(policy.said, message="block 8 gives 5.2 %, but that does not justify a change yet")
        world.tuning = replace(world.tuning, reported=standing(policy.said), reported_since=world.now)
        world.advance(1800)
        world.reconcile()
        assert tuning(world) == shown
        world.advance(1801)
        world.reconcile()
        assert tuning(world)["message"].endswith("does not justify a change yet")


def test_a_decision_that_is_shown_anew_is_told_once(policy: Policy) -> None:
    world = settled(replicas=3, tuning={"mode": "Auto"})
    world.tuning = Knowledge(learned=Learned(), measured=3)
    assert told(world) == ["TunerTuned"]
    world.settle()
    assert told(world) == []
    assert world.condition("TuningReady") == "True"


def test_what_was_learned_is_kept_with_the_revision_in_force(policy: Policy) -> None:
    world = tuned()
    world.tuning = replace(world.tuning, record='{"v":1}')
    world.reconcile()
    stable = world.deployment["status"]["stableRevision"]
    assert world.children["ControllerRevision", stable]["metadata"]["annotations"][names.ANNOTATION_LEARNED] == '{"v":1}'


def test_a_tuner_that_was_told_nothing_says_nothing_and_unsays_nothing(policy: Policy) -> None:
    world = tuned()
    shown = tuning(world)
    world.tuning = Knowledge()
    world.settle()
    assert tuning(world) == shown
    assert not [step for step in world.plan().steps if isinstance(step, Event)]


def test_a_round_that_measured_too_few_pods_is_no_reason_to_say_anything() -> None:
    """As with an operator that has just started; what lasts is said."""
    world = settled(replicas=3, tuning={"mode": "Auto"})
    world.tuning = Knowledge(learned=Learned(), measured=0)
    world.settle()
    assert world.plan().decision is None
    assert "tuning" not in world.deployment["status"]
    world.tuning = replace(world.tuning, short_for_s=179.0)
    assert world.plan().decision is None
    world.tuning = replace(world.tuning, short_for_s=180.0)
    decision = world.plan().decision
    assert decision is not None
    assert (decision.state, decision.reason, decision.message.split(",")[0]) == ("Held", Reason.METRICS_MISSING, "Metrics came from 0 pods")
    world.tuning = replace(world.tuning, measured=2, short_for_s=0.0)
    learning = world.plan().decision
    assert learning is not None
    assert learning.reason is Reason.LEARNING


def test_what_is_known_without_any_pod_measured_is_said_at_once() -> None:
    world = settled(replicas=3, tuning={"mode": "Auto"})
    world.tuning = Knowledge(learned=Learned(), measured=0)
    world.metrics = MetricsHealth(False, Reason.METRICS_STALE, "The newest samples are too old")
    stale = world.plan().decision
    assert stale is not None
    assert (stale.state, stale.reason) == ("Held", Reason.METRICS_MISSING)
    world.edit(lambda spec: spec.update(rollout={"paused": True}))
    frozen = world.plan().decision
    assert frozen is not None
    assert frozen.state == "Frozen"


def test_a_drain_of_a_node_is_waited_for(policy: Policy) -> None:
    """It shows in the pods that leave, one after the other; on a node that is dead they may be leaving for ever."""
    world = tuned()
    world.reconcile()
    assert (policy.asked[-1].leaving, policy.asked[-1].degraded) == ("", "")
    evicted = next(iter(world.pods.values()))
    evicted["terminating"] = True
    world.reconcile()
    assert "its node is drained" in policy.asked[-1].leaving
    assert policy.asked[-1].frozen == ""
    world.settle()
    assert (policy.asked[-1].leaving, policy.asked[-1].degraded) == ("", "")
    node = next(iter(world.pods.values()))["node"]
    world.lose_node(node)
    world.settle()
    assert policy.asked[-1].leaving == ""


def test_what_the_tuner_tried_in_vain_does_not_fail_the_users_intent(policy: Policy) -> None:
    """The user goes to another drafter and comes back: the block that disappointed is not the drafter's fault."""
    world = tuned()
    try_in_vain(world, policy)
    world.judgement = PASSED
    world.edit(set_drafter(COMMIT))
    world.settle()
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    assert phase(world) == "Completed"
    assert world.condition("Ready") == "True"


def test_changes_are_told_from_the_histories_alone(policy: Policy) -> None:
    world = tuned()
    policy.wants = Fixed(8)
    world.settle()
    records = [record for item in world.of_kind("ControllerRevision") if (record := read(item)) is not None]
    assert [(change.block, change.kept) for change in changes(records)] == [(8, True)]


def test_a_restart_costs_what_it_took_the_pods_that_serve(policy: Policy) -> None:
    world = tuned()
    for pod, took_s in zip(world.pods.values(), (90, 240, 120), strict=True):
        pod["made"] = pod["ready_since"] - timedelta(seconds=took_s)
    world.reconcile()
    assert policy.asked[-1].restart_s == 240
    world.restarts = 1
    for pod in world.pods.values():
        pod["broken"] = True
    world.reconcile()
    assert policy.asked[-1].restart_s > 300, "what crashed on its way tells nothing: half the start-up budget"


def test_pods_that_became_ready_after_the_last_round_are_not_called_unmeasured(policy: Policy) -> None:
    world = tuned()
    world.metrics = MetricsHealth(False, Reason.NO_PODS, "No engine pod is Ready")
    world.reconcile()
    assert policy.asked[-1].metrics == ""
    world.metrics = MetricsHealth(False, Reason.METRICS_STALE, "The newest samples are too old")
    world.reconcile()
    assert policy.asked[-1].metrics == "The newest samples are too old"


def rolled_back(**spec: Any) -> World:
    """A settled deployment whose user's drafter was tried and failed."""
    world = tuned(**spec)
    world.judgement = FAILED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert (phase(world), block(world)) == ("RolledBack", "16")
    return world


def shown(world: World) -> dict[str, tuple[str, str]]:
    return {kind: (world.condition(kind), world.reason(kind)) for kind in ("Ready", "Reconciling", "Stalled")}


SHOWN_AS_ROLLED_BACK = {"Ready": ("False", "RolledBack"), "Reconciling": ("False", "RolledBack"), "Stalled": ("True", "RolledBack")}


@pytest.mark.parametrize("judgement", [PASSED, FAILED])
def test_what_serves_is_tuned_while_the_users_drafter_is_rolled_back_and_that_stays_shown(policy: Policy, judgement: Any) -> None:
    world = rolled_back()
    stable, failed = world.deployment["status"]["stableRevision"], world.deployment["status"]["rollout"]["revision"]
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    for _ in range(8):
        world.reconcile()
        assert shown(world) == SHOWN_AS_ROLLED_BACK
        world.controllers()
    assert policy.asked[-1].frozen == f"{candidate(world)} is on trial"
    assert (phase(world), replicas(world)) == ("Analyzing", {stable: 2, candidate(world): 1})
    tried = candidate(world)
    inputs = {name: world.children["ControllerRevision", name]["data"]["inputs"] for name in (stable, tried)}
    assert inputs[tried] == inputs[stable], "stable with another block size, not the drafter that failed"
    world.judgement = judgement
    if judgement is FAILED:
        policy.wants = None
    for _ in range(20):
        world.reconcile()
        assert shown(world) == SHOWN_AS_ROLLED_BACK
        world.controllers()
    assert block(world) == ("8" if judgement is PASSED else "16")
    assert (phase(world), world.deployment["status"]["rollout"]["revision"]) == ("RolledBack", failed)
    assert world.serving() == 3
    assert list(replicas(world)) == [world.deployment["status"]["stableRevision"]]
    # The failure is forgotten when the spec asks for something else, as ever, and the tuned block stays.
    world.judgement = PASSED
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    assert (phase(world), world.condition("Ready"), block(world)) == ("Completed", "True", "8" if judgement is PASSED else "16")


def test_a_change_of_the_tuner_that_was_promoted_is_shown_until_every_replica_has_it(policy: Policy) -> None:
    world = rolled_back(replicas=4)
    world.judgement, policy.wants = PASSED, Fixed(8)
    seen: list[tuple[str, str]] = []
    for _ in range(30):
        world.reconcile()
        rollout = world.deployment["status"]["rollout"]
        if not seen or seen[-1] != (rollout["phase"], rollout["revision"]):
            seen.append((rollout["phase"], rollout["revision"]))
        world.controllers()
    tried = world.deployment["status"]["stableRevision"]
    assert [phase for phase, revision in seen if revision == tried] == ["Preparing", "Canary", "Analyzing", "Progressing"]
    assert [phase for phase, revision in seen if revision != tried] == ["RolledBack"]


def test_a_new_change_of_the_user_ends_what_the_tuner_tries_beside_a_failure(policy: Policy) -> None:
    world = rolled_back()
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    world.settle()
    tried = candidate(world)
    world.edit(set_drafter("d" * 40))
    world.settle()
    assert candidate(world) != tried
    assert world.condition("Stalled") == "False"
    assert states(world) == {1: "Stable", 2: "Superseded", 3: "Superseded", 4: "Candidate"}


def test_advice_beside_a_failure_changes_nothing(policy: Policy) -> None:
    world = rolled_back(tuning={"mode": "Advise"})
    policy.wants = Fixed(8)
    world.settle()
    assert policy.asked[-1].frozen == ""
    assert (block(world), states(world)) == ("16", {1: "Stable", 2: "Failed"})


def test_a_block_that_failed_for_the_user_is_closed_to_the_tuner(policy: Policy) -> None:
    world = tuned()
    world.judgement = FAILED
    world.edit(lambda spec: spec.update(blockSize=8))
    world.settle()
    assert (phase(world), block(world)) == ("RolledBack", "16")
    world.judgement, policy.wants = PASSED, Fixed(8)
    world.advance(7 * 86400)
    world.settle()
    assert (block(world), states(world)) == ("16", {1: "Stable", 2: "Failed"})
    assert policy.asked[-1].policy.block_sizes == (16,)
    assert shown(world) == SHOWN_AS_ROLLED_BACK


def test_a_trial_of_the_tuner_that_fails_never_calls_anybody(policy: Policy) -> None:
    world = tuned()
    world.judgement, policy.wants = FAILED, Fixed(8)
    for _ in range(20):
        world.reconcile()
        assert (world.condition("Stalled"), world.condition("Reconciling")) == ("False", "False")
        if "Failed" in states(world).values():
            policy.wants = None
        world.controllers()
    assert (phase(world), block(world)) == ("Completed", "16")

"""What becomes of a candidate: tried, judged, promoted, held, given up; and what people can do about it."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.analysis.probe_json import to_json
from dflash_controller.api import names
from dflash_controller.model.counters import Answer, ProbeRun
from dflash_controller.model.probe import prompts_name
from dflash_controller.planning.revisions.revision import read
from dflash_controller.planning.state.plan import Event
from tests.support.planning_world import BIASED, FAILED, PASSED, UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled, states

OTHER = "c" * 40


def on_trial(judgement: Any = UNDECIDED, **more: Any) -> World:
    """A deployment whose new drafter serves on one replica and is being judged."""
    world = settled(**{"replicas": 3, **more})
    world.judgement = judgement
    world.edit(set_drafter(COMMIT))
    world.settle()
    return world


def phase(world: World) -> str:
    return str(world.deployment["status"]["rollout"]["phase"])


def told(world: World) -> list[str]:
    return [step.reason for step in world.plan().steps if isinstance(step, Event)]


def annotate(world: World, key: str, value: str | None) -> None:
    annotations = world.deployment["metadata"].setdefault("annotations", {})
    if value is None:
        annotations.pop(key)
    else:
        annotations[key] = value


def candidate(world: World) -> str:
    return str(world.deployment["status"]["candidateRevision"])


def replicas(world: World) -> dict[str, int]:
    return {item["metadata"]["name"]: item["spec"]["replicas"] for item in world.of_kind("Deployment")}


def test_a_candidate_is_tried_on_one_replica_for_as_long_as_nothing_is_decided() -> None:
    world = on_trial()
    stable = world.deployment["status"]["stableRevision"]
    assert phase(world) == "Analyzing"
    assert replicas(world) == {stable: 2, candidate(world): 1}
    assert (world.condition("Ready"), world.condition("Stalled"), world.condition("RolloutHealthy")) == ("False", "False", "True")
    world.advance(3600)
    world.settle()
    assert replicas(world) == {stable: 2, candidate(world): 1}


def test_the_phases_of_a_rollout_come_in_order_and_each_is_told_once() -> None:
    world = settled(replicas=3)
    world.edit(set_drafter(COMMIT))
    world.judgement = UNDECIDED
    seen: list[str] = []
    events: list[str] = []
    for step in range(40):
        if step == 20:
            world.judgement = PASSED
        events += [reason for reason in told(world) if reason.startswith("Rollout")]
        world.reconcile()
        world.controllers()
        if not seen or seen[-1] != phase(world):
            seen.append(phase(world))
    assert seen == ["Preparing", "Canary", "Analyzing", "Progressing", "Completed"]
    assert events == [f"Rollout{name}" for name in seen]


def test_a_worse_candidate_is_given_up_and_its_replica_goes_back() -> None:
    world = on_trial(FAILED)
    assert phase(world) == "RolledBack"
    assert states(world) == {1: "Stable", 2: "Failed"}
    assert world.serving() == 3
    assert {kind: (world.condition(kind), world.reason(kind)) for kind in ("Ready", "Stalled", "Reconciling", "RolloutHealthy")} == {
        "Ready": ("False", "RolledBack"),
        "Stalled": ("True", "RolledBack"),
        "Reconciling": ("False", "RolledBack"),
        "RolloutHealthy": ("False", "AnalysisFailed"),
    }
    rollout = world.deployment["status"]["rollout"]
    assert (rollout["reason"], rollout["message"]) == ("AnalysisFailed", FAILED.message)


def test_what_failed_is_not_tried_again_until_the_spec_or_the_restart_id_changes() -> None:
    world = on_trial(FAILED)
    world.judgement = PASSED
    del world.deployment["status"]
    world.advance(86400)
    world.settle()
    assert (phase(world), states(world)) == ("RolledBack", {1: "Stable", 2: "Failed"})
    world.edit(lambda spec: spec.update(replicas=4))
    world.settle()
    assert states(world) == {1: "Stable", 2: "Failed"}
    assert world.serving() == 4
    world.edit(lambda spec: spec.update(restartId="again"))
    world.settle()
    assert states(world) == {1: "Retired", 2: "Superseded", 3: "Stable"}


def test_a_drafter_that_failed_has_failed_at_every_block_size() -> None:
    world = on_trial(FAILED, blockSize=16, tuning={"mode": "Off"})
    world.judgement = PASSED
    world.edit(lambda spec: spec.update(blockSize=8))
    world.settle()
    assert states(world) == {1: "Stable", 2: "Failed"}
    # The block size alone is another matter.
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    assert world.deployment["status"]["speculation"]["label"] == "8"


def test_a_failure_is_forgotten_when_the_spec_asks_for_something_else() -> None:
    world = on_trial(FAILED)
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    assert (states(world), world.condition("Ready")) == ({1: "Stable", 2: "Superseded"}, "True")
    rollout = world.deployment["status"]["rollout"]
    failed = next(item["name"] for item in world.deployment["status"]["revisions"] if item["number"] == 2)
    assert (rollout["phase"], rollout["reason"]) == ("Superseded", "Superseded")
    assert rollout["message"] == f"{failed} failed (AnalysisFailed): {FAILED.message}; the spec asks for something else now"
    world.judgement = PASSED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert states(world) == {1: "Retired", 3: "Stable"}


def test_without_automatic_rollback_a_failed_candidate_waits_for_a_human() -> None:
    world = on_trial(FAILED, rollout={"automaticRollback": False})
    assert (phase(world), states(world)) == ("Held", {1: "Stable", 2: "Candidate"})
    assert (world.condition("Stalled"), world.reason("Stalled")) == ("True", "AnalysisFailed")
    # The finding stands although the metrics look better later on, and survives the operator and the status.
    world.judgement = PASSED
    del world.deployment["status"]
    world.settle()
    assert phase(world) == "Held"
    annotate(world, names.ANNOTATION_PROMOTE, candidate(world))
    world.settle()
    assert states(world) == {1: "Retired", 2: "Stable"}


def test_abort_gives_a_candidate_up() -> None:
    world = on_trial()
    annotate(world, names.ANNOTATION_ABORT, candidate(world))
    world.settle()
    assert (phase(world), world.reason("Stalled"), states(world)) == ("RolledBack", "Aborted", {1: "Stable", 2: "Failed"})


def test_promote_ends_the_trial_at_once() -> None:
    world = on_trial(rollout={"paused": False, "window": {"schedule": "0 0 1 6 *", "duration": "1h"}})
    assert phase(world) == "Preparing"
    annotate(world, names.ANNOTATION_PROMOTE, candidate(world))
    world.settle()
    assert (phase(world), states(world), world.serving()) == ("Completed", {1: "Retired", 2: "Stable"}, 3)
    record = read(world.children["ControllerRevision", world.deployment["status"]["stableRevision"]])
    assert record is not None
    assert record.history[-1]["reason"] == "PromotedByHand"


@pytest.mark.parametrize("operation", [names.ANNOTATION_PROMOTE, names.ANNOTATION_ABORT])
def test_an_operation_left_over_from_an_earlier_trial_does_nothing(operation: str) -> None:
    world = on_trial()
    first = candidate(world)
    annotate(world, operation, first)
    world.settle()
    world.edit(lambda spec: spec.pop("drafter"))
    world.judgement = PASSED
    world.settle()
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert (candidate(world), phase(world)) == (first, "Analyzing")
    # Taken away and set again it is meant for this one.
    annotate(world, operation, None)
    world.settle()
    annotate(world, operation, first)
    world.settle()
    assert phase(world) == ("Completed" if operation == names.ANNOTATION_PROMOTE else "RolledBack")


def test_a_pin_runs_an_old_revision_for_as_long_as_it_stands() -> None:
    world = settled(replicas=2)
    first = world.deployment["status"]["stableRevision"]
    world.edit(set_drafter(COMMIT))
    world.settle()
    second = world.deployment["status"]["stableRevision"]
    world.judgement = UNDECIDED
    annotate(world, names.ANNOTATION_PIN, first)
    world.settle()
    assert world.deployment["status"]["stableRevision"] == first
    assert (world.condition("Ready"), world.reason("Ready"), world.condition("Available")) == ("False", "Pinned", "True")
    world.edit(set_drafter(OTHER))
    world.settle()
    assert world.deployment["status"]["stableRevision"] == first
    annotate(world, names.ANNOTATION_PIN, None)
    world.settle()
    assert phase(world) == "Analyzing"
    assert candidate(world) not in (first, second)


def test_a_pin_to_what_is_not_kept_is_told_and_does_nothing() -> None:
    world = settled()
    annotate(world, names.ANNOTATION_PIN, "chat-nothing")
    world.settle()
    assert "PinUnknown" in [notice["reason"] for notice in world.deployment["status"]["notices"]]
    assert world.condition("Ready") == "True"


def test_paused_before_the_start_nothing_is_begun() -> None:
    world = on_trial(rollout={"paused": True})
    assert (phase(world), len(replicas(world))) == ("Paused", 1)
    world.edit(lambda spec: spec.update(rollout={}))
    world.judgement = PASSED
    world.settle()
    assert phase(world) == "Completed"


def test_paused_in_the_trial_nothing_is_promoted_but_a_bad_one_still_goes() -> None:
    world = on_trial()
    world.edit(lambda spec: spec.update(rollout={"paused": True}))
    world.judgement = PASSED
    world.settle()
    assert (phase(world), states(world)) == ("Paused", {1: "Stable", 2: "Candidate"})
    world.judgement = FAILED
    world.settle()
    assert phase(world) == "RolledBack"


def test_paused_while_replicas_are_replaced_both_revisions_stay_and_scaling_goes_to_the_new_one() -> None:
    world = on_trial(replicas=4)
    world.judgement = PASSED
    world.reconcile()
    world.controllers(start=False)
    world.edit(lambda spec: spec.update(rollout={"paused": True}))
    world.settle()
    before = replicas(world)
    old, new = sorted(before, key=lambda name: name == world.deployment["status"]["stableRevision"])
    assert (phase(world), before[old] > 0, sum(before.values())) == ("Paused", True, 4)
    world.edit(lambda spec: spec.update(replicas=6))
    world.settle()
    assert replicas(world) == {old: before[old], new: before[new] + 2}
    world.edit(lambda spec: spec.update(rollout={}))
    world.settle()
    assert replicas(world) == {new: 6}


def test_outside_the_window_a_rollout_waits_and_one_under_way_is_carried_on() -> None:
    world = settled(replicas=3, rollout={"window": {"schedule": "0 22 * * *", "duration": "2h", "timeZone": "Europe/Berlin"}})
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    rollout = world.deployment["status"]["rollout"]
    assert (rollout["phase"], rollout["reason"]) == ("Preparing", "OutsideWindow")
    assert "2026-01-01 21:00 UTC" in rollout["message"]
    wait_s = world.plan().requeue_after_s
    assert wait_s is not None
    world.advance(wait_s)
    world.settle()
    assert phase(world) == "Analyzing"
    world.advance(6 * 3600)
    world.judgement = PASSED
    world.settle()
    assert phase(world) == "Completed"


def test_the_deadline_is_later_by_what_the_candidates_probe_has_waited_for_others() -> None:
    world = on_trial(rollout={"deadline": "1h"})
    _, candidate = world.deployment["status"]["candidateRevision"].rsplit("-", 1)
    world.probe_waited_s = {candidate: 1800.0, "another": 9000.0}
    world.advance(5399)
    world.settle()
    assert phase(world) == "Analyzing"
    assert "the deadline is 2026-01-01 01:30 UTC" in world.deployment["status"]["rollout"]["message"]
    world.advance(2)
    world.settle()
    assert phase(world) == "Held"


@pytest.mark.parametrize(
    ("choice", "end", "reason"),
    [("Hold", "Held", "AnalysisDeadlineExceeded"), ("Promote", "Completed", "Completed"), ("Rollback", "RolledBack", "Inconclusive")],
)
def test_without_a_verdict_by_the_deadline_the_spec_decides(choice: str, end: str, reason: str) -> None:
    world = on_trial(rollout={"onInconclusive": choice, "deadline": "1h"})
    world.advance(3599)
    world.settle()
    assert phase(world) == "Analyzing"
    world.advance(2)
    world.settle()
    assert (phase(world), world.deployment["status"]["rollout"]["reason"]) == (end, reason)
    assert world.condition("Stalled") == ("False" if choice == "Promote" else "True")


def test_the_deadline_counts_from_the_first_ready_replica_whatever_becomes_of_operator_and_status() -> None:
    world = on_trial(rollout={"deadline": "1h"})
    world.advance(1800)
    del world.deployment["status"]
    for pod in world.pods.values():
        pod["ready"] = False
    world.settle()
    world.advance(1801)
    world.settle()
    assert phase(world) == "Held"


def test_replicas_that_differ_among_themselves_are_left_to_a_human() -> None:
    world = on_trial(BIASED)
    assert (phase(world), world.reason("Stalled")) == ("Held", "ReplicaBias")
    assert f"{names.ANNOTATION_PROMOTE}={candidate(world)}" in world.deployment["status"]["rollout"]["message"]


def test_a_candidate_that_does_not_start_is_given_up_with_the_pods_own_words() -> None:
    world = settled(replicas=3)
    stable = world.deployment["status"]["stableRevision"]
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    for _ in range(6):
        world.reconcile()
        world.controllers(start=False)
    for pod in world.pods.values():
        pod["broken"] = f"chat-{pod['revision']}" != stable
    world.restarts = 5
    world.settle()
    assert (phase(world), world.serving()) == ("RolledBack", 3)
    assert "unrecognized arguments" in world.deployment["status"]["rollout"]["message"]


def test_what_cannot_change_performance_is_not_compared() -> None:
    world = settled(replicas=3, drafter={"revision": COMMIT})
    world.judgement = UNDECIDED
    world.edit(lambda spec: spec.update(restartId="now"))
    world.settle()
    assert phase(world) == "Completed"
    world.edit(lambda spec: spec.update(scheduling={"tolerations": [{"key": "team", "operator": "Exists"}]}))
    world.settle()
    assert phase(world) == "Completed"
    # Unpinned, a restart may load another drafter.
    world.edit(lambda spec: spec.update(drafter={"revision": "main"}))
    world.judgement = PASSED
    world.settle()
    world.judgement = UNDECIDED
    world.edit(lambda spec: spec.update(restartId="later"))
    world.settle()
    assert phase(world) == "Analyzing"


def test_a_stable_revision_that_serves_nobody_is_left_without_a_comparison() -> None:
    world = settled(replicas=3)
    world.judgement = UNDECIDED
    for pod in world.pods.values():
        pod.update(broken=True, ready=False)
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert (phase(world), world.serving()) == ("Analyzing", 1)
    world.advance(181)
    world.settle()
    assert (phase(world), world.serving()) == ("Completed", 3)


def test_a_surge_without_accelerators_takes_the_place_of_a_replica() -> None:
    world = settled(replicas=3, rollout={"maxSurge": 1, "maxUnavailable": 1})
    world.capacity = 3
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert (phase(world), world.serving(), world.reason("RolloutHealthy")) == ("Canary", 3, "InsufficientAccelerators")
    world.advance(301)
    world.settle()
    assert (phase(world), sum(replicas(world).values())) == ("Analyzing", 3)
    # It stays so: the freed place is not given back to be missed again.
    world.advance(3600)
    world.settle()
    assert (phase(world), sum(replicas(world).values())) == ("Analyzing", 3)


def test_a_surge_without_accelerators_and_without_another_way_waits_for_room_and_everything_serves() -> None:
    world = settled(replicas=3, rollout={"maxSurge": 1, "maxUnavailable": 0})
    world.capacity = 3
    world.edit(set_drafter(COMMIT))
    world.settle()
    for seconds in (301, 86400):
        world.advance(seconds)
        world.settle()
        assert (phase(world), world.reason("RolloutHealthy"), world.condition("Stalled")) == ("Held", "InsufficientAccelerators", "False")
        # The pending pod is what an autoscaler sees.
        assert (world.serving(), len(world.pods)) == (3, 4)
    world.capacity = None
    world.settle()
    assert phase(world) == "Completed"


def test_a_surge_without_accelerators_goes_on_when_a_replica_may_be_replaced() -> None:
    world = settled(replicas=3, rollout={"maxSurge": 1, "maxUnavailable": 0})
    world.capacity = 3
    world.edit(set_drafter(COMMIT))
    world.settle()
    world.edit(lambda spec: spec.update(rollout={"maxSurge": 0, "maxUnavailable": 1}))
    world.settle()
    assert phase(world) == "Completed"


def test_pods_that_a_dead_node_never_ends_do_not_hold_up_the_rollout() -> None:
    world = settled(replicas=3)
    world.judgement = UNDECIDED
    dead = next(iter(world.pods.values()))
    dead.update(ready=False, terminating=True, node="gone")
    world.dead_nodes = frozenset({"gone"})
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert (phase(world), world.serving()) == ("Analyzing", 3)


def test_a_terminating_pod_on_a_living_node_keeps_its_accelerators() -> None:
    world = settled(replicas=3)
    world.edit(set_drafter(COMMIT))
    for _ in range(3):
        world.reconcile()
        held = len(world.pods)
        assert held <= 3
        assert sum(replicas(world).values()) + sum(pod["terminating"] for pod in world.pods.values()) <= 3


def test_the_outage_of_a_single_replica_stands_in_a_condition_before_it_happens() -> None:
    world = settled(replicas=1, rollout={"probe": {"enabled": False}})
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    assert (world.serving(), world.condition("Reconciling"), world.reason("Reconciling")) == (1, "True", "OutageAhead")
    assert world.reason("RolloutHealthy") == "OutageAhead"
    world.settle()
    assert phase(world) == "Analyzing"


def answers(revision: str, at: float = 1e9) -> ProbeRun:
    return ProbeRun(revision, prompts_name(64, 256), tuple(Answer(100, 20.0, 1.0, "a") for _ in range(64)), at)


def test_the_probe_asks_a_warm_candidate_and_a_stable_pod_and_its_answers_are_kept() -> None:
    world = settled(replicas=3)
    world.warm_up_s, world.answering, world.judgement = 60.0, False, UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert world.plan().probe is None
    world.advance(60)
    wanted = world.plan().probe
    assert wanted is not None
    assert wanted.candidate is not None
    assert wanted.reference is not None
    stable, tried = world.deployment["status"]["stableRevision"], candidate(world)
    assert (f"chat-{wanted.candidate.revision}", f"chat-{wanted.reference.revision}") == (tried, stable)
    assert world.plan().probe == wanted
    brought = world.probes = (answers(wanted.candidate.revision), answers(wanted.reference.revision))
    world.reconcile()
    assert world.evidence is not None
    assert world.evidence.probe == brought
    assert world.plan().probe is None
    world.probes = ()
    world.settle()
    assert world.evidence.probe is not None
    kept = world.children["ControllerRevision", tried]["metadata"]["annotations"][names.ANNOTATION_PROBE]
    assert kept == to_json(answers(wanted.candidate.revision))


def test_a_single_replica_answers_the_probe_before_it_stops() -> None:
    world = settled(replicas=1)
    world.answering = False
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert (phase(world), world.deployment["status"]["rollout"]["reason"], world.serving()) == ("Preparing", "TakingReference", 1)
    wanted = world.plan().probe
    assert wanted is not None
    assert (wanted.candidate, wanted.reference and wanted.reference.revision) == (
        None,
        world.deployment["status"]["stableRevision"].removeprefix("chat-"),
    )
    world.probes = (answers(world.deployment["status"]["stableRevision"].removeprefix("chat-")),)
    world.reconcile()
    world.probes = ()
    world.settle()
    assert phase(world) == "Analyzing"
    wanted = world.plan().probe
    assert wanted is not None
    assert wanted.candidate is not None
    assert wanted.reference is None


def test_a_probe_that_fails_does_not_keep_a_single_replica_from_being_replaced() -> None:
    world = settled(replicas=1)
    world.answering = False
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    world.probe_error = "The stable replica answered none of the probe's first 5 prompts"
    world.settle()
    assert phase(world) == "Analyzing"


def test_restarts_before_the_first_readiness_are_not_held_against_a_candidate() -> None:
    world = on_trial()
    record = read(world.children["ControllerRevision", candidate(world)])
    assert record is not None
    assert record.trial.served_at is not None
    assert world.evidence is not None
    assert world.evidence.candidate_restarts == 0


def test_an_edit_in_mid_trial_supersedes_the_candidate() -> None:
    world = on_trial()
    world.edit(set_drafter(OTHER))
    world.settle()
    assert (phase(world), states(world)) == ("Analyzing", {1: "Stable", 2: "Superseded", 3: "Candidate"})
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    assert (phase(world), world.condition("Ready"), world.serving()) == ("Superseded", "True", 3)
    assert "was replaced by another change before it was promoted" in world.deployment["status"]["rollout"]["message"]


def test_a_failure_before_the_last_trial_is_not_how_that_one_ended() -> None:
    world = on_trial(FAILED)
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert phase(world) == "Analyzing"
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    assert phase(world) == "Superseded"
    assert "was replaced by another change before it was promoted" in world.deployment["status"]["rollout"]["message"]


def test_a_failed_revision_outlives_the_history_limit_while_the_spec_asks_for_it() -> None:
    world = settled(replicas=2, rollout={"historyLimit": 1})
    for number in range(3):
        world.edit(set_drafter(f"{number}" * 40))
        world.settle()
    world.judgement = FAILED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert "Failed" in states(world).values()
    world.judgement = PASSED
    world.settle()
    assert phase(world) == "RolledBack"


def test_nothing_is_written_while_a_trial_goes_on() -> None:
    world = on_trial()
    before = world.deployment["status"]
    world.advance(30)
    assert world.reconcile() == 0
    assert world.deployment["status"] == before


def test_no_replicas_no_trial() -> None:
    world = settled(replicas=0)
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    record = read(world.children["ControllerRevision", world.deployment["status"]["stableRevision"]])
    assert record is not None
    assert (phase(world), record.history[-1]["reason"]) == ("Completed", "Unproven")


def test_a_stale_promotion_does_not_pass_a_revision_that_was_pruned_and_comes_back() -> None:
    world = on_trial(rollout={"historyLimit": 1})
    first = candidate(world)
    annotate(world, names.ANNOTATION_PROMOTE, first)
    world.settle()
    world.judgement = PASSED
    for number in range(3):
        world.edit(set_drafter(f"{number}" * 40))
        world.settle()
    assert ("ControllerRevision", first) not in world.children
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert (candidate(world), phase(world)) == (first, "Analyzing")


def test_without_speculation_acceptance_is_not_asked_about() -> None:
    world = settled(replicas=2, blockSize=1, tuning={"mode": "Off"})
    world.edit(lambda spec: spec.update(engine={"maxConcurrency": 16}))
    world.judgement = UNDECIDED
    world.settle()
    assert world.question is not None
    assert "speed" in world.question.gates
    assert "acceptanceLength" not in world.question.gates


def test_traffic_alone_does_not_promote_before_the_texts_were_compared() -> None:
    world = settled(replicas=3)
    world.answering = False
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert phase(world) == "Analyzing"
    world.probe_error = "The candidate answered none of the probe's first 5 prompts: HTTP status 401."
    world.judgement = UNDECIDED
    world.reconcile()
    assert "HTTP status 401" in world.deployment["status"]["rollout"]["message"]
    world.judgement = PASSED
    world.settle()
    assert phase(world) == "Completed"


def test_under_suspend_a_spec_that_no_revision_was_made_for_is_not_ready() -> None:
    world = settled(replicas=2)
    world.edit(lambda spec: spec.update(suspend=True, drafter={"revision": COMMIT}))
    world.reconcile()
    assert (world.condition("Ready"), world.reason("Ready")) == ("False", "Suspended")


def test_paused_holds_at_no_replicas_too() -> None:
    world = settled(replicas=0)
    world.edit(lambda spec: spec.update(rollout={"paused": True}, drafter={"revision": COMMIT}))
    world.settle()
    assert (phase(world), states(world)) == ("Paused", {1: "Stable", 2: "Candidate"})


def test_a_lost_record_comes_back_at_its_old_place_in_time() -> None:
    world = settled(replicas=3)
    first = world.deployment["status"]["stableRevision"]
    world.edit(set_drafter(COMMIT))
    while states(world) != {1: "Stable", 2: "Stable"}:
        world.reconcile()
        world.controllers()
    world.reconcile()
    second = world.deployment["status"]["stableRevision"]
    for name in (first, second):
        del world.children["ControllerRevision", name]
    world.settle()
    assert world.deployment["status"]["stableRevision"] == second
    assert states(world) == {1: "Retired", 2: "Stable"}


def test_a_promotion_counts_although_the_record_of_stable_was_made_again_in_mid_trial() -> None:
    world = on_trial()
    stable, tried = world.deployment["status"]["stableRevision"], candidate(world)
    # Of an older operator: its workload does not tell its place in time.
    world.children["Deployment", stable]["metadata"]["annotations"].pop(names.ANNOTATION_NUMBER)
    del world.children["ControllerRevision", stable]
    world.settle()
    world.judgement = PASSED
    world.settle()
    assert (world.deployment["status"]["stableRevision"], phase(world)) == (tried, "Completed")


@pytest.mark.parametrize("choice", ["Hold", "Promote"])
def test_a_candidate_that_serves_nobody_is_not_promoted(choice: str) -> None:
    world = on_trial(rollout={"onInconclusive": choice, "deadline": "1h"})
    for pod in world.pods.values():
        if f"chat-{pod['revision']}" == candidate(world):
            pod.update(broken=True, ready=False)
    world.judgement = PASSED if choice == "Hold" else UNDECIDED
    world.advance(0 if choice == "Hold" else 3601)
    world.settle()
    assert phase(world) == ("Analyzing" if choice == "Hold" else "Held")
    world.restarts = 5
    world.advance(-3601 if choice == "Promote" else 0)
    world.settle()
    assert (phase(world), world.serving()) == ("RolledBack", 3)


def test_a_pin_to_another_block_size_is_not_what_the_spec_asks_for() -> None:
    world = settled(replicas=2, blockSize=16, tuning={"mode": "Off"})
    first = world.deployment["status"]["stableRevision"]
    world.edit(lambda spec: spec.update(blockSize=8))
    world.settle()
    annotate(world, names.ANNOTATION_PIN, first)
    world.settle()
    assert (world.condition("Ready"), world.reason("Ready")) == ("False", "Pinned")


def test_an_invalid_spec_in_mid_trial_is_told_wherever_one_looks() -> None:
    world = on_trial()
    tried = candidate(world)
    world.edit(lambda spec: spec.update(rollout={"window": {"schedule": "0 25 * * *", "duration": "1h"}}))
    world.settle()
    assert (phase(world), world.deployment["status"]["rollout"]["reason"], candidate(world)) == ("Held", "InvalidSpec", tried)
    assert (world.condition("RolloutHealthy"), world.reason("RolloutHealthy")) == ("False", "InvalidSpec")
    world.edit(lambda spec: spec.update(rollout={}))
    world.settle()
    assert phase(world) == "Analyzing"


def test_an_operation_that_names_nothing_is_told() -> None:
    world = on_trial()
    annotate(world, names.ANNOTATION_ABORT, "chat-nothing")
    world.settle()
    notices = {notice["reason"]: notice["message"] for notice in world.deployment["status"]["notices"]}
    assert "chat-nothing, which is not kept" in notices["AnnotationIgnored"]


def test_a_trial_that_began_in_the_future_begins_anew() -> None:
    world = on_trial()
    metadata = world.children["ControllerRevision", candidate(world)]["metadata"]
    metadata["annotations"][names.ANNOTATION_TRIAL] = '{"servedAt":"2099-01-01T00:00:00Z"}'
    world.settle()
    assert "2026-01-01" in world.deployment["status"]["rollout"]["message"]


def test_a_rollout_is_complete_when_every_new_replica_serves() -> None:
    world = settled(replicas=3)
    world.edit(set_drafter(COMMIT))
    seen = []
    for _ in range(30):
        world.reconcile()
        if phase(world) == "Completed" and world.condition("Ready") != "True":
            seen.append(world.reason("Ready"))
        world.controllers(start=len(seen) == 0)
    assert not seen
    assert phase(world) == "Completed"


def test_scaling_to_nothing_in_mid_trial_does_not_pass_the_candidate() -> None:
    world = on_trial()
    world.edit(lambda spec: spec.update(replicas=0))
    world.settle()
    assert (phase(world), world.deployment["status"]["rollout"]["reason"], states(world)) == (
        "Preparing",
        "ScaledToZero",
        {1: "Stable", 2: "Candidate"},
    )
    del world.deployment["status"]
    world.advance(86400)
    world.edit(lambda spec: spec.update(replicas=3))
    world.settle()
    assert (phase(world), states(world)) == ("Analyzing", {1: "Stable", 2: "Candidate"})


def test_a_revision_that_comes_back_while_everything_is_scaled_down_needs_no_trial() -> None:
    """Its own replicas, still on their way out, are not a trial that was broken off."""
    world = settled(replicas=3, tuning={"mode": "Off"})
    before = world.deployment["status"]["stableRevision"]
    world.edit(lambda spec: spec.update(replicas=0))
    world.edit(lambda spec: spec.update(blockSize=8))
    world.reconcile(stop_after=1)
    world.reconcile(stop_after=1)
    world.edit(lambda spec: spec.update(blockSize=16))
    world.settle()
    assert world.deployment["status"]["stableRevision"] == before
    assert world.condition("Ready") == "True"

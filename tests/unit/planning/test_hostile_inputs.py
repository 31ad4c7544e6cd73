"""What people, clocks and damaged annotations do to a deployment in mid-rollout, and what it must not do then."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.api.speculation import Fixed
from dflash_controller.planning.state.child_ownership import is_adoptable, is_ours
from tests.support.planning_world import FAILED, PASSED, UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled, states
from tests.unit.planning.test_rollouts import annotate, candidate, on_trial, phase, replicas
from tests.unit.planning.test_tuning import Policy, policy, tuned

__all__ = ["policy"]


def first_tried_again(judgement: Any = UNDECIDED, **more: Any) -> tuple[World, str]:
    """The first revision was replaced completely, and the spec asks for it again: it is a candidate. Returns the name of stable too."""
    world = settled(**{"replicas": 3, **more})
    world.edit(set_drafter(COMMIT))
    world.settle()
    world.judgement = judgement
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    return world, world.deployment["status"]["stableRevision"]


def of_number(world: World, number: int) -> dict[str, Any]:
    return next(item for item in world.of_kind("ControllerRevision") if item["revision"] == number)


def crash(world: World, name: str) -> None:
    world.restarts = 5
    for pod in world.pods.values():
        if f"chat-{pod['revision']}" == name:
            pod.update(broken=True, ready=False)


def progressing(count: int, **more: Any) -> World:
    world = on_trial(replicas=count, **more)
    world.judgement = PASSED
    for _ in range(2):
        world.reconcile()
        world.controllers(start=False)
    assert phase(world) == "Progressing"
    return world


# A trial of a revision that was stable long ago counts as no trial.


@pytest.mark.parametrize("judgement", [UNDECIDED, FAILED])
def test_scaled_to_one_in_a_trial_of_a_former_revision_stable_keeps_the_replica(judgement: Any) -> None:
    world, stable = first_tried_again(judgement, rollout={"automaticRollback": False})
    assert phase(world) == ("Analyzing" if judgement is UNDECIDED else "Held")
    world.edit(lambda spec: spec.update(replicas=1))
    world.settle()
    assert replicas(world)[stable] == 1


def test_without_its_surge_a_trial_of_a_former_revision_leaves_stable_the_replica() -> None:
    world, stable = first_tried_again(replicas=1, rollout={"maxSurge": 1, "maxUnavailable": 0})
    world.edit(lambda spec: spec.update(rollout={}))
    world.settle()
    assert replicas(world)[stable] == 1


def test_scaled_to_zero_while_a_former_revision_starts_nothing_is_promoted() -> None:
    world = settled(replicas=3)
    world.edit(set_drafter(COMMIT))
    world.settle()
    stable = world.deployment["status"]["stableRevision"]
    world.judgement = UNDECIDED
    world.edit(lambda spec: spec.pop("drafter"))
    for _ in range(5):
        world.reconcile()
        world.controllers(start=False)
    assert phase(world) == "Canary"
    world.edit(lambda spec: spec.update(replicas=0))
    world.settle()
    assert world.deployment["status"]["stableRevision"] == stable


# The rest.


@pytest.mark.parametrize("invalid", [{"engine": {"version": "0.0.1"}}, {"target": {"model": "nobody/unknown"}}])
def test_scaled_to_one_under_an_obstacle_stable_keeps_the_replica(invalid: dict[str, Any]) -> None:
    world = on_trial(replicas=3)
    stable = world.deployment["status"]["stableRevision"]
    world.edit(lambda spec: spec.update(invalid))
    world.settle()
    world.edit(lambda spec: spec.update(replicas=1))
    world.settle()
    assert replicas(world)[stable] == 1


def test_the_last_replica_that_serves_does_not_stop_for_one_that_does_not() -> None:
    """It crashes in the second after its promotion. maxSurge 1 is said to avoid every outage."""
    world = on_trial(replicas=1, rollout={"maxSurge": 1})
    old, new = world.deployment["status"]["stableRevision"], candidate(world)
    world.judgement = PASSED
    world.reconcile()
    crash(world, new)
    for _ in range(6):
        world.reconcile()
        world.controllers()
    assert (world.serving(), replicas(world).get(old)) == (1, 1)


def test_scaled_down_while_what_was_promoted_is_broken_the_last_replica_that_serves_stays() -> None:
    world = progressing(4)
    new = world.deployment["status"]["stableRevision"].removeprefix("chat-")
    world.troubles[new] = {"waiting_reason": "ImagePullBackOff", "container": "engine"}
    for pod in world.pods.values():
        pod["ready"] = pod["ready"] and pod["revision"] != new
    world.settle()
    assert world.serving() == 2
    world.edit(lambda spec: spec.update(replicas=1))
    world.settle()
    assert world.serving() == 1
    assert phase(world) != "Completed"


def test_completed_is_not_said_of_a_revision_that_never_serves() -> None:
    world = progressing(4)
    new = world.deployment["status"]["stableRevision"].removeprefix("chat-")
    world.troubles[new] = {"waiting_reason": "ImagePullBackOff", "container": "engine"}
    for pod in world.pods.values():
        pod["ready"] = pod["ready"] and pod["revision"] != new
    world.edit(lambda spec: spec.update(replicas=1))
    world.settle()
    assert (phase(world), world.condition("RolloutHealthy")) != ("Completed", "True")


def test_an_abort_set_again_after_the_promotion_counts() -> None:
    world = on_trial(replicas=4)
    new = candidate(world)
    annotate(world, names.ANNOTATION_ABORT, new)
    world.settle()
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    world.edit(set_drafter(COMMIT))
    world.settle()
    world.judgement = PASSED
    for _ in range(2):
        world.reconcile()
        world.controllers(start=False)
    assert phase(world) == "Progressing"
    annotate(world, names.ANNOTATION_ABORT, None)
    world.reconcile()
    world.controllers(start=False)
    assert phase(world) == "Progressing"
    annotate(world, names.ANNOTATION_ABORT, new)
    world.settle()
    assert phase(world) == "RolledBack"


def test_setting_the_spec_back_ends_a_paused_trial() -> None:
    """Otherwise the candidate serves users, nobody judges it any more, and an abort does nothing."""
    world = on_trial(replicas=3)
    bad = candidate(world)
    world.edit(lambda spec: spec.update(rollout={"paused": True}))
    world.settle()
    world.judgement = FAILED
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    annotate(world, names.ANNOTATION_ABORT, bad)
    world.settle()
    assert not replicas(world).get(bad)


def test_a_paused_superseded_candidate_that_crashes_gives_its_place_back() -> None:
    world = on_trial(replicas=3)
    bad = candidate(world)
    world.edit(lambda spec: spec.update(rollout={"paused": True}))
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    crash(world, bad)
    world.settle()
    assert world.serving() == 3


def test_scaled_to_zero_outside_the_window_nothing_is_promoted() -> None:
    world = settled(replicas=3, rollout={"window": {"schedule": "0 0 1 6 *", "duration": "1h"}})
    stable = world.deployment["status"]["stableRevision"]
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert world.deployment["status"]["rollout"]["reason"] == "OutsideWindow"
    for count in (0, 3):
        world.edit(lambda spec, count=count: spec.update(replicas=count))
        world.settle()
    assert world.deployment["status"]["stableRevision"] == stable


def test_a_candidate_whose_state_is_damaged_does_not_become_active() -> None:
    world = on_trial()
    stable, tried = world.deployment["status"]["stableRevision"], candidate(world)
    world.children["ControllerRevision", tried]["metadata"]["annotations"][names.ANNOTATION_STATE] = "candidate"
    world.settle()
    for count in (1, 6):
        world.edit(lambda spec, count=count: spec.update(replicas=count))
        world.settle()
    assert replicas(world)[stable] >= 5


def test_a_failed_revision_whose_record_cannot_be_read_stops_nothing() -> None:
    """Its workload is still there, since a pod of it takes long to end. The spec's revision is made and tried anew."""
    world = on_trial()
    tried = candidate(world)
    for pod in world.pods.values():
        pod["hangs"] = True
    world.judgement = FAILED
    world.settle()
    assert phase(world) == "RollingBack"
    world.children["ControllerRevision", tried]["data"]["format"] = 2
    world.settle()
    assert states(world)[1] == "Stable"


@pytest.mark.parametrize("text", ["[1]", "[{}]", '{"a":1}', '[{"outcome":"Stable"}]', "[" * 3000])
def test_a_damaged_history_stops_nothing(text: str) -> None:
    world = settled(replicas=2)
    record = of_number(world, 1)
    record["metadata"]["annotations"][names.ANNOTATION_HISTORY] = text
    world.edit(lambda spec: spec.update(replicas=3))
    world.settle()
    assert world.serving() == 3


@pytest.mark.parametrize("text", ['{"restarts":1e999}', '{"askedBlock":1e999}', "[" * 3000])
def test_a_damaged_trial_stops_nothing(text: str) -> None:
    world = on_trial()
    of_number(world, 2)["metadata"]["annotations"][names.ANNOTATION_TRIAL] = text
    world.settle()
    assert phase(world) == "Analyzing"


@pytest.mark.parametrize("kind", ["ControllerRevision", "Deployment"])
@pytest.mark.parametrize(
    "annotation",
    [names.ANNOTATION_TRIAL, names.ANNOTATION_HISTORY, names.ANNOTATION_PROBE, names.ANNOTATION_LEARNED, names.ANNOTATION_RECORD],
)
def test_an_annotation_nested_too_deeply_stops_nothing(kind: str, annotation: str) -> None:
    world = settled(replicas=2)
    for item in world.of_kind(kind):
        item["metadata"].setdefault("annotations", {})[annotation] = "[" * 5000
    world.edit(lambda spec: spec.update(replicas=3))
    world.settle()
    assert world.serving() == 3


@pytest.mark.parametrize("state", ["", "candidate"])
def test_a_lost_record_is_rebuilt_from_a_workload_with_a_damaged_state(state: str) -> None:
    world = on_trial()
    tried = candidate(world)
    world.children["Deployment", tried]["metadata"]["annotations"][names.ANNOTATION_STATE] = state
    del world.children["ControllerRevision", tried]
    world.settle()
    assert len(states(world)) == 2


def test_while_suspended_the_status_names_the_stored_stable_revision() -> None:
    world = progressing(4)
    stable = world.deployment["status"]["stableRevision"]
    world.edit(lambda spec: spec.update(suspend=True))
    annotate(world, names.ANNOTATION_ABORT, stable)
    world.settle()
    assert states(world) == {1: "Stable", 2: "Stable"}
    assert world.deployment["status"]["stableRevision"] == stable


@pytest.mark.parametrize("operation", [names.ANNOTATION_PROMOTE, names.ANNOTATION_PIN])
def test_one_asked_for_by_hand_that_cannot_start_is_told_as_stalled(operation: str) -> None:
    """With one replica and no surge nothing serves, for ever, and Stalled says "No action is needed"."""
    world = settled(replicas=1, rollout={"paused": True})
    world.edit(set_drafter(COMMIT))
    world.settle()
    tried = candidate(world)
    world.troubles[tried.removeprefix("chat-")] = {"waiting_reason": "ImagePullBackOff", "container": "engine"}
    annotate(world, operation, tried)
    for _ in range(40):
        world.reconcile()
        world.controllers()
        world.advance(600)
    assert world.serving() == 1 or world.condition("Stalled") == "True"


def test_a_pin_of_stable_ends_a_paused_trial() -> None:
    """How-to: "Go back at once". It keeps the candidate among the replicas that serve."""
    world = on_trial(replicas=3)
    stable, bad = world.deployment["status"]["stableRevision"], candidate(world)
    world.edit(lambda spec: spec.update(rollout={"paused": True}))
    annotate(world, names.ANNOTATION_PIN, stable)
    world.settle()
    assert not replicas(world).get(bad)


@pytest.mark.parametrize("part", ["conditions", "tuning"])
def test_a_status_with_a_reason_of_a_newer_operator_stops_nothing(part: str) -> None:
    """The CRD allows any word. An operator that was rolled back reads what the newer one wrote."""
    world = settled(replicas=2)
    status = world.deployment["status"]
    if part == "conditions":
        next(item for item in status["conditions"] if item["type"] == "MetricsAvailable")["reason"] = "ScrapeThrottled"
    else:
        status["tuning"] = {"state": "Held", "reason": "ThermalLimit", "message": "something new"}
    world.edit(lambda spec: spec.update(replicas=3))
    world.settle()
    assert world.serving() == 3


def test_pods_whose_workload_and_record_are_both_gone_do_not_starve_the_spec() -> None:
    """Both deleted with --cascade=orphan: their pods use up the budget, so nothing starts, and Stalled says "No action is needed"."""
    world = settled(replicas=3)
    name = world.deployment["status"]["stableRevision"]
    del world.children["Deployment", name]
    del world.children["ControllerRevision", name]
    world.edit(set_drafter(COMMIT))
    world.settle()
    world.advance(86400)
    world.settle()
    assert world.of_kind("Deployment") or world.condition("Stalled") == "True"


@pytest.mark.parametrize("way", ["over zero", "paused before its replica", "in the trial"])
def test_a_trial_of_the_tuner_stops_no_last_replica(policy: Policy, way: str) -> None:
    """tuning.allowDowntime is false: nobody asked for an outage. Nights at 0 replicas and mornings at 1 are enough."""
    world = tuned()
    policy.wants = Fixed(8)
    if way == "in the trial":
        # The way back to 16: its revision was stable before.
        world.settle()
        policy.wants = Fixed(16)
    stable = world.deployment["status"]["stableRevision"]
    world.judgement = UNDECIDED
    for _ in range(1 if way == "paused before its replica" else 6):
        world.reconcile()
        world.controllers()
    if way == "paused before its replica":
        world.edit(lambda spec: spec.update(rollout={"paused": True}))
        world.settle()
        world.edit(lambda spec: spec.update(rollout={}, replicas=1))
    else:
        world.edit(lambda spec: spec.update(replicas=0 if way == "over zero" else 1))
        world.settle()
        world.edit(lambda spec: spec.update(replicas=1))
    least = 1
    for turn in range(12):
        world.reconcile()
        world.controllers()
        least = min(least, world.serving()) if turn > 3 or way != "over zero" else least
    assert least == 1
    assert replicas(world)[stable] == 1


@pytest.mark.parametrize("state", [None, "Retired", "Candidate"])
def test_a_state_removed_by_hand_puts_no_failed_revision_in_force(state: str | None) -> None:
    world = on_trial(FAILED)
    stable, failed = world.deployment["status"]["stableRevision"], of_number(world, 2)["metadata"]["name"]
    assert phase(world) == "RolledBack"
    annotations = world.children["ControllerRevision", stable]["metadata"]["annotations"]
    annotations.pop(names.ANNOTATION_STATE)
    if state is not None:
        annotations[names.ANNOTATION_STATE] = state
    world.settle()
    assert not replicas(world).get(failed)


def test_the_lost_record_of_what_serves_is_rebuilt_while_what_the_spec_asks_for_has_failed() -> None:
    world = on_trial(FAILED)
    stable = world.deployment["status"]["stableRevision"]
    del world.children["ControllerRevision", stable]
    world.settle()
    assert (world.deployment["status"]["stableRevision"], states(world)[1], phase(world)) == (stable, "Stable", "RolledBack")
    assert world.reason("Stalled") == "RolledBack"


def _copied(world: World) -> None:
    """A backup, or a copy, of objects that were made in another namespace: only their metadata says where they are now."""
    for record in world.of_kind("ControllerRevision"):
        record["data"]["workload"]["metadata"] |= {"namespace": "production", "name": "other"}
        record["metadata"].pop("ownerReferences", None)
    world.children = {key: item for key, item in world.children.items() if key[0] == "ControllerRevision"}
    world.pods = {}


def test_a_record_that_was_copied_from_another_namespace_is_written_into_its_own() -> None:
    world = settled(replicas=2)
    _copied(world)
    written = []
    for _ in range(4):
        plan = world.plan()
        for step in plan.steps:
            place = getattr(step, "manifest", {}).get("metadata") or {"namespace": getattr(getattr(step, "ref", None), "namespace", None)}
            written.append(place["namespace"])
        world.carry_out(plan)
        world.controllers()
    assert set(written) <= {"models", None}
    world.settle()
    assert (world.condition("Ready"), world.serving()) == ("True", 2)


def test_a_record_of_another_kind_of_object_is_not_written() -> None:
    world = settled(replicas=2)
    for record in world.of_kind("ControllerRevision"):
        record["data"]["workload"]["kind"] = "DaemonSet"
    world.settle()
    assert world.condition("Stalled") == "True"
    assert {kind for kind, _ in world.children} >= {"Deployment"}
    assert "DaemonSet" not in {kind for kind, _ in world.children}
    assert world.serving() == 2


def test_an_object_in_another_namespace_is_neither_ours_nor_adopted() -> None:
    world = settled(replicas=2)
    elsewhere = {**world.of_kind("Deployment")[0]}
    elsewhere["metadata"] = {**elsewhere["metadata"], "namespace": "production"}
    assert not is_ours(elsewhere, world.deployment)
    elsewhere["metadata"].pop("ownerReferences")
    assert not is_adoptable(elsewhere, world.deployment)

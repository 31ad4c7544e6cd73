"""Every obstacle stops its own part only: what serves is scaled and repaired, pins and aborts are obeyed, and a condition tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dflash_controller.analysis.verdict import Judgement
from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.planning.state.inputs import Blocker
from dflash_controller.planning.state.plan import Part
from tests.support.planning_world import FAILED, PASSED, UNDECIDED, Refusal, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled
from tests.unit.planning.test_rollouts import OTHER, annotate, candidate, replicas

STRANGER = [{"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "x", "controller": True}]


def invalid(world: World) -> str:
    world.edit(lambda spec: spec.update(blockSize=32))
    return "InvalidSpec"


def unparsable(world: World) -> str:
    world.edit(lambda spec: spec.update(engine={"name": "tgi"}))
    return "InvalidSpec"


def service_taken(world: World) -> str:
    world.children["Service", "chat"]["metadata"]["ownerReferences"] = STRANGER
    return "NameTaken"


def candidate_taken(world: World) -> str:
    world.children["Deployment", candidate(world)]["metadata"]["ownerReferences"] = STRANGER
    return "NameTaken"


def unreadable_candidate(world: World) -> str:
    world.children["ControllerRevision", candidate(world)]["data"]["format"] = 99
    return "RevisionUnreadable"


OBSTACLES = [invalid, unparsable, service_taken, candidate_taken, unreadable_candidate]


def on_trial() -> World:
    world = settled(replicas=2)
    world.judgement = PASSED
    world.edit(set_drafter(OTHER))
    world.settle()
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    return world


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_serves_is_scaled_and_told(obstacle: Callable[[World], str]) -> None:
    world = on_trial()
    stable, reason = str(world.deployment["status"]["stableRevision"]), obstacle(world)
    world.edit(lambda spec: spec.update(replicas=4))
    world.settle()
    assert replicas(world)[stable] == 3
    assert (world.condition("Stalled"), world.reason("Stalled")) == ("True", reason)
    assert world.condition("Ready") == "False"


@pytest.mark.parametrize("obstacle", [invalid, unparsable])
def test_scaling_to_one_in_mid_trial_leaves_the_replica_to_the_active_revision(obstacle: Callable[[World], str]) -> None:
    world = on_trial()
    spec, stable, tried = dict(world.deployment["spec"]), str(world.deployment["status"]["stableRevision"]), candidate(world)
    obstacle(world)
    world.edit(lambda spec: spec.update(replicas=1))
    world.settle()
    assert replicas(world) == {stable: 1, tried: 0}
    world.edit(lambda now: (now.clear(), now.update({**spec, "replicas": 1})))
    world.settle()
    assert (replicas(world)[stable], world.deployment["status"]["rollout"]["reason"]) == (1, "ScaledToOne")


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_deployment_that_was_deleted_is_made_again(obstacle: Callable[[World], str]) -> None:
    world = on_trial()
    stable = str(world.deployment["status"]["stableRevision"])
    obstacle(world)
    del world.children["Deployment", stable]
    world.pods = {name: pod for name, pod in world.pods.items() if f"chat-{pod['revision']}" != stable}
    world.settle()
    assert replicas(world)[stable] == 1
    assert sum(f"chat-{pod['revision']}" == stable and pod["ready"] for pod in world.pods.values()) == 1


@pytest.mark.parametrize("obstacle", [invalid, unparsable, service_taken, unreadable_candidate])
def test_a_pin_is_obeyed(obstacle: Callable[[World], str]) -> None:
    world = on_trial()
    former = next(
        item["metadata"]["name"]
        for item in world.of_kind("ControllerRevision")
        if item["metadata"]["annotations"][names.ANNOTATION_STATE] == "Retired"
    )
    obstacle(world)
    annotate(world, names.ANNOTATION_PIN, former)
    tried = candidate(world)
    world.settle()
    now = replicas(world)
    assert now[former] == 2
    # What cannot be read is scaled down and not deleted.
    assert set(now) - {former} <= {tried}
    assert now.get(tried, 0) == 0


@pytest.mark.parametrize("obstacle", [invalid, unparsable, service_taken])
def test_an_abort_is_obeyed(obstacle: Callable[[World], str]) -> None:
    world = on_trial()
    stable, tried = str(world.deployment["status"]["stableRevision"]), candidate(world)
    obstacle(world)
    annotate(world, names.ANNOTATION_ABORT, tried)
    world.settle()
    assert {name: count for name, count in replicas(world).items() if count} == {stable: 2}


def test_an_accessory_that_is_taken_stops_no_rollout() -> None:
    world = settled(replicas=2)
    service_taken(world)
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert (world.deployment["status"]["rollout"]["phase"], world.reason("AccessoriesReady")) == ("Completed", "NameTaken")
    assert (world.condition("Ready"), world.reason("Stalled")) == ("False", "NameTaken")


def test_a_retired_revision_that_cannot_be_read_stops_nothing() -> None:
    world = settled(replicas=2)
    retired = str(world.deployment["status"]["stableRevision"])
    world.edit(set_drafter(COMMIT))
    world.settle()
    world.children["ControllerRevision", retired]["data"] = {}
    world.edit(set_drafter(OTHER))
    world.settle()
    assert (world.deployment["status"]["rollout"]["phase"], world.condition("Stalled")) == ("Completed", "False")


def test_an_active_revision_that_cannot_be_read_is_scaled_and_not_replaced() -> None:
    world = settled(replicas=2)
    name = str(world.deployment["status"]["stableRevision"])
    world.children["ControllerRevision", name]["data"]["format"] = 99
    world.edit(set_drafter(COMMIT))
    world.edit(lambda spec: spec.update(replicas=3))
    world.settle()
    assert (replicas(world), world.serving(), world.reason("Stalled")) == ({name: 3}, 3, "RevisionUnreadable")


def test_a_stable_workload_whose_name_is_taken_leaves_the_candidate_alone() -> None:
    world = on_trial()
    stable, tried = str(world.deployment["status"]["stableRevision"]), candidate(world)
    world.children["Deployment", stable]["metadata"]["ownerReferences"] = STRANGER
    before = dict(world.children["Deployment", stable])
    world.settle()
    assert world.children["Deployment", stable] == before
    assert (world.reason("Stalled"), replicas(world)[tried]) == ("NameTaken", 1)


@pytest.mark.parametrize("part", Part)
def test_a_refused_write_is_told_in_the_condition_of_its_part(part: Part) -> None:
    world = settled(replicas=2)
    world.edit(lambda spec: spec.update(replicas=3))
    world.refusals = {part: Blocker(Reason.QUOTA_EXCEEDED, "exceeded quota")}
    world.carry_out(world.plan())
    stalled, accessories = world.reason("Stalled"), world.reason("AccessoriesReady")
    assert (stalled, accessories) == ("QuotaExceeded", "QuotaExceeded" if part is Part.ACCESSORIES else "AsSpecified")
    assert world.deployment["status"]["observedGeneration"] == world.deployment["metadata"]["generation"]
    assert world.condition("Ready") == "False"


@pytest.mark.parametrize("replicas_", [1, 3])
def test_what_serves_is_scaled_while_the_record_of_a_new_revision_is_refused(replicas_: int) -> None:
    world = settled(replicas=2)
    world.refuses["ControllerRevision"] = Refusal(403, "forbidden: User cannot create resource")
    world.edit(set_drafter(COMMIT))
    world.edit(lambda spec: spec.update(replicas=replicas_))
    for _ in range(8):
        world.reconcile()
        world.controllers()
    assert (world.serving(), world.reason("Stalled")) == (replicas_, "PermissionDenied")


@pytest.mark.parametrize("judgement", [PASSED, FAILED])
def test_what_serves_is_scaled_and_repaired_while_the_end_of_a_trial_cannot_be_recorded(judgement: Judgement) -> None:
    world = on_trial()
    tried = candidate(world)
    world.refuses["ControllerRevision"] = Refusal(403, "forbidden: User cannot patch resource")
    world.judgement = judgement
    world.edit(lambda spec: spec.update(replicas=5))
    [stable] = [name for name in replicas(world) if name != tried]
    for _ in range(8):
        world.reconcile()
        world.controllers()
    assert replicas(world) == {stable: 4, tried: 1}
    del world.children["Deployment", stable]
    for _ in range(8):
        world.reconcile()
        world.controllers()
    assert replicas(world) == {stable: 4, tried: 1}
    assert (world.serving(), world.reason("Stalled")) == (5, "PermissionDenied")
    world.refuses.clear()
    world.settle()
    assert replicas(world) == {(tried if judgement is PASSED else stable): 5}


def test_a_plan_that_reports_a_refusal_writes_nothing_but_the_status() -> None:
    world = settled(replicas=2)
    world.edit(set_drafter(COMMIT))
    refusals: dict[Part, Blocker] = {Part.ROLLOUT: Blocker(Reason.WRITES_FAIL, "failed calling webhook")}
    world.refusals = refusals
    plan: Any = world.plan()
    assert [type(step).__name__ for step in plan.steps] == ["Event"]
    assert plan.status["observedGeneration"] == 2

"""Writes of roles are refused for long: what the spec or a human asks for is kept up all the same, and stored once it can be."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.api import names
from tests.support.planning_world import Refusal, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, spec
from tests.unit.planning.test_rollouts import annotate

DENIED = Refusal(400, "admission webhook denied the request: no")
TWO_NODES = {"tensor": 16, "nodes": 2}


def rounds(world: World, count: int = 8) -> None:
    for _ in range(count):
        world.reconcile()
        world.controllers()
        world.advance(25)


def stored(world: World) -> list[dict[str, Any]]:
    """Our ControllerRevisions, without the copies that StatefulSets make."""
    return [item for item in world.of_kind("ControllerRevision") if "inputs" in item["data"]]


def states(world: World) -> dict[int, str]:
    return {item["revision"]: item["metadata"]["annotations"][names.ANNOTATION_STATE] for item in stored(world)}


def wanted(world: World) -> dict[str, int]:
    """The replicas of each workload, by the number of its revision."""
    records = {item["metadata"]["name"]: item for item in stored(world)}
    workloads = [*world.of_kind("Deployment"), *world.of_kind("LeaderWorkerSet")]
    return {str(records[item["metadata"]["name"]]["revision"]): item["spec"]["replicas"] for item in workloads}


def halfway(**more: Any) -> World:
    """Revision 2 replaces revision 1, and both have replicas."""
    world = World(spec(replicas=4, tuning={"mode": "Off"}, **more))
    world.kinds = frozenset({"LeaderWorkerSet"})
    world.settle()
    world.edit(set_drafter(COMMIT))
    for _ in range(40):
        world.reconcile()
        world.controllers()
        if list(states(world).values()).count("Stable") == 2 and wanted(world)["2"] > 1:
            break
    assert min(wanted(world).values()) > 0
    return world


def no_drafter(spec: dict[str, Any]) -> None:
    spec.pop("drafter")


def test_a_first_revision_that_is_asked_for_again_serves_while_its_role_cannot_be_written() -> None:
    world = World(spec(replicas=2, tuning={"mode": "Off"}))
    world.reconcile()
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    assert states(world) == {1: "Superseded", 2: "Candidate"}
    world.refuses["ControllerRevision"] = DENIED
    world.edit(no_drafter)
    rounds(world)
    assert (wanted(world), world.serving(), states(world)) == ({"1": 2}, 2, {1: "Superseded", 2: "Candidate"})
    assert (world.reason("Stalled"), world.condition("Available")) == ("AdmissionDenied", "True")
    world.refuses.clear()
    world.settle()
    assert (world.serving(), world.condition("Ready")) == (2, "True")
    assert sorted(states(world).values()) == ["Stable", "Superseded"]


def test_going_back_and_scaling_up_fills_what_is_asked_for_while_its_role_cannot_be_written() -> None:
    world = halfway()
    world.refuses["ControllerRevision"] = DENIED
    world.edit(lambda spec: (no_drafter(spec), spec.update(replicas=6))[0])
    before = wanted(world)["2"]
    rounds(world)
    assert wanted(world) == {"1": 6 - before, "2": before}, "what is being left neither grows nor shrinks"
    assert (world.serving(), world.reason("Stalled")) == (6, "AdmissionDenied")
    world.refuses.clear()
    world.settle()
    assert (world.serving(), world.condition("Ready"), max(states(world))) == (6, "True", 3)
    assert states(world)[3] == "Stable"


def test_an_abort_is_obeyed_while_it_cannot_be_written() -> None:
    world = halfway()
    status = world.deployment["status"]
    world.refuses["ControllerRevision"] = DENIED
    annotate(world, names.ANNOTATION_ABORT, status["stableRevision"])
    rounds(world, 12)
    assert (wanted(world), world.serving()) == ({"1": 4, "2": 0}, 4)
    assert (states(world), world.reason("Stalled")) == ({1: "Stable", 2: "Stable"}, "AdmissionDenied")
    world.refuses.clear()
    world.settle()
    assert (states(world), world.serving(), world.reason("Stalled")) == ({1: "Stable", 2: "Failed"}, 4, "Aborted")


def test_going_back_waits_while_the_cluster_does_not_serve_the_workloads() -> None:
    world = halfway(parallelism=TWO_NODES)
    before, world.kinds = dict(wanted(world)), frozenset()
    world.edit(no_drafter)
    for _ in range(3):
        world.reconcile()
        assert (states(world), wanted(world)) == ({1: "Stable", 2: "Stable"}, before)
        assert world.reason("Stalled") == "LeaderWorkerSetMissing"
    world.kinds = frozenset({"LeaderWorkerSet"})
    world.settle()
    assert (states(world), world.condition("Ready")) == ({2: "Retired", 3: "Stable"}, "True")


@pytest.mark.parametrize("parallelism", [{"tensor": 8}, TWO_NODES], ids=["one node", "two nodes"])
def test_a_lost_record_that_comes_back_with_an_older_number_is_active_again_with_the_next_plan(parallelism: dict[str, int]) -> None:
    world = halfway(parallelism=parallelism)
    for kind in ("Deployment", "LeaderWorkerSet"):
        world.refuses[kind] = DENIED
    world.edit(no_drafter)
    world.reconcile()
    assert states(world) == {2: "Stable", 3: "Stable"}
    (name,) = [item["metadata"]["name"] for item in stored(world) if item["revision"] == 3]
    del world.children["ControllerRevision", name]
    world.reconcile()
    assert states(world) == {1: "Stable", 2: "Stable"}, "its workload still has the number of before"
    world.reconcile()
    assert states(world) == {2: "Stable", 3: "Stable"}
    assert world.deployment["status"]["stableRevision"] == name

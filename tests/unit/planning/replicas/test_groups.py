"""Replicas over several nodes: a group counts as one, serves as a whole, and goes by its index."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.planning.replicas.count import pools
from dflash_controller.planning.replicas.next_replicas import Budget, Pool, next_replicas
from tests.support.planning_world import World

COMMIT = "a" * 40


def spec(**more: Any) -> dict[str, Any]:
    return {"target": {"model": "Qwen/Qwen3.5-9B"}, **more}


def grouped(**more: Any) -> World:
    """A settled deployment whose replicas are groups of two nodes."""
    world = World(spec(parallelism={"tensor": 16, "nodes": 2}, **more))
    world.kinds = frozenset({"LeaderWorkerSet"})
    world.settle()
    return world


def stable(world: World) -> str:
    return str(world.deployment["status"]["stableRevision"])


def pool(world: World, name: str) -> Pool:
    return next(found for found in pools(world.snapshot()) if found.revision == name.rpartition("-")[2])


def whole(world: World) -> list[tuple[str, str]]:
    """Revision and index of every group whose two pods are Ready."""
    ready = [(pod["revision"], pod["group"]) for pod in world.pods.values() if pod["ready"] and not pod["terminating"]]
    return sorted({group for group in ready if ready.count(group) == 2})


def test_a_deployment_over_several_nodes_settles_beside_the_copies_that_statefulsets_make() -> None:
    world = grouped(replicas=2)
    copies = [item for item in world.of_kind("ControllerRevision") if "inputs" not in item["data"]]
    assert len(copies) == 3
    assert (world.condition("Ready"), world.deployment["status"]["serving"], len(world.pods)) == ("True", "2/2", 4)
    assert "notices" not in world.deployment["status"] or "ForeignObject" not in str(world.deployment["status"]["notices"])


def test_a_group_serves_when_all_its_pods_are_ready() -> None:
    world = grouped(replicas=2)
    world.pods[f"{stable(world)}-1-1"].update(ready=False, broken=True)
    world.reconcile()
    assert (world.deployment["status"]["serving"], world.deployment["status"]["replicas"]) == ("1/2", 2)
    assert pool(world, stable(world)).serving_indexes == {0}
    assert [pod.name for pod in world.snapshot().pods if pod.serving] == [f"{stable(world)}-0"]


def test_a_group_without_a_pod_does_not_serve() -> None:
    world = grouped(replicas=1)
    del world.pods[f"{stable(world)}-0-1"]
    assert pool(world, stable(world)).serving == 0


@pytest.mark.parametrize(("broken", "kept"), [(0, 2), (1, 1)])
def test_the_highest_group_goes_whatever_its_health(broken: int, kept: int) -> None:
    """One whole group must serve. It is the highest, and then nothing may go; or it is not, and then the broken one goes."""
    world = grouped(replicas=2)
    world.pods[f"{stable(world)}-{broken}-1"].update(ready=False)
    old = pool(world, stable(world))
    assert next_replicas(Budget(2, 0, 1), [old], {"new": 1, old.revision: 1}) == {old.revision: kept, "new": 0}


def test_a_rollout_keeps_a_whole_group_serving() -> None:
    world = grouped(replicas=2)
    before = stable(world)
    world.pods[f"{before}-0-1"].update(ready=False, broken=True)
    world.edit(lambda spec: spec.update(drafter={"revision": COMMIT}))
    for _ in range(20):
        world.reconcile()
        world.controllers()
        assert whole(world)
    world.pods[f"{before}-0-1"].update(broken=False)
    for _ in range(60):
        world.reconcile()
        world.controllers()
        assert whole(world)
    assert (stable(world) != before, len(whole(world))) == (True, 2)


def test_a_candidate_whose_worker_is_not_ready_is_not_promoted() -> None:
    world = grouped(replicas=2, rollout={"maxSurge": 1, "maxUnavailable": 0})
    before = stable(world)
    world.edit(lambda spec: spec.update(drafter={"revision": COMMIT}))
    for _ in range(20):
        world.reconcile()
        world.controllers()
        for pod in world.pods.values():
            if pod["worker"] and pod["revision"] != before.rpartition("-")[2]:
                pod.update(ready=False)
    assert stable(world) == before
    assert len([group for group in whole(world) if group[0] == before.rpartition("-")[2]]) == 2


def test_workers_that_outlive_their_leader_count_against_the_ceiling() -> None:
    world = grouped(replicas=2)
    name = stable(world)
    # The worker is not terminating yet, then it is.
    del world.pods[f"{name}-1"]
    assert (pool(world, name).existing, pool(world, name).terminating) == (2, 0)
    world.pods[f"{name}-1-1"].update(ready=False, terminating=True)
    old = pool(world, name)
    assert (old.existing, old.terminating, old.serving) == (1, 1, 1)
    shrunk = Pool(old.revision, 1, old.existing, old.serving, old.terminating, serving_indexes=old.serving_indexes)
    assert next_replicas(Budget(2, 0, 1), [shrunk], {"new": 1, old.revision: 1})["new"] == 0


def test_pods_held_never_exceed_the_ceiling_in_a_rollout_over_several_nodes() -> None:
    world = grouped(replicas=2)
    world.edit(lambda spec: spec.update(drafter={"revision": COMMIT}))
    for _ in range(80):
        world.reconcile()
        world.controllers()
        assert len(world.pods) <= 4
    assert world.condition("Ready") == "True"


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_replica_that_is_recreated_by_itself_is_no_change_of_the_user(nodes: int, room: bool) -> None:
    world = grouped(replicas=2) if nodes == 2 else World(spec(replicas=2))
    world.settle()
    for round in range(6):
        if round in (0, 3):
            lost = next(reversed(world.pods.values()))
            lost.update(ready=False, terminating=True)
            if nodes == 2:
                world.recreate_group(lost["revision"], 1)
            world.capacity = None if room else 1
        world.reconcile()
        assert (world.condition("Reconciling"), world.reason("Reconciling")) == ("False", "Settled")
        if round in (1, 4):
            assert world.deployment["status"]["serving"] == "1/2"
        world.capacity = None if round in (2, 5) else world.capacity
        world.controllers()
    world.settle()
    assert world.deployment["status"]["serving"] == "2/2"


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_change_of_replicas_is_a_change_of_the_user_until_they_serve(nodes: int) -> None:
    world = grouped(replicas=1) if nodes == 2 else World(spec(replicas=1))
    world.settle()
    world.edit(lambda spec: spec.update(replicas=2))
    seen = []
    for _ in range(8):
        world.reconcile()
        seen.append((world.condition("Reconciling"), world.deployment["status"]["serving"]))
        world.controllers()
    assert ("True", "1/2") in seen
    assert {serving for reconciling, serving in seen if reconciling == "False"} == {"2/2"}


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_workload_that_was_deleted_without_its_pods_comes_back_with_its_replicas(nodes: int) -> None:
    world = grouped(replicas=3) if nodes == 2 else World(spec(replicas=3))
    world.settle()
    kind, name = ("LeaderWorkerSet" if nodes == 2 else "Deployment"), stable(world)
    pods = set(world.pods)
    del world.children[kind, name]
    world.reconcile()
    assert world.children[kind, name]["spec"]["replicas"] == 3
    for _ in range(5):
        world.controllers()
        world.reconcile()
        assert {pod for pod, facts in world.pods.items() if not facts["terminating"]} == pods
    assert world.condition("Ready") == "True"


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_workload_that_goes_missing_in_a_rollout_comes_back_with_what_runs(nodes: int) -> None:
    world = grouped(replicas=4) if nodes == 2 else World(spec(replicas=4))
    world.settle()
    kind, name = ("LeaderWorkerSet" if nodes == 2 else "Deployment"), stable(world)
    world.edit(lambda spec: spec.update(drafter={"revision": COMMIT}))
    while world.children[kind, name]["spec"]["replicas"] == 4:
        world.reconcile()
    world.controllers()
    world.controllers()
    del world.children[kind, name]
    world.reconcile()
    assert world.children[kind, name]["spec"]["replicas"] == 3
    world.settle(200)
    assert (stable(world) != name, world.condition("Ready")) == (True, "True")


def test_pods_that_end_do_not_count_as_wanted_by_a_missing_workload() -> None:
    world = World(spec(replicas=3))
    world.settle()
    name = stable(world)
    del world.children["Deployment", name]
    first, *_ = world.pods.values()
    first.update(terminating=True, ready=False)
    assert (pool(world, name).wanted, pool(world, name).terminating) == (2, 1)

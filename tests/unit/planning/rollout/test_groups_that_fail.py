"""Replicas over two nodes: a group that crashes comes back with new pods and no restarts, and its workers fail as its leader does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.planning_world import UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter
from tests.unit.planning.test_rollouts import candidate, phase

TWO_NODES: dict[str, Any] = {"target": {"model": "Qwen/Qwen3.5-9B"}, "parallelism": {"tensor": 16, "nodes": 2}, "tuning": {"mode": "Off"}}
CRASH = {"restarts": 1, "exit_code": 1, "container": "engine", "message": "engine: NCCL error in rank 1", "phase": "Running"}
NO_NODE = {
    "node": None,
    "scheduled_since": None,
    "phase": "Pending",
    "unschedulable": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
}


class GroupWorld(World):
    """Groups as LeaderWorkerSets make them: pods named by index, all gone and made anew when one of them restarts."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self.kinds = frozenset({"LeaderWorkerSet"})
        self.uids = itertools.count(1)
        self.stuck: frozenset[str] = frozenset()
        """Revisions whose new pods do not become Ready."""
        self.refuses_workers = False
        self.no_node_for_workers = False
        """New workers find no node."""

    def controllers(self, *, start: bool = True) -> bool:
        moved = super().controllers(start=False)
        for pod in self.pods.values():
            ready = pod["ready"] or (start and pod["node"] is not None and not pod["terminating"] and pod["revision"] not in self.stuck)
            moved |= ready != pod["ready"]
            pod["ready"] = ready
        return moved

    def _obey_groups(self, workload: dict[str, Any]) -> bool:
        status = {"observedGeneration": workload["metadata"]["generation"]}
        moved = workload.get("status") != status
        workload["status"] = status
        template, name = workload["spec"]["leaderWorkerTemplate"], workload["metadata"]["name"]
        wanted = {}
        for index in range(workload["spec"]["replicas"]):
            wanted[f"{name}-{index}"] = (template["leaderTemplate"], str(index), 0)
            if not self.refuses_workers:
                wanted[f"{name}-{index}-1"] = (template["workerTemplate"], str(index), 1)
        for pod_name, (form, group, worker) in wanted.items():
            if pod_name not in self.pods:
                moved = True
                self._start_pod(pod_name, workload, form["metadata"]["labels"], group=group, worker=worker)
                self.pods[pod_name]["uid"] = f"uid-of-pod-{next(self.uids)}"
                self.pods[pod_name]["facts"] = NO_NODE if worker and self.no_node_for_workers else {}
        for pod_name, pod in self.pods.items():
            if pod_name.startswith(f"{name}-") and pod_name not in wanted and not pod["terminating"]:
                pod["terminating"], moved = True, True
        return moved

    def group(self) -> list[dict[str, Any]]:
        """The pods of the candidate, or of the first group of the active revision."""
        status = self.deployment["status"]
        name = status.get("candidateRevision") or status.get("stableRevision")
        return [pod for key, pod in self.pods.items() if key.startswith(f"{name}-0")]

    def recreate(self) -> None:
        """The whole group goes and comes back with new pods, as after a container of it has restarted."""
        for pod in self.group():
            pod.update(terminating=True, ready=False)
        self.reconcile()
        self.controllers(start=False)
        self.reconcile()

    def crash(self, which: int) -> None:
        """One container of the group restarts."""
        self.group()[which].update(ready=False, facts=CRASH)
        self.reconcile()
        self.recreate()


def on_trial(*, stuck: bool = False) -> GroupWorld:
    world = GroupWorld(TWO_NODES | {"replicas": 2})
    world.settle()
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    if stuck:
        world.stuck = frozenset({candidate(world).removeprefix("chat-")})
    world.settle()
    assert phase(world) == ("Canary" if stuck else "Analyzing")
    return world


def message(world: World) -> str:
    return str(world.deployment["status"]["rollout"]["message"])


def reason(world: World) -> str:
    return str(world.deployment["status"]["rollout"]["reason"])


def test_a_group_that_crashes_in_a_loop_is_given_up_after_five_starts() -> None:
    world = on_trial(stuck=True)
    for start in range(5):
        assert phase(world) == "Canary", start
        world.advance(60)
        world.group()[start % 2].update(facts=CRASH)
        world.reconcile()
        if start < 4:
            world.recreate()
            assert not any(pod.get("facts") for pod in world.group()), "new pods have no restarts"
    assert (phase(world), reason(world)) == ("RollingBack", "EngineFailing")
    assert "NCCL error in rank 1" in message(world)
    world.settle()
    assert (phase(world), world.condition("RolloutHealthy")) == ("RolledBack", "False")


def test_a_group_that_is_given_up_when_its_last_pods_are_gone_is_told_with_what_they_said() -> None:
    world = on_trial(stuck=True)
    for start in range(5):
        assert phase(world) == "Canary", start
        world.advance(60)
        leader, worker = world.group()
        if start < 4:
            leader.update(facts=CRASH)
            world.reconcile()
            world.recreate()
    # The fifth exit is seen only by the new pods that follow it: the operator did not look in between.
    for pod in (leader, worker):
        pod.update(terminating=True, ready=False, facts=CRASH)
    world.reconcile()
    assert (phase(world), reason(world)) == ("RollingBack", "EngineFailing")
    assert "exited 5 times" in message(world)
    assert "NCCL error in rank 1" in message(world)


@pytest.mark.parametrize("which", [0, 1], ids=["leader", "worker"])
def test_an_exit_stays_counted_while_its_group_is_taken_away_pod_by_pod(which: int) -> None:
    """A LeaderWorkerSet deletes the leader of a group in which a container has restarted. The worker goes first, and the leader last."""
    world = on_trial(stuck=True)
    for start in range(5):
        assert phase(world) == "Canary", start
        leader, worker = world.group()
        (leader, worker)[which].update(facts=CRASH)
        world.reconcile()
        if start == 4:
            break
        leader.update(terminating=True, ready=False)
        world.reconcile()
        worker.update(terminating=True, facts={})
        world.reconcile()
        leader["facts"] = {}
        world.reconcile()
        world.controllers(start=False)
        world.reconcile()
        world.advance(60)
    assert (phase(world), reason(world)) == ("RollingBack", "EngineFailing")


def test_the_restarts_gate_sees_a_group_that_was_made_anew_after_a_crash() -> None:
    world = on_trial()
    world.reconcile()
    assert world.evidence is not None
    assert world.evidence.candidate_restarts == 0
    world.crash(1)
    world.settle()
    assert world.evidence.candidate_restarts == 1
    world.crash(0)
    world.settle()
    assert world.evidence.candidate_restarts == 2


def test_a_group_that_was_drained_or_deleted_has_not_restarted() -> None:
    world = on_trial()
    for _ in range(3):
        world.recreate()
        world.settle()
    assert world.evidence is not None
    assert world.evidence.candidate_restarts == 0


def test_restarts_of_a_group_before_it_served_do_not_count_against_it() -> None:
    world = on_trial(stuck=True)
    world.crash(0)
    world.crash(1)
    world.stuck = frozenset()
    world.settle()
    assert phase(world) == "Analyzing"
    world.reconcile()
    assert world.evidence is not None
    assert world.evidence.candidate_restarts == 0
    world.crash(0)
    world.settle()
    assert world.evidence.candidate_restarts == 1


def test_a_worker_without_a_node_is_named_and_its_group_waits_for_room() -> None:
    world = on_trial(stuck=True)
    leader, worker = world.group()
    worker["facts"] = NO_NODE | {"unschedulable_since": world.now}
    for restarts in (0, 3, 9):
        # The leader waits for the worker in vain, and is restarted for it.
        leader["facts"] = {**CRASH, "restarts": restarts}
        world.advance(3600)
        world.reconcile()
        assert (phase(world), reason(world), world.condition("Stalled")) == ("Held", "InsufficientAccelerators", "False")
        assert f"{candidate(world)}-0-1" in message(world)
    worker["facts"] = {}
    world.reconcile()
    assert phase(world) == "Canary", "restarts while a worker had no node do not count"
    leader["facts"] = {}
    world.stuck = frozenset()
    world.settle()
    assert phase(world) == "Analyzing"


def test_a_worker_that_exits_is_named() -> None:
    world = on_trial(stuck=True)
    world.group()[1]["facts"] = CRASH
    world.reconcile()
    assert reason(world) == "EngineFailing"
    assert f"kubectl logs {candidate(world)}-0-1 -c engine --previous" in message(world)


def test_workers_that_are_never_created_are_told_with_where_to_look() -> None:
    world = GroupWorld(TWO_NODES | {"replicas": 2})
    world.settle()
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    world.stuck, world.refuses_workers = frozenset({candidate(world).removeprefix("chat-")}), True
    world.settle()
    assert phase(world) == "Canary"
    for seconds in (61, 86400):
        world.advance(seconds)
        world.settle()
        assert (phase(world), reason(world), world.condition("Stalled")) == ("Held", "PodsRefused", "False")
        assert "kubectl describe statefulset" in message(world)


def revision(world: World) -> str:
    status = world.deployment["status"]
    return str(status.get("stableRevision") or status["candidateRevision"]).removeprefix("chat-")


@pytest.mark.parametrize("first", [False, True], ids=["stable", "first revision"])
def test_a_group_of_an_active_revision_that_crashes_in_a_loop_is_named(first: bool) -> None:
    world = GroupWorld(TWO_NODES | {"replicas": 2})
    if first:
        world.reconcile()
        world.stuck = frozenset({revision(world)})
    world.settle()
    world.stuck = frozenset({revision(world)})
    said = set()
    for _ in range(12):
        world.crash(1)
        world.controllers(start=False)
        world.advance(60)
        world.reconcile()
        said.add((world.condition("Stalled"), world.reason("Stalled")))
    # One of two replicas may be unavailable. The first start is not done before both serve.
    assert (world.condition("Ready"), world.reason("Ready")) == (("False", "EngineFailing") if first else ("True", "EnoughReplicas"))
    assert said == {("False", "NotStalled"), ("True", "EngineFailing")}
    assert "kubectl logs -l serving.dflash.io/revision=" in next(
        item["message"] for item in world.deployment["status"]["conditions"] if item["type"] == "Stalled"
    )
    world.stuck = frozenset()
    world.settle()
    assert (world.condition("Ready"), world.condition("Stalled")) == ("True", "False")
    world.advance(86400)
    assert world.reconcile() == 0, "a settled deployment is written to"


def test_a_group_of_an_active_revision_that_is_drained_again_and_again_is_not_called_failing() -> None:
    world = GroupWorld(TWO_NODES | {"replicas": 2})
    world.settle()
    world.stuck = frozenset({revision(world)})
    for _ in range(12):
        world.recreate()
        world.advance(60)
        world.reconcile()
        assert world.condition("Stalled") == "False"


def stalled(world: World) -> dict[str, str]:
    found = next(item for item in world.deployment["status"]["conditions"] if item["type"] == "Stalled")
    return {key: found[key] for key in ("status", "reason", "lastTransitionTime")}


@pytest.mark.parametrize("first", [False, True], ids=["stable", "first revision"])
@pytest.mark.parametrize("refused", [True, False], ids=["refused", "no node"])
def test_exits_of_a_leader_whose_workers_have_no_room_are_no_crash_loop(refused: bool, first: bool) -> None:
    """It waits for them, exits in the end, and its group is made anew. With room, exits count from the first."""
    world = GroupWorld(TWO_NODES | {"replicas": 2})
    if first:
        world.reconcile()
    else:
        world.settle()
    world.stuck, world.refuses_workers, world.no_node_for_workers = frozenset({revision(world)}), refused, not refused
    world.recreate()
    waited, begun = 0, stalled(world)["lastTransitionTime"]
    for _ in range(16):
        world.controllers(start=False)
        world.advance(61)
        world.reconcile()
        waited += len(world.group()) == (1 if refused else 2)
        if world.group():
            world.crash(0)
    never = {"status": "False", "reason": "NotStalled", "lastTransitionTime": begun}
    assert stalled(world) == never, "it was stalled in between"
    assert waited >= 8
    world.refuses_workers = world.no_node_for_workers = False
    for pod in world.pods.values():
        pod["facts"] = {}
    for _ in range(30):
        world.controllers(start=False)
        world.advance(60)
        world.reconcile()
        if len(world.group()) == 2:
            world.crash(1)
        world.reconcile()
    assert world.reason("Stalled") == "EngineFailing"


@pytest.mark.parametrize("count", [1, 4, 6, 40])
def test_groups_of_an_active_revision_that_all_crash_in_a_loop_are_named_whatever_their_number(count: int) -> None:
    world = World(TWO_NODES | {"replicas": count})
    world.kinds = frozenset({"LeaderWorkerSet"})
    world.settle()
    world.crashing.add(revision(world))
    named = []
    for _ in range(6):
        for _ in range(2):
            world.advance(20)
            world.controllers()
            world.reconcile()
        named.append(world.reason("Stalled"))
    assert named[0] == "NotStalled"
    assert named[-1] == "EngineFailing"
    (record,) = world.of_kind("ControllerRevision")[:1]
    assert sum(map(len, record["metadata"]["annotations"].values())) < 64 * 1024
    world.crashing.clear()
    world.settle()
    assert world.reason("Stalled") == "NotStalled"

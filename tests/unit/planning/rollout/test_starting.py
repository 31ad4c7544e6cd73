"""What becomes of a candidate that does not start: given up with its cause, waited for, or left to load."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.planning.revisions.revision import read
from dflash_controller.planning.state.plan import Annotate
from dflash_controller.render.startup import progress_deadline_s
from tests.support.planning_world import UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled
from tests.unit.planning.test_rollouts import candidate, phase

IMAGE = {
    "waiting_reason": "ImagePullBackOff",
    "container": "engine",
    "message": 'engine: Back-off pulling image "nope:1": ErrImagePull: not found',
}
SECRET = {"waiting_reason": "CreateContainerConfigError", "container": "engine", "message": 'engine: secret "hf-token" not found'}
MOUNT = {"waiting_reason": "ContainerCreating", "container": "engine", "mounts": ("Secret/hf-token",)}
OOM = {
    "waiting_reason": "CrashLoopBackOff",
    "container": "engine",
    "exit_code": 137,
    "exit_reason": "OOMKilled",
    "restarts": 1,
    "message": "engine: OOMKilled, exit code 137",
}
QUOTA = (
    'pods "chat-r1-abc" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, '
    "used: requests.nvidia.com/gpu=3, limited: requests.nvidia.com/gpu=3"
)


def begun(replicas: int = 3, **rollout: Any) -> World:
    """A deployment with a candidate whose one pod has just been created and is not Ready."""
    world = settled(replicas=replicas, rollout=rollout, tuning={"mode": "Off"})
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    for _ in range(6):
        world.reconcile()
        world.controllers(start=False)
    assert len(pods(world)) == 1
    return world


def revision(world: World) -> str:
    [record] = [found for item in world.of_kind("ControllerRevision") if (found := read(item)) and found.state == "Candidate"]
    return record.hash


def pods(world: World) -> list[dict[str, Any]]:
    return [pod for pod in world.pods.values() if pod["revision"] == revision(world) and not pod["terminating"]]


def turn(world: World, seconds: float = 0) -> None:
    """The operator looks, and nothing of the candidate becomes Ready by itself."""
    world.advance(seconds)
    for _ in range(3):
        world.reconcile()
        world.controllers(start=False)


def message(world: World) -> str:
    return str(world.deployment["status"]["rollout"]["message"])


def rollout(world: World) -> tuple[str, str]:
    shown = world.deployment["status"]["rollout"]
    return shown["phase"], shown["reason"]


def stored(world: World) -> dict[str, Any]:
    annotations = world.children["ControllerRevision", candidate(world)]["metadata"]["annotations"]
    found: dict[str, Any] = json.loads(annotations.get(names.ANNOTATION_TRIAL, "{}"))
    return found


@pytest.mark.parametrize(
    ("trouble", "reason", "words", "look"),
    [
        (IMAGE, "ImageUnavailable", "not found", "kubectl describe pod"),
        (SECRET, "ConfigMissing", "hf-token", "kubectl describe pod"),
    ],
    ids=["image", "secret"],
)
def test_a_container_that_cannot_be_created_is_named_at_once_and_given_up_after_three_minutes(
    trouble: dict[str, Any], reason: str, words: str, look: str
) -> None:
    world = begun()
    world.troubles[revision(world)] = trouble
    turn(world)
    assert rollout(world) == ("Canary", reason)
    assert words in message(world)
    assert look in message(world)
    assert "kubectl logs" not in message(world)
    turn(world, 179)
    assert phase(world) == "Canary"
    turn(world, 2)
    assert phase(world) in ("RollingBack", "RolledBack")
    world.settle()
    assert (rollout(world), world.serving()) == (("RolledBack", reason), 3)
    assert words in message(world)


def test_volumes_that_are_not_mounted_are_named_with_what_the_pod_mounts() -> None:
    world = begun()
    world.troubles[revision(world)] = MOUNT
    turn(world, 60)
    assert rollout(world) == ("Canary", "Starting")
    turn(world, 61)
    assert rollout(world) == ("Canary", "ContainerNotCreated")
    assert "Secret/hf-token" in message(world)
    turn(world, 181)
    world.settle()
    assert rollout(world) == ("RolledBack", "ContainerNotCreated")


def test_the_clock_of_a_start_survives_operator_and_status_and_begins_anew_when_the_trouble_was_away() -> None:
    world = begun()
    world.troubles[revision(world)] = IMAGE
    turn(world)
    turn(world, 100)
    del world.deployment["status"]
    world.troubles[revision(world)] = {}
    turn(world)
    world.troubles[revision(world)] = IMAGE
    turn(world)
    turn(world, 100)
    assert phase(world) == "Canary"
    del world.deployment["status"]
    turn(world, 81)
    world.settle()
    assert rollout(world) == ("RolledBack", "ImageUnavailable")


def test_a_clock_in_the_future_begins_anew() -> None:
    world = begun()
    world.troubles[revision(world)] = IMAGE
    turn(world)
    annotations = world.children["ControllerRevision", candidate(world)]["metadata"]["annotations"]
    annotations[names.ANNOTATION_TRIAL] = '{"cannotStartSince":"2099-01-01T00:00:00Z","loadingSince":"2099-01-01T00:00:00Z"}'
    turn(world)
    now = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert (stored(world)["cannotStartSince"], stored(world)["loadingSince"]) == (now, now)
    turn(world, 179)
    assert phase(world) == "Canary"
    turn(world, 2)
    world.settle()
    assert phase(world) == "RolledBack"


def test_the_plan_asks_to_be_looked_at_when_the_clock_runs_out() -> None:
    world = begun()
    world.troubles[revision(world)] = IMAGE
    turn(world)
    world.advance(150)
    assert world.plan().requeue_after_s == 30.0


def test_a_trial_is_written_at_transitions_only() -> None:
    world = begun()
    world.troubles[revision(world)] = IMAGE
    turn(world)
    written = 0
    for _ in range(20):
        world.advance(8)
        written += sum(isinstance(step, Annotate) for step in world.plan().steps)
        world.reconcile()
    assert written == 0


def test_an_engine_that_exits_five_times_is_given_up_and_the_cause_is_named() -> None:
    world = begun()
    for restarts in range(1, 6):
        assert phase(world) == "Canary"
        world.troubles[revision(world)] = OOM | {"restarts": restarts}
        turn(world, 30)
        if restarts < 5:
            # The kubelet starts it again, and it loads for a while.
            world.troubles[revision(world)] = OOM | {"restarts": restarts, "waiting_reason": None}
            turn(world, 200)
    world.settle()
    assert rollout(world) == ("RolledBack", "EngineFailing")
    assert "OOMKilled" in message(world)
    assert "resources" in message(world)


def test_one_exit_is_forgiven_and_the_engine_may_load_for_as_long_as_its_budget_says() -> None:
    world = begun()
    world.troubles[revision(world)] = OOM | {"waiting_reason": None}
    [record] = [found for item in world.of_kind("ControllerRevision") if (found := read(item)) and found.state == "Candidate"]
    turn(world)
    turn(world, progress_deadline_s(record.resolved) - 1)
    assert rollout(world) == ("Canary", "EngineFailing")
    turn(world, 1)
    world.settle()
    assert rollout(world) == ("RolledBack", "EngineFailing")
    assert "start-up budget" in message(world)


def test_the_progress_deadline_of_a_deployment_is_no_verdict() -> None:
    world = begun()
    world.overdue = frozenset({revision(world)})
    turn(world, 60)
    assert rollout(world) == ("Canary", "Starting")


@pytest.mark.parametrize("maximum", [{"maxSurge": 1, "maxUnavailable": 0}, {"maxSurge": 0, "maxUnavailable": 1}])
@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ({"unschedulable": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."}, "InsufficientAccelerators"),
        ({"unschedulable": "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector."}, "Unschedulable"),
        ({"unschedulable": "scheduling gates kueue.x-k8s.io/admission", "gated": True}, "SchedulingGated"),
    ],
)
def test_a_pod_without_room_is_held_with_its_cause_and_goes_on_by_itself(
    trouble: dict[str, Any], reason: str, maximum: dict[str, int]
) -> None:
    world = begun(**maximum)
    world.troubles[revision(world)] = {"node": None, "scheduled_since": None, "unschedulable_since": world.now} | trouble
    for days in (0, 1, 7):
        turn(world, days * 86400)
        assert rollout(world) == ("Held", reason)
        assert (world.condition("Stalled"), world.condition("Available")) == ("False", "True")
        assert len(pods(world)) == 1, "a queue or an autoscaler must see the pod"
    world.troubles.clear()
    world.settle()
    assert phase(world) == "Analyzing"


@pytest.mark.parametrize(
    "refused",
    [
        QUOTA,
        'admission webhook "pods.example.com" denied the request: no more than 3 GPUs before noon',
        'Internal error occurred: failed calling webhook "pods.example.com": failed to call webhook: connect: connection refused',
        'pods "chat-r1-abc" is forbidden: error looking up service account models/chat: serviceaccount "chat" not found',
    ],
    ids=["quota", "webhook denies", "webhook down", "service account"],
)
def test_pods_that_are_refused_for_now_are_waited_for(refused: str) -> None:
    world = settled(replicas=3, tuning={"mode": "Off"})
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    world.refused[revision(world)] = refused
    turn(world)
    for days in (0, 1, 7):
        turn(world, days * 86400)
        assert rollout(world) == ("Held", "PodsRefused")
        assert world.condition("Stalled") == "False"
    world.refused.clear()
    world.settle()
    assert phase(world) == "Analyzing"


@pytest.mark.parametrize(
    "refused",
    [
        'pods "chat-r1-abc" is forbidden: no PriorityClass with name nope was found',
        'pods "chat-r1-abc" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
        'Pod "chat-r1-abc" is invalid: spec.containers[0].resources.requests: Invalid value',
    ],
)
def test_pods_that_are_refused_for_what_they_are_are_given_up_after_three_minutes(refused: str) -> None:
    world = settled(replicas=3)
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    world.refused[revision(world)] = refused
    turn(world)
    turn(world)
    assert rollout(world) == ("Canary", "PodsRefused")
    turn(world, 181)
    world.settle()
    assert (rollout(world), world.serving()) == (("RolledBack", "PodsRefused"), 3)


def test_a_surge_that_a_quota_refuses_for_five_minutes_takes_the_place_of_a_replica() -> None:
    world = settled(replicas=3, rollout={"maxSurge": 1, "maxUnavailable": 1}, tuning={"mode": "Off"})
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    world.refused[revision(world)] = QUOTA
    turn(world)
    turn(world, 299)
    assert rollout(world) == ("Canary", "PodsRefused")
    turn(world, 2)
    world.refused.clear()
    world.settle()
    assert (phase(world), world.serving(), len(world.pods)) == ("Analyzing", 3, 3)


def test_time_without_room_does_not_count_as_loading() -> None:
    world = begun()
    [record] = [found for item in world.of_kind("ControllerRevision") if (found := read(item)) and found.state == "Candidate"]
    budget_s = progress_deadline_s(record.resolved)
    turn(world)
    turn(world, budget_s - 60)
    world.troubles[revision(world)] = {
        "node": None,
        "scheduled_since": None,
        "unschedulable": "preempted",
        "unschedulable_since": world.now,
    }
    turn(world, 86400)
    assert phase(world) == "Held"
    world.troubles.clear()
    turn(world)
    turn(world, budget_s - 1)
    assert phase(world) == "Canary"
    turn(world, 2)
    world.settle()
    assert phase(world) == "RolledBack"


def test_an_old_pod_that_still_ends_is_no_lack_of_room() -> None:
    world = begun(maxSurge=0, maxUnavailable=1)
    world.troubles[revision(world)] = {"node": None, "unschedulable": "Insufficient nvidia.com/gpu", "unschedulable_since": world.now}
    next(pod for pod in world.pods.values() if pod["revision"] != revision(world)).update(terminating=True, hangs=True)
    turn(world)
    assert rollout(world) == ("Canary", "InsufficientAccelerators")


def test_without_automatic_rollback_a_candidate_that_cannot_start_waits_for_a_human() -> None:
    world = begun(automaticRollback=False)
    world.troubles[revision(world)] = IMAGE
    turn(world)
    turn(world, 181)
    assert (rollout(world), world.condition("Stalled")) == (("Held", "ImageUnavailable"), "True")

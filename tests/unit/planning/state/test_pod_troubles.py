"""Every trouble in the documentation's table, as the kubelet, the scheduler and the API server tell it, through projection and planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dflash_controller.api.conditions import Reason
from dflash_controller.model.fetch_report import EXIT_CODES, FetchReason, FetchReport
from dflash_controller.planning.state import pod_trouble_cases as cases
from dflash_controller.planning.state.pod_trouble_cases import CASES, Case, Kind
from dflash_controller.planning.state.prefetch_progress import REASONS
from tests.support.planning_world import World
from tests.unit.planning.rollout.test_groups_that_fail import TWO_NODES, GroupWorld
from tests.unit.planning.rollout.test_starting import UNDECIDED, begun, pods, revision, rollout, turn
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled
from tests.unit.planning.test_rollouts import candidate, phase

START = "2026-01-01T00:00:00Z"
"""When the world of these tests begins."""
SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": START}
SET_UP = {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": START}
NOT_READY = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": START}
IMAGE = "registry.example.com/sglang:v0.5.99"
PULL = (
    f'failed to pull and unpack image "{IMAGE}": failed to resolve reference "{IMAGE}": unexpected status from HEAD request to '
    "https://registry.example.com/v2/sglang/manifests/v0.5.99: 404 Not Found"
)


def status(*conditions: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"phase": "Pending", "conditions": [*conditions, NOT_READY], **more}


def container(state: Mapping[str, Any], restarts: int = 0, name: str = "engine", **more: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "restartCount": restarts, "image": IMAGE, "state": state, **more}


def on_node(*containers: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"spec": {"nodeName": "b200-0"}, "status": status(SCHEDULED, SET_UP, containerStatuses=list(containers), **more)}


def waits(reason: str, message: str, restarts: int = 0, **more: Any) -> dict[str, Any]:
    return on_node(container({"waiting": {"reason": reason, "message": message}}, restarts, **more))


def crashes(exit: Mapping[str, Any], restarts: int = 5) -> dict[str, Any]:
    message = "back-off 2m40s restarting failed container=engine pod=chat-r1-7d4b9c-x2x9z_models(0b0e1c6e-6a0f-4d8e-9d6c-1f2f3a4b5c6d)"
    last = {"terminated": {"startedAt": START, "finishedAt": START, "containerID": "containerd://0a", **exit}}
    return waits("CrashLoopBackOff", message, restarts, lastState=last)


def sidecar(reason: str, message: str) -> dict[str, Any]:
    """A pod whose engine runs beside a container that a webhook added, which has exited more often than an engine may."""
    last = {"terminated": {"exitCode": 255, "reason": "Error", "finishedAt": START}}
    other = container({"waiting": {"reason": reason, "message": message}}, 9, name="istio-proxy", lastState=last)
    return on_node(container({"running": {"startedAt": START}}), other, phase="Running")


def unscheduled(reason: str, message: str, **spec: Any) -> dict[str, Any]:
    since = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message, "lastTransitionTime": START}
    return {"spec": spec, "status": {"phase": "Pending", "conditions": [since]}}


def failed(reason: str | None, message: str) -> dict[str, Any]:
    found = {"phase": "Failed", "message": message, "startTime": START, **({"reason": reason} if reason else {})}
    return {"spec": {"nodeName": "b200-0"}, "status": found}


TOKEN_VOLUME = {"name": "hf-token", "secret": {"secretName": "hf-token", "defaultMode": 288}}
CLAIM_VOLUME = {"name": "weights", "persistentVolumeClaim": {"claimName": "models"}}
ROOT_CA = {"name": "kube-api-access", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}}
NOT_SET_UP = {
    "spec": {"nodeName": "b200-0", "volumes": [TOKEN_VOLUME, CLAIM_VOLUME, ROOT_CA]},
    "status": status(SCHEDULED, SET_UP | {"status": "False"}, containerStatuses=[container({"waiting": {"reason": "ContainerCreating"}})]),
}
RUNS_AGAIN = on_node(
    container({"running": {"startedAt": START}}, 1, lastState={"terminated": {"exitCode": 1, "reason": "Error", "message": "CUDA error"}}),
    phase="Running",
)


def fetch_fails(reason: FetchReason, message: str) -> dict[str, Any]:
    """A pod whose init container has ended with a report, and waits to be started again."""
    last = {"terminated": {"exitCode": EXIT_CODES[reason], "reason": "Error", "finishedAt": START}}
    last["terminated"]["message"] = FetchReport(reason, message).to_json()
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container=dflash-fetch"}}
    engine = container({"waiting": {"reason": "PodInitializing"}})
    restarts = 1 if reason is FetchReason.HUB_UNREACHABLE else 5
    return on_node(engine, initContainerStatuses=[container(waiting, restarts, name="dflash-fetch", lastState=last)])


FORBIDDEN = 'pods "chat-r1-7d4b9c-x2x9z" is forbidden: '

PODS: list[tuple[str, Case, dict[str, Any], tuple[str, ...]]] = [
    ("no such image", cases.IMAGE, waits("ErrImagePull", PULL), ("404 Not Found", "kubectl describe pod")),
    *(
        (
            f"weights: {reason}",
            cases.FETCH_FAILS[REASONS.get(reason, Reason.PREFETCH_FAILED)],
            fetch_fails(reason, f"words of {reason}"),
            (f"words of {reason}", "weights cannot be fetched", "kubectl logs", "-c dflash-fetch"),
        )
        for reason in FetchReason
        if reason not in (FetchReason.FETCHED, FetchReason.INTERRUPTED)
    ),
    (
        "back-off of the pull",
        cases.IMAGE,
        waits("ImagePullBackOff", f'Back-off pulling image "{IMAGE}": ErrImagePull: {PULL}'),
        ("404 Not Found",),
    ),
    (
        "image name",
        cases.IMAGE,
        waits("InvalidImageName", 'Failed to apply default image tag "Nope": couldn\'t parse image name "Nope": invalid reference format'),
        ("invalid reference format",),
    ),
    (
        "image never pulled",
        cases.IMAGE,
        waits("ErrImageNeverPull", f'Container image "{IMAGE}" is not present with pull policy of Never'),
        ("Never",),
    ),
    (
        "registry down",
        cases.IMAGE,
        waits("RegistryUnavailable", f"image pull failed for {IMAGE} because the registry is unavailable: dial tcp: i/o timeout"),
        ("registry is unavailable",),
    ),
    ("secret", cases.CONFIG, waits("CreateContainerConfigError", 'secret "hf-token" not found'), ('secret "hf-token"', "describe pod")),
    ("key", cases.CONFIG, waits("CreateContainerConfigError", "couldn't find key token in Secret models/hf-token"), ("key token",)),
    ("config map", cases.CONFIG, waits("CreateContainerConfigError", 'configmap "engine-env" not found'), ("engine-env",)),
    (
        "root image",
        cases.NOT_CREATED,
        waits("CreateContainerConfigError", "container has runAsNonRoot and image will run as root (pod: x, container: engine)"),
        ("runAsNonRoot",),
    ),
    (
        "container not created",
        cases.NOT_CREATED,
        waits("CreateContainerError", "failed to generate container spec: failed to inject CDI devices: unresolvable nvidia.com/gpu=0"),
        ("CDI devices",),
    ),
    (
        "container not started",
        cases.NOT_STARTED,
        waits("RunContainerError", 'failed to start containerd task: exec: "python3": executable file not found in $PATH', 2),
        ("executable file", "describe pod"),
    ),
    (
        "never ran",
        cases.NOT_STARTED,
        crashes({"exitCode": 128, "reason": "StartError", "message": "failed to create containerd task: exec failed"}),
        ("containerd task", "describe pod"),
    ),
    ("volumes", cases.NOT_SET_UP, NOT_SET_UP, ("Secret/hf-token", "PersistentVolumeClaim/models", "describe pod")),
    (
        "exits",
        cases.EXITS,
        crashes({"exitCode": 2, "reason": "Error", "message": "[2026-01-01 00:00:00] error: unrecognized arguments: --x=1\n"}),
        ("unrecognized arguments: --x=1", "kubectl logs", "-c engine --previous"),
    ),
    ("exits with 0", cases.EXITS, crashes({"exitCode": 0, "reason": "Completed"}), ("Completed, exit code 0",)),
    (
        "an init container that a webhook added exits",
        cases.OTHER_EXITS,
        {
            "spec": {"nodeName": "b200-0"},
            "status": status(
                SCHEDULED,
                SET_UP,
                initContainerStatuses=[
                    container(
                        {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}},
                        5,
                        name="weights",
                        lastState={"terminated": {"exitCode": 1, "reason": "Error", "message": "401 Client Error: Unauthorized"}},
                    )
                ],
                containerStatuses=[container({"waiting": {"reason": "PodInitializing"}})],
            ),
        },
        ("401 Client Error", "-c weights --previous"),
    ),
    ("a sidecar exits", cases.OTHER_EXITS, sidecar("CrashLoopBackOff", "back-off 10s"), ("exit code 255", "-c istio-proxy --previous")),
    ("no image of a sidecar", cases.OTHER_WAITS, sidecar("ErrImagePull", PULL), ("404 Not Found", "istio-proxy", "kubectl describe pod")),
    ("out of memory", cases.OUT_OF_MEMORY, crashes({"exitCode": 137, "reason": "OOMKilled"}), ("spec.podTemplate.resources",)),
    ("a probe", cases.KILLED, crashes({"exitCode": 137, "reason": "Error"}), ("a probe failed", "kubectl describe pod", "kubectl logs")),
    ("runs again", cases.RUNS_AGAIN, RUNS_AGAIN, ("CUDA error",)),
    (
        "no GPU",
        cases.NO_ACCELERATORS,
        unscheduled(
            "Unschedulable",
            "0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 Insufficient nvidia.com/gpu. no new claims to deallocate, "
            "preemption: 0/4 nodes are available: 4 No preemption victims found for incoming pod.",
        ),
        ("Insufficient nvidia.com/gpu",),
    ),
    (
        "no memory",
        cases.UNSCHEDULABLE,
        unscheduled("Unschedulable", "0/4 nodes are available: 4 Insufficient memory. preemption: 0/4 nodes are available: 4 No victims."),
        ("Insufficient memory",),
    ),
    (
        "constraints",
        cases.UNSCHEDULABLE,
        unscheduled(
            "Unschedulable",
            "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector. preemption: 0/4 nodes are available.",
        ),
        (
            "node affinity/selector. It asks for nodes with nvidia.com/gpu.product=NVIDIA-B200: compare",
            "kubectl get nodes -L nvidia.com/gpu.product",
        ),
    ),
    (
        "an unbound claim",
        cases.UNSCHEDULABLE,
        unscheduled("Unschedulable", "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"),
        ("unbound immediate",),
    ),
    (
        "no such claim",
        cases.NO_CLAIM,
        unscheduled("Unschedulable", '0/4 nodes are available: persistentvolumeclaim "models" not found. preemption: 0/4 nodes.'),
        ('persistentvolumeclaim "models" not found',),
    ),
    (
        "Kueue",
        cases.GATED,
        unscheduled(
            "SchedulingGated",
            "Scheduling is blocked due to non-empty scheduling gates",
            schedulingGates=[{"name": "kueue.x-k8s.io/topology"}, {"name": "kueue.x-k8s.io/admission"}],
        ),
        ("kueue.x-k8s.io/admission, kueue.x-k8s.io/topology",),
    ),
    (
        "evicted",
        cases.EVICTED,
        failed("Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi, available: 11Mi. "),
        ("low on resource: memory", "kubectl describe node b200-0"),
    ),
    ("node shut down", cases.EVICTED, failed("Terminated", "Pod was terminated in response to imminent node shutdown."), ("shutdown",)),
    (
        "device gone",
        cases.NODE_REFUSES,
        failed(
            "UnexpectedAdmissionError",
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 8",
        ),
        ("devices unavailable",),
    ),
    (
        "device taken",
        cases.NODE_REFUSES,
        failed("OutOfnvidia.com/gpu", "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu"),
        ("enough resource",),
    ),
    ("deadline", cases.ENDED, failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"), ("deadline",)),
]
REFUSALS: list[tuple[str, Case, str, tuple[str, ...]]] = [
    (
        "quota",
        cases.QUOTA,
        FORBIDDEN + "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=16, "
        "limited: requests.nvidia.com/gpu=16",
        ("exceeded quota: gpus", "requests.nvidia.com/gpu=8", "kubectl describe quota"),
    ),
    (
        "limits required",
        cases.QUOTA,
        FORBIDDEN + "failed quota: compute: must specify limits.cpu for: engine",
        ("must specify limits.cpu",),
    ),
    ("webhook denies", cases.DENIED, 'admission webhook "gpu.example.com" denied the request: not before noon', ("not before noon",)),
    (
        "policy denies",
        cases.DENIED,
        FORBIDDEN + "ValidatingAdmissionPolicy 'gpu' with binding 'all' denied request: no label team",
        ("no label team",),
    ),
    (
        "webhook down",
        cases.NO_ANSWER,
        'Internal error occurred: failed calling webhook "gpu.example.com": failed to call webhook: Post '
        '"https://gpu.hooks.svc:443/pods?timeout=10s": dial tcp 10.96.0.9:443: connect: connection refused',
        ("gpu.example.com", "kubectl describe replicaset"),
    ),
    (
        "API server slow",
        cases.NO_ANSWER,
        "Timeout: request did not complete within requested timeout - context deadline exceeded",
        ("Timeout",),
    ),
    (
        "account",
        cases.NO_ACCOUNT,
        FORBIDDEN + 'error looking up service account models/chat: serviceaccount "chat" not found',
        ("models/chat",),
    ),
    ("priority", cases.FORBIDDEN, FORBIDDEN + "no PriorityClass with name nope was found", ("no PriorityClass with name nope",)),
    ("runtime class", cases.FORBIDDEN, FORBIDDEN + 'pod rejected: RuntimeClass "nvidia" not found', ('RuntimeClass "nvidia"',)),
    (
        "pod security",
        cases.FORBIDDEN,
        FORBIDDEN + 'violates PodSecurity "restricted:latest": hostPath volumes (volume "weights")',
        ("violates PodSecurity",),
    ),
    (
        "invalid",
        cases.FORBIDDEN,
        'Pod "chat-r1-7d4b9c-x2x9z" is invalid: spec.containers[0].env[0].name: Invalid value: "1="',
        ("spec.containers[0].env[0].name",),
    ),
]


def message(world: World) -> str:
    return str(world.deployment["status"]["rollout"]["message"])


def ends(world: World, case: Case) -> None:
    """What the table says of the kind comes to pass."""
    match case.kind:
        case Kind.CANNOT_START:
            turn(world, 181)
            world.settle()
            assert rollout(world) == ("RolledBack", case.reason)
            assert world.serving() == 3
        case Kind.NO_ROOM:
            for _ in range(7):
                turn(world, 86400)
                assert rollout(world) in (("Held", case.reason), ("Canary", case.reason))
                assert (world.condition("Stalled"), world.condition("Available")) == ("False", "True")
            world.raw.clear()
            world.refused.clear()
            world.settle()
            assert phase(world) == "Analyzing"
        case Kind.LOADS:
            turn(world, 600)
            assert rollout(world) == ("Canary", case.reason)


@pytest.mark.parametrize(("case", "pod", "words"), [row[1:] for row in PODS], ids=[row[0] for row in PODS])
def test_a_pod_in_trouble_is_told_with_its_cause_and_where_to_look(case: Case, pod: dict[str, Any], words: tuple[str, ...]) -> None:
    world = begun()
    world.raw[revision(world)] = pod
    turn(world, 121 if case is cases.NOT_SET_UP else 0)
    shown = message(world)
    assert [word for word in words if word not in shown] == []
    if world.snapshot().pods[-1].restarts >= 5:
        world.settle()
        assert rollout(world) == ("RolledBack", case.reason)
        return
    assert world.deployment["status"]["rollout"]["reason"] == case.reason
    world.advance(1)
    world.reconcile()
    assert message(world) == shown
    ends(world, case)


@pytest.mark.parametrize(("case", "refused", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_a_refused_pod_is_told_with_its_cause_and_where_to_look(case: Case, refused: str, words: tuple[str, ...]) -> None:
    world = settled(replicas=3, tuning={"mode": "Off"})
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    world.refused[revision(world)] = refused
    turn(world)
    turn(world)
    assert world.deployment["status"]["rollout"]["reason"] == case.reason
    assert [word for word in words if word not in message(world)] == []
    assert "x2x9z" not in message(world), "the name of a pod that never was"
    ends(world, case)


def test_a_group_whose_pods_are_never_made_is_told() -> None:
    world = GroupWorld(TWO_NODES | {"replicas": 2})
    world.settle()
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    world.stuck, world.refuses_workers = frozenset({candidate(world).removeprefix("chat-")}), True
    world.settle()
    world.advance(61)
    world.settle()
    assert rollout(world) == ("Held", cases.NO_PODS.reason)


def test_every_row_of_the_table_has_a_pod() -> None:
    told = {case.seen for _, case, _, _ in (*PODS, *REFUSALS)}
    assert {case.seen for case in CASES} - told == {cases.NO_PODS.seen, cases.GROUPS_EXIT.seen}


def test_an_evicted_pod_whose_successor_serves_is_no_trouble_any_more() -> None:
    world = settled(replicas=2)
    [name, *_] = world.pods
    world.pods["chat-old"] = {**world.pods[name], "ready": False, "facts": {"phase": "Failed", "reason": "Evicted"}}
    world.advance(86400)
    world.reconcile()
    assert (world.condition("Ready"), world.condition("RolloutHealthy")) == ("True", "True")


def test_the_trouble_of_a_stable_revision_is_named_and_stalls_once_waiting_does_not_help() -> None:
    world = settled(replicas=2)
    world.raw[pods_of_stable(world)] = waits("ErrImagePull", PULL)
    for pod in world.pods.values():
        pod["ready"] = False
    world.advance(179)
    world.reconcile()
    assert (world.condition("Ready"), world.reason("Ready"), world.condition("Stalled")) == ("False", "ImageUnavailable", "False")
    world.advance(1)
    world.reconcile()
    assert (world.condition("Stalled"), world.reason("Stalled")) == ("True", "ImageUnavailable")


def pods_of_stable(world: World) -> str:
    return str(world.deployment["status"]["stableRevision"]).removeprefix("chat-")


def test_the_numbers_of_a_message_do_not_change_while_the_trouble_lasts() -> None:
    world = begun()
    said = set()
    for nodes in (3, 4, 90):
        text = f"0/{nodes + 1} nodes are available: 1 node(s) had untolerated taint(s), {nodes} Insufficient nvidia.com/gpu."
        world.raw[revision(world)] = unscheduled("Unschedulable", text)
        turn(world)
        said.add(message(world))
    assert len(said) == 1
    said.clear()
    for restarts in (1, 2, 3):
        words = f"2026-01-01 00:0{restarts}:00,123 pid {restarts} CUDA out of memory at 0x7f{restarts}00000000"
        world.raw[revision(world)] = crashes({"exitCode": 1, "reason": "Error", "message": words}, restarts)
        turn(world)
        said.add(message(world))
    assert len(said) == 1
    assert len(pods(world)) == 1

"""Lists every trouble that Kubernetes can have with a pod: how it shows, of which kind it is, what the status says, and where to look.

The documentation's table is generated from this list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dflash_controller.api.conditions import Reason
from dflash_controller.planning.state.prefetch_progress import REASONS


class Kind(StrEnum):
    """What a trouble means for a rollout."""

    CANNOT_START = "cannot start"
    """It lasts until somebody changes something."""
    NO_ROOM = "no room"
    """It ends when the cluster has room. It says nothing about the revision."""
    LOADS = "loads"
    """The engine runs and does not serve yet."""


@dataclass(frozen=True, slots=True)
class Case:
    """One trouble. ``says`` and ``look`` may name {pod}, {container}, {workload}, {revision}, {node} and {mounts}."""

    seen: str
    """How it shows in the cluster, for the documentation."""
    kind: Kind
    reason: Reason
    says: str
    look: str


_POD = "kubectl describe pod {pod}"
_LOG = "kubectl logs {pod} -c {container} --previous"
_REPLICA_SET = "kubectl describe replicaset -l serving.dflash.io/revision={revision}"
_STATEFUL_SET = "kubectl describe statefulset -l leaderworkerset.sigs.k8s.io/name={workload}"

IMAGE = Case(
    "container waits: `ErrImagePull`, `ImagePullBackOff`, `InvalidImageName`, `ErrImageNeverPull`, `ImageInspectError`, "
    "`RegistryUnavailable`, `SignatureValidationFailed`",
    Kind.CANNOT_START,
    Reason.IMAGE_UNAVAILABLE,
    "the image of container {container} cannot be pulled",
    _POD,
)
CONFIG = Case(
    "container waits: `CreateContainerConfigError`, a Secret, a ConfigMap or a key of one does not exist",
    Kind.CANNOT_START,
    Reason.CONFIG_MISSING,
    "container {container} needs an object that does not exist",
    _POD,
)
NOT_CREATED = Case(
    "container waits: `CreateContainerConfigError` for another cause, `CreateContainerError`, `PreCreateHookError`, `PreStartHookError`, "
    "`CreatePodSandboxError`",
    Kind.CANNOT_START,
    Reason.CONTAINER_NOT_CREATED,
    "container {container} cannot be created",
    _POD,
)
NOT_STARTED = Case(
    "container waits: `RunContainerError`, `PostStartHookError`; or it ended with `StartError` or `ContainerCannotRun`",
    Kind.CANNOT_START,
    Reason.CONTAINER_NOT_CREATED,
    "container {container} was created and cannot be started, so it has no log",
    _POD,
)
NOT_SET_UP = Case(
    "pod has a node, condition `PodReadyToStartContainers` is False for 2 minutes: a Secret, ConfigMap or claim to mount does not exist or "
    "cannot be attached, or the network plugin fails",
    Kind.CANNOT_START,
    Reason.CONTAINER_NOT_CREATED,
    "its volumes or its network are not set up on node {node}; it mounts {mounts}",
    _POD,
)
EXITS = Case(
    "container waits: `CrashLoopBackOff`, after an exit",
    Kind.CANNOT_START,
    Reason.ENGINE_FAILING,
    "container {container} exits",
    _LOG,
)
OUT_OF_MEMORY = Case(
    "as above, after `OOMKilled`",
    Kind.CANNOT_START,
    Reason.ENGINE_FAILING,
    "container {container} used more memory than spec.podTemplate.resources allows and was killed (OOMKilled)",
    _LOG,
)
KILLED = Case(
    "as above, after exit code 137 or 143 without `OOMKilled`: a probe failed for too long, or the node ran out of memory",
    Kind.CANNOT_START,
    Reason.ENGINE_FAILING,
    "container {container} was killed: a probe failed for too long, or the node ran out of memory",
    f"{_POD} and {_LOG}",
)
RUNS_AGAIN = Case(
    "container runs after an exit and is not Ready",
    Kind.LOADS,
    Reason.ENGINE_FAILING,
    "container {container} has exited, and runs again",
    _LOG,
)
FETCH_FAILS = {
    reason: Case(
        f"init container `dflash-fetch` exits with reason {' or '.join(f'`{found}`' for found in REASONS if REASONS[found] is reason)}",
        Kind.LOADS if reason is Reason.HUB_UNREACHABLE else Kind.CANNOT_START,
        reason,
        "its weights cannot be fetched",
        _LOG,
    )
    for reason in dict.fromkeys(REASONS.values())
}
"""By the reason that conditions show. A hub that does not answer says nothing about the revision."""
FETCH_FAILS[Reason.PREFETCH_FAILED] = Case(
    "init container `dflash-fetch` exits with another reason",
    Kind.CANNOT_START,
    Reason.PREFETCH_FAILED,
    "its weights cannot be fetched",
    _LOG,
)
GROUPS_EXIT = Case(
    "groups of a LeaderWorkerSet in an active revision that end and come back with new pods, 5 times for each one that does not serve",
    Kind.CANNOT_START,
    Reason.ENGINE_FAILING,
    "groups of {workload} exit again and again and come back with new pods",
    "kubectl logs -l serving.dflash.io/revision={revision} -c engine --prefix --follow",
)
OTHER_EXITS = Case(
    "container that a webhook added exits and is not ready, while the engine has no trouble of its own",
    Kind.LOADS,
    Reason.SIDECAR_FAILING,
    "container {container}, which this operator did not add, exits",
    _LOG,
)
OTHER_WAITS = Case(
    "container that a webhook added cannot be created or started, while the engine has no trouble of its own",
    Kind.LOADS,
    Reason.SIDECAR_FAILING,
    "container {container}, which this operator did not add, cannot be started",
    _POD,
)
NO_ACCELERATORS = Case(
    "`PodScheduled` False, `Unschedulable`: `Insufficient nvidia.com/gpu` or another device",
    Kind.NO_ROOM,
    Reason.INSUFFICIENT_ACCELERATORS,
    "No node accepts pod {pod}",
    _POD,
)
UNSCHEDULABLE = Case(
    "`PodScheduled` False, `Unschedulable` or `SchedulerError`: CPU, memory, taints, node selector, affinity, volume zones, unbound claims",
    Kind.NO_ROOM,
    Reason.UNSCHEDULABLE,
    "No node accepts pod {pod}",
    _POD,
)
NO_CLAIM = Case(
    "`PodScheduled` False: `persistentvolumeclaim … not found`",
    Kind.CANNOT_START,
    Reason.CONFIG_MISSING,
    "No node accepts pod {pod}",
    _POD,
)
GATED = Case(
    "`PodScheduled` False, `SchedulingGated` (Kueue and other queues)",
    Kind.NO_ROOM,
    Reason.SCHEDULING_GATED,
    "Pod {pod} is not scheduled before these gates are removed",
    _POD,
)
QUOTA = Case(
    "`ReplicaFailure`: `exceeded quota`, `failed quota`, `insufficient quota`",
    Kind.NO_ROOM,
    Reason.PODS_REFUSED,
    "{workload} cannot create pods: a quota",
    f"kubectl describe quota and {_REPLICA_SET}",
)
DENIED = Case(
    "`ReplicaFailure`: `admission webhook … denied the request`, `ValidatingAdmissionPolicy … denied request`",
    Kind.NO_ROOM,
    Reason.PODS_REFUSED,
    "{workload} cannot create pods: an admission policy",
    _REPLICA_SET,
)
NO_ANSWER = Case(
    "`ReplicaFailure`: `failed calling webhook`, time-outs and errors of the API server",
    Kind.NO_ROOM,
    Reason.PODS_REFUSED,
    "{workload} cannot create pods: no answer to the request",
    _REPLICA_SET,
)
NO_ACCOUNT = Case(
    "`ReplicaFailure`: `error looking up service account`; the operator makes it",
    Kind.NO_ROOM,
    Reason.PODS_REFUSED,
    "{workload} cannot create pods: no ServiceAccount",
    _REPLICA_SET,
)
FORBIDDEN = Case(
    "`ReplicaFailure`: `no PriorityClass with name …`, `RuntimeClass … not found`, `violates PodSecurity`, limits of a LimitRange, "
    "`is forbidden`, `is invalid`",
    Kind.CANNOT_START,
    Reason.PODS_REFUSED,
    "{workload} cannot create pods",
    _REPLICA_SET,
)
NO_PODS = Case(
    "LeaderWorkerSet without a pod, or a group without its workers for a minute: their StatefulSet has no condition for it",
    Kind.NO_ROOM,
    Reason.PODS_REFUSED,
    "{workload} has fewer pods than its groups need: a quota, a policy or a webhook may refuse them, or no controller makes them",
    _STATEFUL_SET,
)
EVICTED = Case(
    "phase `Failed`: `Evicted`, `Preempting`, `NodeLost`, `NodeShutdown`, `Terminated`",
    Kind.NO_ROOM,
    Reason.EVICTED,
    "node {node} gave it up, and another pod takes its place",
    f"{_POD} and kubectl describe node {{node}}",
)
NODE_REFUSES = Case(
    "phase `Failed`: `UnexpectedAdmissionError`, `OutOfcpu`, `OutOfnvidia.com/gpu` …, `NodeAffinity`, `TopologyAffinityError`, …",
    Kind.NO_ROOM,
    Reason.EVICTED,
    "the kubelet of node {node} refused it, and another pod takes its place",
    f"{_POD} and kubectl describe node {{node}}",
)
ENDED = Case(
    "phase `Failed` without a reason of the node, or `DeadlineExceeded`",
    Kind.CANNOT_START,
    Reason.ENGINE_FAILING,
    "it has ended and is not started again",
    f"{_POD} and kubectl logs {{pod}} --all-containers",
)

CASES: Sequence[Case] = (
    *(IMAGE, CONFIG, NOT_CREATED, NOT_STARTED, NOT_SET_UP, EXITS, OUT_OF_MEMORY, KILLED, RUNS_AGAIN, GROUPS_EXIT),
    *FETCH_FAILS.values(),
    *(OTHER_EXITS, OTHER_WAITS),
    *(NO_ACCELERATORS, UNSCHEDULABLE, NO_CLAIM, GATED),
    *(QUOTA, DENIED, NO_ANSWER, NO_ACCOUNT, FORBIDDEN, NO_PODS),
    *(EVICTED, NODE_REFUSES, ENDED),
)

WAITING: Mapping[str, Case] = {
    **dict.fromkeys(("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"), IMAGE),
    **dict.fromkeys(("RegistryUnavailable", "SignatureValidationFailed"), IMAGE),
    **dict.fromkeys(("CreateContainerConfigError", "CreateContainerError", "PreCreateHookError", "PreStartHookError"), NOT_CREATED),
    **dict.fromkeys(("CreatePodSandboxError", "ConfigPodSandboxError"), NOT_CREATED),
    **dict.fromkeys(("RunContainerError", "PostStartHookError"), NOT_STARTED),
    "CrashLoopBackOff": EXITS,
}
"""Reasons with which a container waits that is in trouble."""
NEVER_STARTED = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of an exit for a container whose first process never ran."""
DISPLACED = frozenset({"Evicted", "Preempting", "NodeLost", "NodeShutdown", "Terminated"})
"""Reasons of phase Failed for a pod that its node gave up."""
OWN_END = frozenset({"", "DeadlineExceeded"})
"""Reasons of phase Failed for a pod that ended by itself. With any other the kubelet refused it."""
NOT_FOUND = re.compile(r"not found|couldn't find key")

REFUSALS: Sequence[tuple[re.Pattern[str], Case]] = (
    (re.compile(r"(exceeded|failed|insufficient) quota|quota: |resource quota evaluation timed out"), QUOTA),
    (re.compile(r"error looking up service account"), NO_ACCOUNT),
    (re.compile(r"failed calling webhook"), NO_ANSWER),
    (re.compile(r"denied (the )?request"), DENIED),
    (re.compile(r"because it is being terminated"), NO_ANSWER),
    (re.compile(r"forbidden|is invalid|violates PodSecurity|no PriorityClass"), FORBIDDEN),
    (re.compile(""), NO_ANSWER),
)
"""What the API server answers to a controller that wants to create a pod. The first match counts."""

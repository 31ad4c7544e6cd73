"""What the LeaderWorkerSet controller writes, as LeaderWorkerSet 0.10 does: StatefulSets, Service, revision, status, additions to pods.

Only what an operator can see that makes one LeaderWorkerSet per revision: a shared subdomain and no subgroups, volume claims, exclusive
topology or changes of a template.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from testbed.stages import READY

Object = Mapping[str, Any]

_PREFIX: Final = "leaderworkerset.sigs.k8s.io/"
NAME: Final = _PREFIX + "name"
GROUP_INDEX: Final = _PREFIX + "group-index"
WORKER_INDEX: Final = _PREFIX + "worker-index"
"""Label; "0" is the leader."""
GROUP_KEY: Final = _PREFIX + "group-key"
REVISION_HASH: Final = _PREFIX + "template-revision-hash"
SIZE: Final = _PREFIX + "size"
LEADER_NAME: Final = _PREFIX + "leader-name"
REPLICAS: Final = _PREFIX + "replicas"
API_VERSION: Final = "leaderworkerset.x-k8s.io/v1"
FIELD_MANAGER: Final = "lws"


def revision_hash(lws: Object) -> str:
    """Returns the hash of everything whose change replaces all groups."""
    defining = [lws["spec"]["leaderWorkerTemplate"], lws["spec"].get("networkConfig")]
    return hashlib.sha1(json.dumps(defining, sort_keys=True).encode()).hexdigest()[:10]


def controller_revision(lws: Object) -> dict[str, Any]:
    """Returns the LeaderWorkerSet's own ControllerRevision; each StatefulSet has others."""
    key = revision_hash(lws)
    labels = {NAME: lws["metadata"]["name"], REVISION_HASH: key}
    metadata = _metadata(f"{lws['metadata']['name']}-{key}-1", lws, _owner(lws, API_VERSION, "LeaderWorkerSet"), labels)
    data = {"spec": {"leaderWorkerTemplate": {**lws["spec"]["leaderWorkerTemplate"], "$patch": "replace"}}}
    return {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "data": data, "revision": 1}


def headless_service(lws: Object) -> dict[str, Any]:
    """Returns the Service that gives every pod of the set a name."""
    selector = {NAME: lws["metadata"]["name"]}
    metadata = _metadata(lws["metadata"]["name"], lws, _owner(lws, API_VERSION, "LeaderWorkerSet"), selector)
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def leader_stateful_set(lws: Object) -> dict[str, Any]:
    """Returns the StatefulSet of the leaders, one per replica. It has the labels and annotations of the LeaderWorkerSet."""
    name, template = lws["metadata"]["name"], lws["spec"]["leaderWorkerTemplate"]
    labels = {**(lws["metadata"].get("labels") or {}), NAME: name, REVISION_HASH: revision_hash(lws)}
    replicas = lws["spec"].get("replicas", 1)
    annotations = {**(lws["metadata"].get("annotations") or {}), REPLICAS: str(replicas)}
    spec = _stateful_set_spec(
        template.get("leaderTemplate") or template["workerTemplate"],
        name,
        replicas,
        selector={NAME: name, WORKER_INDEX: "0"},
        labels={WORKER_INDEX: "0", NAME: name, REVISION_HASH: revision_hash(lws)},
        annotations={SIZE: str(size_of(lws))},
    )
    spec["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    owner = _owner(lws, API_VERSION, "LeaderWorkerSet")
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": _metadata(name, lws, owner, labels, annotations), "spec": spec}


def worker_stateful_set(lws: Object, leader: Object) -> dict[str, Any]:
    """Returns the StatefulSet of one group's workers, which its leader's pod owns."""
    leader_name, leader_labels = leader["metadata"]["name"], leader["metadata"]["labels"]
    selector = {GROUP_INDEX: leader_labels[GROUP_INDEX], NAME: lws["metadata"]["name"], GROUP_KEY: leader_labels[GROUP_KEY]}
    own = {**selector, REVISION_HASH: leader_labels[REVISION_HASH]}
    spec = _stateful_set_spec(
        lws["spec"]["leaderWorkerTemplate"]["workerTemplate"],
        lws["metadata"]["name"],
        size_of(lws) - 1,
        selector=selector,
        labels=own,
        annotations={SIZE: str(size_of(lws)), LEADER_NAME: leader_name},
    )
    spec["ordinals"] = {"start": 1}
    labels = {**(lws["metadata"].get("labels") or {}), **own}
    metadata = _metadata(leader_name, leader, _owner(leader, "v1", "Pod"), labels, lws["metadata"].get("annotations") or {})
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}


def status(lws: Object, leaders: Sequence[Object], stateful_sets: Mapping[str, Object]) -> dict[str, Any]:
    """Returns the status. ``stateful_sets`` are those of the set by name: of the leaders, and of each group's workers by its leader."""
    name, key, replicas = lws["metadata"]["name"], revision_hash(lws), lws["spec"].get("replicas", 1)
    groups = [(leader, stateful_sets.get(leader["metadata"]["name"])) for leader in leaders]
    if size_of(lws) > 1:
        groups = [(leader, workers) for leader, workers in groups if workers is not None]
    ready = [leader for leader, workers in groups if is_ready(leader) and (workers is None or _all_available(workers))]
    updated = [
        leader
        for leader, workers in groups
        if all(part is None or part["metadata"]["labels"].get(REVISION_HASH) == key for part in (leader, workers))
    ]
    serving = [leader for leader in ready if int(leader["metadata"]["labels"][GROUP_INDEX]) < replicas]
    counts = {
        "replicas": (stateful_sets.get(name) or {}).get("status", {}).get("replicas", 0),
        "readyReplicas": len(ready),
        "updatedReplicas": len(updated),
    }
    return {
        **{field: count or None for field, count in counts.items()},  # a count of zero is left out
        "observedGeneration": lws["metadata"]["generation"],
        "hpaPodSelector": f"{NAME}={name},{WORKER_INDEX}=0",
        "conditions": _conditions(lws, available=len(serving) == replicas),
    }


def _conditions(lws: Object, *, available: bool) -> list[dict[str, Any]]:
    """Returns Available and Progressing, which exclude each other. One that was never true is left out, and reasons never change."""
    old = {item["type"]: item for item in (lws.get("status") or {}).get("conditions") or ()}
    texts = {
        "Progressing": (not available, "GroupsProgressing", "Replicas are progressing"),
        "Available": (available, "AllGroupsReady", "All replicas are ready"),
    }
    found = []
    for type, (holds, reason, message) in texts.items():
        value = "True" if holds else "False"
        if holds or type in old:
            since = old[type]["lastTransitionTime"] if type in old and old[type]["status"] == value else None
            generation = lws["metadata"]["generation"]
            condition = {"type": type, "status": value, "reason": reason, "message": message, "observedGeneration": generation}
            found.append(condition | {"lastTransitionTime": since})
    return found


def additions(pod: Object, namespace: str) -> dict[str, Any]:
    """Returns labels, annotations and environment variables that a new pod gets, as merged over its own.

    The annotation is the test bed's: kwok would make a leader Ready without its workers, see `readiness`.
    """
    metadata = pod["metadata"]
    labels, annotations, name = dict(metadata["labels"]), dict(metadata.get("annotations") or {}), metadata["name"]
    if labels.get(WORKER_INDEX) == "0":
        labels.setdefault(GROUP_INDEX, name.rpartition("-")[2])
        labels.setdefault(GROUP_KEY, hashlib.sha1(f"{namespace}/{name}".encode()).hexdigest())
    else:
        labels[WORKER_INDEX] = name.rpartition("-")[2]
    return {
        "labels": labels,
        "annotations": annotations | held(pod),
        "env": {
            "LWS_LEADER_ADDRESS": f"{labels[NAME]}-{labels[GROUP_INDEX]}.{pod['spec']['subdomain']}.{namespace}",
            "LWS_GROUP_SIZE": annotations[SIZE],
            "LWS_WORKER_INDEX": labels[WORKER_INDEX],
        },
    }


def held(pod: Object) -> dict[str, str]:
    """Returns the annotation that keeps a leader from being Ready before its workers are; nothing for other pods."""
    annotations = pod["metadata"].get("annotations") or {}
    leads_others = pod["metadata"]["labels"].get(WORKER_INDEX) == "0" and annotations.get(SIZE, "1") != "1"
    return {READY: "false"} if leads_others else {}


def group_restarts(pod: Object) -> bool:
    """Returns whether this pod's end or restart recreates its group, under the restart policies that do so."""
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    alive = status.get("phase") in ("Pending", "Running")
    return "deletionTimestamp" in pod["metadata"] or (alive and any(container["restartCount"] for container in containers))


def started(group: Sequence[Object], size: int) -> bool:
    """Returns whether all pods of a group exist and none is Pending."""
    return len(group) == size and all(pod["status"].get("phase") != "Pending" for pod in group)


def is_ready(pod: Object) -> bool:
    """Returns whether a pod is Running and Ready."""
    conditions = pod["status"].get("conditions") or ()
    return pod["status"].get("phase") == "Running" and any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def workers_available(leader: Object, workers: Object | None) -> bool:
    """Returns whether the StatefulSet of a leader's workers is this leader's own and has all of them available."""
    return workers is not None and _owner_uid(workers) == leader["metadata"]["uid"] and _all_available(workers)


def size_of(lws: Object) -> int:
    """Returns the pods of one group."""
    return int(lws["spec"]["leaderWorkerTemplate"].get("size", 1))


def _all_available(workers: Object) -> bool:
    found = workers.get("status") or {}
    return (
        found.get("observedGeneration") == workers["metadata"]["generation"]
        and found.get("availableReplicas", 0) == workers["spec"]["replicas"]
        and found.get("currentRevision") == found.get("updateRevision")
    )


def _owner_uid(item: Object) -> str | None:
    return next((owner["uid"] for owner in item["metadata"].get("ownerReferences") or () if owner.get("controller")), None)


def _stateful_set_spec(
    template: Object, service: str, replicas: int, *, selector: dict[str, str], labels: dict[str, str], annotations: dict[str, str]
) -> dict[str, Any]:
    metadata = template.get("metadata") or {}
    metadata = {
        "labels": {**(metadata.get("labels") or {}), **labels},
        "annotations": {**(metadata.get("annotations") or {}), **annotations},
    }
    return {
        "serviceName": service,
        "replicas": replicas,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector},
        "template": {"metadata": metadata, "spec": template["spec"]},
    }


def _metadata(
    name: str, beside: Object, owner: dict[str, Any], labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "namespace": beside["metadata"]["namespace"], "ownerReferences": [owner]}
    return found | ({"labels": dict(labels)} if labels else {}) | ({"annotations": dict(annotations)} if annotations else {})


def _owner(item: Object, api_version: str, kind: str) -> dict[str, Any]:
    metadata = item["metadata"]
    reference = {"apiVersion": api_version, "kind": kind, "name": metadata["name"], "uid": metadata["uid"]}
    return {**reference, "controller": True, "blockOwnerDeletion": True}

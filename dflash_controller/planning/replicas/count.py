"""Counts the replicas and workloads of a deployment by revision. A replica is a pod, or a group of pods over several nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash_controller.api import names
from dflash_controller.model.snapshot import Object, Pod, Snapshot
from dflash_controller.planning.replicas.next_replicas import Pool

LEADER_WORKER_SET = "LeaderWorkerSet"
_ENDED = ("Succeeded", "Failed")


def revision_of(workload: Object) -> str:
    """Returns the revision hash of a workload or a ControllerRevision. It is the end of the name, which nobody can edit."""
    return str(workload["metadata"]["name"]).rpartition("-")[2]


def template_of(workload: Object) -> Mapping[str, Any] | None:
    """Returns the template of the pods that serve, or None."""
    spec = workload["spec"]
    template: Mapping[str, Any] | None = spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get("leaderTemplate")
    return template


def engines(pods: Sequence[Pod]) -> list[Pod]:
    """Returns one pod per replica: the pod that answers requests."""
    return [pod for pod in pods if pod.role == names.ROLE_ENGINE]


def with_groups(pods: Sequence[Pod], workloads: Iterable[Object], revisions: Iterable[Object]) -> tuple[Pod, ...]:
    """Returns the pods of one deployment, each with whether its group is whole.

    A group is whole if its leader and all its workers are Ready and not terminating. Its size is that of the workload, or of the stored
    one if the workload is gone.
    """
    if all(pod.group is None for pod in pods):
        return tuple(pods)
    stored = {revision_of(item): (item.get("data") or {}).get("workload") or {} for item in revisions}
    size = {revision: _group_size(item) for revision, item in (stored | {revision_of(item): item for item in workloads}).items()}
    ready: defaultdict[tuple[str, str | None], set[int]] = defaultdict(set)
    for pod in pods:
        if pod.ready and not pod.terminating:
            ready[pod.revision, pod.group].add(pod.worker_index)
    return tuple(
        pod if pod.group is None else replace(pod, whole=len(ready[pod.revision, pod.group]) >= size.get(pod.revision, 1)) for pod in pods
    )


def pools(snapshot: Snapshot) -> list[Pool]:
    """Returns one pool for every revision that has a workload or pods. It counts pods and ignores the workload's status.

    A group exists while one of its pods is not terminating: workers that outlive their leader hold accelerators. Where the workload is
    missing and pods are left, what runs is what is wanted.
    """
    workloads = {revision_of(workload): workload for workload in snapshot.workloads}
    replicas: defaultdict[str, defaultdict[str, list[Pod]]] = defaultdict(lambda: defaultdict(list))
    for pod in snapshot.pods:
        if pod.phase not in _ENDED and (pod.role == names.ROLE_ENGINE or (pod.role == names.ROLE_WORKER and pod.group is not None)):
            replicas[pod.revision][pod.name if pod.group is None else pod.group].append(pod)
    return [_pool(revision, workloads.get(revision), replicas[revision], snapshot) for revision in sorted({*workloads, *replicas})]


def _pool(revision: str, workload: Object | None, replicas: Mapping[str, Sequence[Pod]], snapshot: Snapshot) -> Pool:
    existing = [pods for pods in replicas.values() if any(not pod.terminating for pod in pods)]
    leaving = [pods for pods in replicas.values() if all(pod.terminating for pod in pods)]
    serving = [name for name, pods in replicas.items() if any(pod.serving for pod in pods)]
    grouped = any(pod.group is not None for pods in replicas.values() for pod in pods)
    return Pool(
        revision=revision,
        wanted=int(workload["spec"].get("replicas", 1)) if workload else len(existing),
        existing=len(existing),
        serving=len(serving),
        # Pods of a dead node may stay in Terminating for ever, and their accelerators are lost.
        terminating=sum(any(pod.node not in snapshot.dead_nodes for pod in pods) for pods in leaving),
        settled=workload is None or _settled(workload),
        drops_broken_first=not grouped and (workload is None or workload["kind"] != LEADER_WORKER_SET),
        serving_indexes=frozenset(map(int, serving)) if grouped and all(name.isdecimal() for name in serving) else None,
    )


def _group_size(workload: Object) -> int:
    return int(((workload.get("spec") or {}).get("leaderWorkerTemplate") or {}).get("size", 1))


def _settled(workload: Object) -> bool:
    status = workload.get("status") or {}
    return int(status.get("observedGeneration", 0)) >= int(workload["metadata"].get("generation", 1))

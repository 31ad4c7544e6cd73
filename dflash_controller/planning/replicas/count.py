"""Counts the pods and workloads of a deployment by revision."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_controller.api import names
from dflash_controller.model.snapshot import Object, Pod, Snapshot
from dflash_controller.planning.replicas.next_replicas import Pool

LEADER_WORKER_SET = "LeaderWorkerSet"


def revision_of(workload: Object) -> str:
    """Returns the revision hash of a workload or a ControllerRevision. It is the end of the name, which nobody can edit."""
    return str(workload["metadata"]["name"]).rpartition("-")[2]


def engines(pods: Sequence[Pod]) -> list[Pod]:
    """Returns one pod per replica: the pod that answers requests."""
    return [pod for pod in pods if pod.role == names.ROLE_ENGINE]


def pools(snapshot: Snapshot) -> list[Pool]:
    """Returns one pool for every revision that has a workload or pods. It counts pods and ignores the workload's status."""
    workloads = {revision_of(workload): workload for workload in snapshot.workloads}
    pods = [pod for pod in engines(snapshot.pods) if pod.phase not in ("Succeeded", "Failed")]
    found = []
    for revision in sorted({*workloads, *(pod.revision for pod in pods)}):
        mine = [pod for pod in pods if pod.revision == revision]
        workload = workloads.get(revision)
        found.append(
            Pool(
                revision=revision,
                wanted=int(workload["spec"].get("replicas", 1)) if workload else 0,
                existing=sum(not pod.terminating for pod in mine),
                serving=sum(pod.serving for pod in mine),
                # Pods of a dead node may stay in Terminating for ever, and their accelerators are lost.
                terminating=sum(pod.terminating and pod.node not in snapshot.dead_nodes for pod in mine),
                settled=workload is None or _settled(workload),
                drops_broken_first=workload is None or workload["kind"] != LEADER_WORKER_SET,
            )
        )
    return found


def _settled(workload: Object) -> bool:
    status = workload.get("status") or {}
    return int(status.get("observedGeneration", 0)) >= int(workload["metadata"].get("generation", 1))

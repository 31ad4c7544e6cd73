"""Finds what keeps engine pods from serving: the failure of a pod, or of a workload that cannot create pods."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_controller.api.conditions import Reason
from dflash_controller.model.snapshot import Object, Pod
from dflash_controller.planning.replicas.count import engines, revision_of
from dflash_controller.planning.state.reconcile_state import ReconcileState

TERMINAL_RESTARTS = 5
"""Container restarts after which waiting does not help: about five minutes for an engine that exits at once, with kubelet's back-off."""

_FAILURES = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
    }
)


@dataclass(frozen=True, slots=True)
class PodFailure:
    """Why pods do not serve. ``terminal`` is True if waiting does not fix it.

    The message contains no number that changes while the failure lasts, because every change is a write.
    """

    reason: Reason
    message: str
    terminal: bool = False


def pod_failure(state: ReconcileState, revision: str | None = None) -> PodFailure | None:
    """Returns the main failure of a revision, or of all revisions. Refused pods come first, then the pod with the most restarts."""
    for workload in state.snapshot.workloads:
        if revision in (None, revision_of(workload)) and (refused := _condition(workload, "ReplicaFailure", "True")):
            return PodFailure(Reason.PODS_REFUSED, f"{workload['metadata']['name']} cannot create pods: {refused}", terminal=True)
    pods = sorted(engines(state.snapshot.pods), key=lambda pod: pod.name)
    found = [pod for pod in pods if revision in (None, pod.revision) and not pod.terminating and (pod.unschedulable or failing(pod))]
    return _of_pod(max(found, key=lambda pod: pod.restarts)) if found else None


def deadline_exceeded(state: ReconcileState, revision: str) -> bool:
    """Returns whether the workload made no progress within its start-up budget."""
    return any(
        _condition(workload, "Progressing", "False", "ProgressDeadlineExceeded") is not None
        for workload in state.snapshot.workloads
        if revision_of(workload) == revision
    )


def failing(pod: Pod) -> bool:
    """Returns whether the pod has failed, unlike one that still loads."""
    return not pod.ready and (pod.restarts > 0 or pod.phase == "Failed" or pod.waiting_reason in _FAILURES)


def _of_pod(pod: Pod) -> PodFailure:
    if pod.unschedulable:
        scarce = "Insufficient " in pod.unschedulable
        return PodFailure(
            Reason.INSUFFICIENT_ACCELERATORS if scarce else Reason.UNSCHEDULABLE, f"No node accepts pod {pod.name}: {pod.unschedulable}"
        )
    state = pod.waiting_reason or ("keeps restarting" if pod.restarts else pod.phase)
    words = f": {pod.message}" if pod.message and pod.message != state else ""
    return PodFailure(Reason.ENGINE_FAILING, f"Pod {pod.name}: {state}{words}", terminal=pod.restarts >= TERMINAL_RESTARTS)


def _condition(workload: Object, type: str, status: str, reason: str | None = None) -> str | None:
    """Returns the message of a workload's condition if it has that status (and reason), else None."""
    for item in (workload.get("status") or {}).get("conditions") or ():
        if item.get("type") == type and item.get("status") == status and reason in (None, item.get("reason")):
            return str(item.get("message") or item.get("reason"))
    return None

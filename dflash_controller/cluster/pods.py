"""Reduces a pod, before it enters the store, to the few fields that decisions read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from dflash_controller.api import names
from dflash_controller.model.snapshot import Pod


def project(pod: Mapping[str, Any]) -> Pod:
    """Returns the fields of a v1 Pod that decisions read."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    ready, scheduled = conditions.get("Ready", {}), conditions.get("PodScheduled", {})
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    role, (workload, controller) = labels.get(names.LABEL_ROLE, ""), _owners(metadata)
    group = labels.get(f"{_GROUPS}/group-index")
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        # A label can be edited, and the name of the workload cannot.
        revision=workload.rpartition("-")[2] if workload and role in _SERVED else labels.get(names.LABEL_REVISION, ""),
        role=role,
        node=(pod.get("spec") or {}).get("nodeName"),
        ip=status.get("podIP"),
        phase=status.get("phase") or "Pending",
        ready=ready.get("status") == "True",
        ready_since=_since(ready, "True"),
        terminating="deletionTimestamp" in metadata,
        restarts=sum(container.get("restartCount", 0) for container in containers),
        waiting_reason=_waiting_reason(containers),
        message=_failure(containers) or status.get("message"),
        unschedulable=(scheduled.get("message") or "Unschedulable") if scheduled.get("status") == "False" else None,
        unschedulable_since=_since(scheduled, "False"),
        created_at=datetime.fromisoformat(created) if (created := metadata.get("creationTimestamp")) else None,
        workload=workload,
        controller=controller,
        group=labels.get(f"{_GROUPS}/group-key") if group is None else group,
        worker_index=int(index) if (index := labels.get(f"{_GROUPS}/worker-index", "0")).isdecimal() else 0,
    )


_GROUPS = "leaderworkerset.sigs.k8s.io"
_SERVED = (names.ROLE_ENGINE, names.ROLE_WORKER)


def _owners(metadata: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Returns the name of the workload or Job that the pod's owners lead to, and kind and name of its controller.

    A ReplicaSet outlives a Deployment that was deleted without its dependents, so the Deployment need not exist. A LeaderWorkerSet has one
    StatefulSet of its own name for the leaders, and one for the workers of each group, named after the leader.
    """
    owner = next((reference for reference in metadata.get("ownerReferences") or () if reference.get("controller")), None)
    if owner is None:
        return None, None
    labels, kind, name = metadata.get("labels") or {}, str(owner["kind"]), str(owner["name"])
    match (str(owner["apiVersion"]).partition("/")[0], kind):
        case ("apps", "ReplicaSet") if name.endswith(suffix := f"-{labels.get('pod-template-hash')}"):
            workload = name.removesuffix(suffix)
            return workload, f"Deployment {workload}"
        case ("apps", "StatefulSet"):
            whole = labels.get(f"{_GROUPS}/name")
            leader = (metadata.get("annotations") or {}).get(f"{_GROUPS}/leader-name")
            return whole if whole and name == leader else re.sub(r"-\d+$", "", name), f"{kind} {name}"
        case ("batch", "Job"):
            return name, f"{kind} {name}"
    return None, f"{kind} {name}"


def _since(condition: Mapping[str, Any], status: str) -> datetime | None:
    """Returns since when the condition has had this status; None if it has another status or no transition time."""
    changed = condition.get("lastTransitionTime")
    return datetime.fromisoformat(changed) if changed and condition.get("status") == status else None


def _waiting_reason(containers: Iterable[Mapping[str, Any]]) -> str | None:
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            reason: str | None = waiting.get("reason")
            return reason
    return None


def _failure(containers: Iterable[Mapping[str, Any]]) -> str | None:
    """Returns the message of the container that failed last. A container that cannot start (image, configuration) takes precedence."""
    ends: list[tuple[str, str]] = []
    for container in containers:
        state, last = container.get("state") or {}, container.get("lastState") or {}
        for ended in (state.get("terminated"), last.get("terminated")):
            if ended and ended.get("exitCode", 0) != 0:
                text = ended.get("message") or f"{ended.get('reason') or 'Error'}, exit code {ended['exitCode']}"
                ends.append((ended.get("finishedAt") or "", f"{container['name']}: {text.strip()}"))
        waiting = state.get("waiting") or {}
        if waiting.get("message") and not last.get("terminated"):
            return f"{container['name']}: {waiting['message'].strip()}"
    return max(ends)[1] if ends else None

"""Reduces a pod, before it enters the store, to the few fields that decisions read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dflash_controller.api import names
from dflash_controller.model.fetch_report import FetchReason, FetchReport, parse
from dflash_controller.model.snapshot import Pod
from dflash_controller.render import prefetch


def project(pod: Mapping[str, Any]) -> Pod:
    """Returns the fields of a v1 Pod that decisions read."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    ready, scheduled = conditions.get("Ready", {}), conditions.get("PodScheduled", {})
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    ours = [container for container in containers if container["name"] in _RENDERED]
    worst, foreign = _of_all(ours, [container for container in containers if container["name"] not in _RENDERED])
    gated = scheduled.get("status") == "False" and scheduled.get("reason") == "SchedulingGated"
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
        restarts=sum(container.get("restartCount", 0) for container in ours if not _has_fetched(container)),
        waiting_reason=worst.waiting_reason,
        message=worst.message or status.get("message"),
        unschedulable=(_gates(pod) if gated else scheduled.get("message") or "Unschedulable")
        if scheduled.get("status") == "False"
        else None,
        unschedulable_since=_since(scheduled, "False"),
        created_at=datetime.fromisoformat(created) if (created := metadata.get("creationTimestamp")) else None,
        unready_since=_since(ready, "False"),
        scheduled_since=_since(scheduled, "True"),
        gated=gated,
        reason=status.get("reason"),
        container=worst.container,
        exit_code=worst.exit_code,
        exit_reason=worst.exit_reason,
        fetch=worst.fetch,
        fetched=_fetched(ours),
        engine_since=_engine_since(ours),
        fetching=any(container["name"] in _FETCHING and (container.get("state") or {}).get("running") is not None for container in ours),
        foreign=foreign,
        mounts=_mounts(pod) if _not_set_up(status, conditions) else None,
        workload=workload,
        controller=controller,
        group=labels.get(f"{_GROUPS}/group-key") if group is None else group,
        worker_index=int(index) if (index := labels.get(f"{_GROUPS}/worker-index", "0")).isdecimal() else 0,
    )


_GROUPS = "leaderworkerset.sigs.k8s.io"
_SERVED = (names.ROLE_ENGINE, names.ROLE_WORKER)
_FETCHING = frozenset({names.FETCH_CONTAINER, prefetch.CONTAINER})
"""Containers whose termination message may be a report of dflash-fetch."""
_RENDERED = frozenset({names.ENGINE_CONTAINER, *_FETCHING})
"""Every container that the operator renders. A webhook may add others, and their exits say nothing about an engine."""


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


@dataclass(frozen=True, slots=True)
class _Worst:
    """The container that keeps a pod from being Ready."""

    container: str | None = None
    waiting_reason: str | None = None
    message: str | None = None
    exit_code: int | None = None
    exit_reason: str | None = None
    fetch: FetchReason | None = None


_HARMLESS = (None, "ContainerCreating", "PodInitializing")
"""Reasons with which a container waits that has no trouble."""
_AFTER_AN_EXIT = "CrashLoopBackOff"


def _of_all(ours: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> tuple[_Worst, bool]:
    """Returns the container that keeps a pod from being Ready, and whether it is one that the operator did not add.

    One of the others is named only if it is not ready itself and the operator's own are not the cause.
    """
    worst = _worst(ours)
    exits = worst.exit_code is not None and not all(container.get("ready") for container in ours)
    if exits or worst.waiting_reason not in _HARMLESS:
        return worst, False
    other = _worst([container for container in others if not container.get("ready")])
    if other.exit_code is not None or other.waiting_reason not in _HARMLESS:
        return other, True
    return worst, False


def _worst(containers: Sequence[Mapping[str, Any]]) -> _Worst:
    """Returns the container that cannot be created or started, or else the one that failed last, or else the first one that waits."""
    waiting = [(container, state) for container in containers if (state := (container.get("state") or {}).get("waiting"))]
    for container, state in waiting:
        if state.get("reason") not in (*_HARMLESS, _AFTER_AN_EXIT):
            before = _ended(container) or {}
            words = _words(container, state.get("message"))
            return _Worst(container["name"], state["reason"], words, before.get("exitCode"), before.get("reason"))
    ends = [(container, ended) for container in containers if (ended := _ended(container))]
    if ends:
        container, ended = max(ends, key=lambda item: item[1].get("finishedAt") or "")
        state = (container.get("state") or {}).get("waiting") or {}
        code, reason = ended["exitCode"], ended.get("reason")
        report = parse(ended.get("message")) if container["name"] in _FETCHING else None
        text = report.message if report else ended.get("message") or f"{reason or 'Error'}, exit code {code}"
        return _Worst(container["name"], state.get("reason"), _words(container, text), code, reason, report.reason if report else None)
    if not waiting:
        return _Worst()
    container, state = waiting[0]
    return _Worst(container["name"], state.get("reason"), _words(container, state.get("message")))


def _words(container: Mapping[str, Any], text: str | None) -> str | None:
    return f"{container['name']}: {text.strip()}" if text else None


def _ended(container: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the container's last end that was a failure. An engine that exits with 0 and is started again has failed, too."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    if _has_fetched(container):
        return None  # What failed before is over.
    again = (state.get("waiting") or {}).get("reason") == _AFTER_AN_EXIT
    for ended in (state.get("terminated"), last.get("terminated")):
        if ended and (again or ended.get("exitCode", 0) != 0):
            return {"exitCode": 0, **ended}
    return None


def _fetched(containers: Sequence[Mapping[str, Any]]) -> FetchReport | None:
    """Returns the newest report of a container that fetches weights."""
    for container in containers:
        for state in (container.get("state") or {}, container.get("lastState") or {}):
            if container["name"] in _FETCHING and (report := parse((state.get("terminated") or {}).get("message"))):
                return report
    return None


def _engine_since(containers: Sequence[Mapping[str, Any]]) -> datetime | None:
    for container in containers:
        since = ((container.get("state") or {}).get("running") or {}).get("startedAt")
        if container["name"] == names.ENGINE_CONTAINER and since:
            return datetime.fromisoformat(since)
    return None


def _has_fetched(container: Mapping[str, Any]) -> bool:
    """Returns whether it is a container that has fetched the weights."""
    return container["name"] in _FETCHING and ((container.get("state") or {}).get("terminated") or {}).get("exitCode") == 0


def _not_set_up(status: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Returns whether the kubelet has taken the pod and has not yet mounted its volumes and connected its network."""
    return status.get("phase") == "Pending" and conditions.get("PodReadyToStartContainers", {}).get("status") == "False"


_NAMED_BY: Mapping[str, tuple[str, str]] = {
    "secret": ("Secret", "secretName"),
    "configMap": ("ConfigMap", "name"),
    "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
}
_CLUSTERS_OWN = "kube-root-ca.crt"


def _mounts(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the objects that its volumes name, as ``KIND/NAME``, sorted."""
    found = set()
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
            for field, (kind, key) in _NAMED_BY.items():
                name = (source.get(field) or {}).get(key) or (source.get(field) or {}).get("name")
                if name and name != _CLUSTERS_OWN:
                    found.add(f"{kind}/{name}")
    return tuple(sorted(found))


def _gates(pod: Mapping[str, Any]) -> str:
    names_ = sorted(str(gate["name"]) for gate in (pod.get("spec") or {}).get("schedulingGates") or ())
    return f"scheduling gates {', '.join(names_)}"

"""Jobs that bring a candidate's weights to where its pods will run, before a replica is taken down for it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_controller.api.names import LABEL_REVISION, LABEL_ROLE, ROLE_PREFETCH, child_labels, engine_selector
from dflash_controller.api.types import Spec
from dflash_controller.engines.protocol import ModelRef
from dflash_controller.engines.resolve import Resolved
from dflash_controller.render.compact import as_manifest, compact
from dflash_controller.render.container import environment
from dflash_controller.render.pod import PRODUCT_LABEL, tolerations
from dflash_controller.render.service_account import service_account_name
from dflash_controller.render.startup import SCHEDULING_S, load_s
from dflash_controller.render.volumes import mounts
from dflash_controller.render.workload import workload_name

CONTAINER = "fetch"
BACKOFF_LIMIT = 3
"""Retries after a failed try; what has been downloaded is kept, so each goes on where the last one ended."""
RESOURCES = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "8Gi"}}
"""A download to disk. The request is small, since the engines beside it may have asked for all the rest of the node."""
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"}
"""The end of a failed container's log is its message (FallbackToLogsOnError), so nothing else is to stand there."""
SCRIPT = """\
import sys
from huggingface_hub import snapshot_download
for wanted in sys.argv[1:]:
    model, _, revision = wanted.partition("@")
    try:
        snapshot_download(model, revision=revision or None, ignore_patterns=["original/*"])
    except Exception as error:
        sys.exit(f"{wanted}: {type(error).__name__}: {' '.join(str(error).split())}")
"""
"""The whole repository at its revision, less the duplicate weights that engines skip as well (vLLM's ignore_patterns). What goes wrong is
one sentence instead of a traceback."""


def prefetch_jobs(name: str, namespace: str, revision: str, spec: Spec, resolved: Resolved, nodes: Sequence[str]) -> list[dict[str, Any]]:
    """One Job for each of ``nodes`` where weights are kept on the node, one in all where they are kept in a claim, else none.

    ``revision`` is the revision's hash, ``nodes`` those that run the deployment's engine pods. Nothing is fetched into an emptyDir,
    which begins with its pod, nor into a claim mounted read-only. A Job's template is immutable: a node's Job depends on the
    revision and the node alone. ``ownerReferences`` are left to the caller.
    """
    storage = spec.storage
    base = f"{workload_name(name, revision)}-fetch"
    if storage is None:
        return []
    if storage.host_path is not None:
        # The engine pods there prove that the node fits; a cordoned one is no reason to wait.
        cordoned = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
        tolerated = [*tolerations(spec, resolved), cordoned]
        return [
            _job(f"{base}-{_short_hash(node)}", name, namespace, revision, spec, resolved, _on_node(node) | {"tolerations": tolerated})
            for node in nodes
        ]
    if storage.persistent_volume_claim is not None and not storage.persistent_volume_claim.read_only:
        return [_job(base, name, namespace, revision, spec, resolved, _near_the_claim(name, spec, resolved))]
    return []


def node_of(job: Mapping[str, Any]) -> str | None:
    """The node a Job rendered here is bound to; None where any will do."""
    affinity = (job["spec"]["template"]["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    for term in (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field["key"] == "metadata.name":
                return str(field["values"][0])
    return None


def _job(job: str, name: str, namespace: str, revision: str, spec: Spec, resolved: Resolved, placement: dict[str, Any]) -> dict[str, Any]:
    labels = child_labels(name) | {LABEL_REVISION: revision}
    manifest: dict[str, Any] = compact(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job, "namespace": namespace, "labels": labels},
            "spec": {
                "backoffLimit": BACKOFF_LIMIT,
                # Against a download that hangs; long enough for every try the limit above allows.
                "activeDeadlineSeconds": (BACKOFF_LIMIT + 1) * load_s(resolved) + SCHEDULING_S,
                "template": {
                    # The user's labels are left out: a Service or budget of theirs that selects engines by them must not find these pods.
                    # Their annotations select nothing, and tell what the pods' surroundings need to know (a mesh, a second network).
                    "metadata": {
                        "labels": labels | {LABEL_ROLE: ROLE_PREFETCH},
                        "annotations": as_manifest(spec.pod_template.metadata).get("annotations"),
                    },
                    "spec": _pod(name, spec, resolved) | placement,
                },
            },
        }
    )
    return manifest


def _pod(name: str, spec: Spec, resolved: Resolved) -> dict[str, Any]:
    """As an engine pod, with the same user, so that the engine can go on in the same files; without accelerators and their runtime."""
    mounted = [mount for mount in mounts(spec, resolved) if mount.name != "shm"]
    scheduling = as_manifest(spec.scheduling)
    return {
        "restartPolicy": "Never",
        "serviceAccountName": service_account_name(name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "imagePullSecrets": [as_manifest(secret) for secret in spec.pod_template.image_pull_secrets],
        "containers": [
            {
                "name": CONTAINER,
                "image": resolved.image,
                "command": ["python3", "-c", SCRIPT],
                "args": [_wanted(resolved.target), _wanted(resolved.drafter)],
                "env": environment(spec, QUIET, mounted),
                "resources": RESOURCES,
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [mount.volume_mount() for mount in mounted],
            }
        ],
        "volumes": [mount.volume() for mount in mounted],
        "priorityClassName": scheduling.get("priorityClassName"),
        "schedulerName": scheduling.get("schedulerName"),
    }


def _on_node(node: str) -> dict[str, Any]:
    """Bound by the node's name, not by a label, which somebody may change."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}}


def _near_the_claim(name: str, spec: Spec, resolved: Resolved) -> dict[str, Any]:
    """Where an engine could run, since a claim that waits for its first pod is bound there; best beside one that runs, since a
    claim of mode ReadWriteOnce can be mounted on its node only."""
    scheduling = as_manifest(spec.scheduling)
    beside = {"labelSelector": {"matchLabels": engine_selector(name)}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "nodeSelector": {PRODUCT_LABEL: resolved.gpu_product} | scheduling.get("nodeSelector", {}),
        "tolerations": tolerations(spec, resolved),
        "affinity": {
            "nodeAffinity": scheduling.get("affinity", {}).get("nodeAffinity"),
            "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": beside}]},
        },
    }


def _wanted(model: ModelRef) -> str:
    return f"{model.model}@{model.revision}" if model.revision else model.model


def _short_hash(node: str) -> str:
    """Seven characters: the longest deployment name and a revision's hash leave no more of the 63 that a label of the pods can hold."""
    return base64.b32encode(hashlib.sha256(node.encode()).digest()).decode().lower()[:7]

"""Renders the Jobs that download a candidate's weights to where its pods will run, before a replica is taken down for it."""

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
from dflash_controller.render.fetch import RESOURCES, fetch_container, pod_security, wanted
from dflash_controller.render.pod import PRODUCT_LABEL, tolerations
from dflash_controller.render.service_account import service_account_name
from dflash_controller.render.startup import SCHEDULING_S, job_limit_s
from dflash_controller.render.volumes import Mount, fetch_mounts, volumes
from dflash_controller.render.workload import workload_name

CONTAINER = "fetch"
NAME_SUFFIX = "-fetch"
NODE_PATTERN = "[a-z2-7]{7}"
"""Matches the end of a Job's name that tells its node."""
BACKOFF_LIMIT = 3
"""Retries after a failed attempt. Downloaded files are kept, so each attempt continues where the last one ended."""
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"}
"""The end of a failed container's log becomes its message (FallbackToLogsOnError), so the log must hold nothing but the error."""
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
"""Runs in the engine's image for a revision whose engines download by themselves: it fills the hub's cache that they then find.

It downloads the whole repository at its revision, without the duplicate weights that engines skip too (vLLM's ignore_patterns). An error
is reported as one sentence instead of a traceback."""


def prefetch_jobs(
    name: str,
    namespace: str,
    revision: str,
    spec: Spec,
    resolved: Resolved,
    nodes: Sequence[str],
    host_path_roots: Sequence[str] = (),
    keep: Sequence[ModelRef] | None = None,
) -> list[dict[str, Any]]:
    """Returns one Job for each of ``nodes`` if weights are stored on the node, a single Job if they are stored in a claim, else none.

    ``revision`` is the revision's hash, ``nodes`` are those that run the deployment's engine pods. Nothing is downloaded into an emptyDir,
    which starts empty with its pod, or into a claim mounted read-only. ``host_path_roots`` are the allowed directories for
    ``storage.hostPath``. Models that this deployment has used are deleted, unless ``keep`` names them or another deployment uses them; None
    deletes nothing. The caller adds ``ownerReferences``, and creates each Job once: its template is immutable.
    """
    storage = spec.storage
    base = f"{workload_name(name, revision)}{NAME_SUFFIX}"
    if storage is None:
        return []
    if storage.host_path is not None:
        # Engine pods already run on the node, so it fits; a cordoned node is no reason to wait.
        cordoned = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
        tolerated = [*tolerations(spec, resolved), cordoned]
        return [
            _job(
                f"{base}-{_short_hash(node)}",
                name,
                namespace,
                revision,
                spec,
                resolved,
                _on_node(node) | {"tolerations": tolerated},
                host_path_roots,
                keep,
            )
            for node in nodes
        ]
    if storage.persistent_volume_claim is not None and not storage.persistent_volume_claim.read_only:
        return [_job(base, name, namespace, revision, spec, resolved, _near_the_claim(name, spec, resolved), keep=keep)]
    return []


def node_of(job: Mapping[str, Any]) -> str | None:
    """Returns the node that a Job rendered here is bound to; None if it may run on any."""
    affinity = (job["spec"]["template"]["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    for term in (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field["key"] == "metadata.name":
                return str(field["values"][0])
    return None


def _job(
    job: str,
    name: str,
    namespace: str,
    revision: str,
    spec: Spec,
    resolved: Resolved,
    placement: dict[str, Any],
    host_path_roots: Sequence[str] = (),
    keep: Sequence[ModelRef] | None = None,
) -> dict[str, Any]:
    labels = child_labels(name) | {LABEL_REVISION: revision}
    manifest: dict[str, Any] = compact(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job, "namespace": namespace, "labels": labels},
            "spec": {
                "backoffLimit": BACKOFF_LIMIT,
                # Ends a download that hangs; long enough for every attempt that backoffLimit allows.
                "activeDeadlineSeconds": (BACKOFF_LIMIT + 1) * job_limit_s(resolved) + SCHEDULING_S,
                "template": {
                    # The user's labels are left out: a user's Service or budget that selects engines by them must not select these pods.
                    # The user's annotations select nothing, and configure what surrounds the pods (a mesh, a second network).
                    "metadata": {
                        "labels": labels | {LABEL_ROLE: ROLE_PREFETCH},
                        "annotations": as_manifest(spec.pod_template.metadata).get("annotations"),
                    },
                    "spec": _pod(name, namespace, spec, resolved, host_path_roots, keep) | placement,
                },
            },
        }
    )
    return manifest


def _pod(
    name: str, namespace: str, spec: Spec, resolved: Resolved, host_path_roots: Sequence[str], keep: Sequence[ModelRef] | None
) -> dict[str, Any]:
    """Returns a pod spec like an engine's, without accelerators and their runtime. The user is the same, so that the engine can write the
    same files."""
    mounted = fetch_mounts(spec, resolved, host_path_roots)
    scheduling = as_manifest(spec.scheduling)
    return {
        "restartPolicy": "Never",
        "serviceAccountName": service_account_name(name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(spec, resolved),
        "imagePullSecrets": [as_manifest(secret) for secret in spec.pod_template.image_pull_secrets],
        "containers": [_container(f"{namespace}/{name}", spec, resolved, mounted, keep)],
        "volumes": volumes(mounted),
        "priorityClassName": scheduling.get("priorityClassName"),
        "schedulerName": scheduling.get("schedulerName"),
    }


def _container(user: str, spec: Spec, resolved: Resolved, mounted: Sequence[Mount], keep: Sequence[ModelRef] | None) -> dict[str, Any]:
    if resolved.fetch_image:
        pruning = [] if keep is None else ["--prune", *(f"--keep={wanted(model)}" for model in keep if model.pinned)]
        return fetch_container(CONTAINER, user, spec, resolved, mounted, pruning)
    return {
        "name": CONTAINER,
        "image": resolved.image,
        "command": ["python3", "-c", SCRIPT],
        "args": [wanted(resolved.target), wanted(resolved.drafter)],
        "env": environment(spec, QUIET, mounted),
        "resources": RESOURCES,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount.volume_mount() for mount in mounted],
    }


def _on_node(node: str) -> dict[str, Any]:
    """Returns an affinity to the node by its name, because a label may be changed."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}}


def _near_the_claim(name: str, spec: Spec, resolved: Resolved) -> dict[str, Any]:
    """Returns the placement of a Job that downloads into a claim.

    It requires a node where an engine could run, because a claim that waits for its first consumer is bound there. It prefers the node of a
    running engine, because a ReadWriteOnce claim can be mounted on one node only.
    """
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


def _short_hash(node: str) -> str:
    """Returns seven characters: with the longest deployment name and a revision's hash they just fit into the 63 of a label value."""
    return base64.b32encode(hashlib.sha256(node.encode()).digest()).decode().lower()[:7]

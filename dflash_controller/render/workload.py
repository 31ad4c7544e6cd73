"""Renders the workload of one revision: a Deployment for single-pod replicas, a LeaderWorkerSet for replicas over several nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash_controller.api.names import LABEL_DEPLOYMENT, LABEL_REVISION, ROLE_ENGINE, ROLE_WORKER, child_labels
from dflash_controller.api.speculation import Speculation
from dflash_controller.api.types import Spec
from dflash_controller.engines.protocol import Launch, Probes
from dflash_controller.engines.resolve import Resolved
from dflash_controller.render.compact import compact
from dflash_controller.render.pod import pod_template
from dflash_controller.render.startup import progress_deadline_s

DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment"}
LEADER_WORKER_SET = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}


def workload_name(name: str, revision: str) -> str:
    """Returns ``NAME-HASH``. The hash begins with a letter, so that a LeaderWorkerSet's own pods (``x-1``) cannot take the name."""
    return f"{name}-{revision}"


def workload(
    name: str,
    namespace: str,
    revision: str,
    spec: Spec,
    resolved: Resolved,
    launch: Launch,
    probes: Probes,
    speculation: Speculation,
    host_path_roots: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the workload without ``replicas`` and ``ownerReferences``, which change while the revision exists.

    ``revision`` is the revision's hash, ``host_path_roots`` are the allowed directories for ``storage.hostPath``. Name and hash together
    must not exceed 50 characters, or the workers of a LeaderWorkerSet are never created.
    """

    def template(role: str) -> dict[str, Any]:
        return pod_template(role, name, namespace, revision, spec, resolved, launch, probes, speculation, host_path_roots)

    if resolved.nodes > 1:
        kind, body = LEADER_WORKER_SET, _leader_worker_set(resolved, template(ROLE_ENGINE), template(ROLE_WORKER))
    else:
        kind, body = DEPLOYMENT, _deployment(name, revision, resolved, template(ROLE_ENGINE))
    metadata = {
        "name": workload_name(name, revision),
        "namespace": namespace,
        "labels": child_labels(name) | {LABEL_REVISION: revision},
    }
    manifest: dict[str, Any] = compact({**kind, "metadata": metadata, "spec": body})
    return manifest


def _deployment(name: str, revision: str, resolved: Resolved, template: dict[str, Any]) -> dict[str, Any]:
    return {
        "selector": {"matchLabels": {LABEL_DEPLOYMENT: name, LABEL_REVISION: revision}},
        # The template of a revision never changes, so these only matter if somebody else edits it.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": progress_deadline_s(resolved),
        "template": template,
    }


def _leader_worker_set(resolved: Resolved, leader: dict[str, Any], worker: dict[str, Any]) -> dict[str, Any]:
    """Returns the spec for LeaderWorkerSet 0.9 and later.

    The startup policy is LeaderCreated, because the leader is not healthy before all ranks have joined. RecreateGroupAfterStart restarts a
    group as a whole, because ranks cannot rejoin, but not while a node still pulls the image.
    """
    return {
        "startupPolicy": "LeaderCreated",
        "networkConfig": {"subdomainPolicy": "Shared"},
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 1, "maxSurge": 0},
        },
        "leaderWorkerTemplate": {
            "size": resolved.nodes,
            "restartPolicy": "RecreateGroupAfterStart",
            "leaderTemplate": leader,
            "workerTemplate": worker,
        },
    }

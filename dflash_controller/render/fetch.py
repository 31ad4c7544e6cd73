"""Renders the container that fetches weights with ``dflash-fetch``, in engine pods and in the Jobs that run ahead of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dflash_controller.api.defaults import scratch_limit
from dflash_controller.api.types import Spec
from dflash_controller.engines.protocol import ModelRef
from dflash_controller.engines.resolved import Resolved
from dflash_controller.model.fetch_progress import LIMIT_VARIABLE, PORT
from dflash_controller.render.compact import as_manifest
from dflash_controller.render.container import environment
from dflash_controller.render.volumes import STORAGE_PATH, Mount

COMMAND = ("python3", "-m", "dflash_controller.fetch")
RESOURCES = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "8Gi"}}
"""Resources of a download to disk. The request is small, because the engines on the node may have requested nearly all of it."""
GROUP = 65532
"""Group that owns a claim: the operator image's. Its user could not write into a new file system, which belongs to root."""
_FOR_THE_FETCH = re.compile(
    rf"HF_\w+|HUGGING_FACE_\w+|(\w+_)?PROXY|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|{LIMIT_VARIABLE}", re.IGNORECASE
)
"""Variables that say how to reach the hub and what the storage may hold. Others are for the engine: its PYTHONPATH would break this one."""


def fetch_container(
    name: str, user: str, spec: Spec, resolved: Resolved, mounts: Sequence[Mount], arguments: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns the container that brings target and drafter into the storage. ``user`` is recorded beside them as one who needs them."""
    found = scratch_limit(spec)
    limit = {LIMIT_VARIABLE: str(found[1])} if found else {}
    return {
        "name": name,
        "image": resolved.fetch_image,
        "command": list(COMMAND),
        "args": [
            *(f"--model={wanted(model)}" for model in (resolved.target, resolved.drafter)),
            f"--into={STORAGE_PATH}",
            f"--deployment={user}",
            f"--listen={PORT}",
            *arguments,
        ],
        "env": [variable for variable in environment(spec, limit, mounts) if _FOR_THE_FETCH.fullmatch(variable["name"])],
        "resources": _resources(spec),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            **_user(spec),
        },
        # The program writes a report. Where it could not, as after ImportError, the log says why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [{"name": "progress", "containerPort": PORT, "protocol": "TCP"}],
        "volumeMounts": [mount.volume_mount() for mount in mounts],
    }


def pod_security(spec: Spec, resolved: Resolved) -> dict[str, Any]:
    """Returns the security context of every pod of a deployment, with or without such a container: they share the files of one storage.

    A claim is made writable for the container's group, unless the user names another.
    """
    found: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if resolved.fetch_image and spec.storage and spec.storage.persistent_volume_claim:
        found |= {"fsGroup": GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    return found | as_manifest(spec.pod_template.security_context)


def wanted(model: ModelRef) -> str:
    """Returns a model as both programs take it."""
    return f"{model.model}@{model.revision}" if model.revision else model.model


def _user(spec: Spec) -> dict[str, Any]:
    """Returns the user. The one that the user names is the pod's.

    A directory of a node belongs to root, and no fsGroup changes that. hostPath is no part of the restricted level.
    """
    named = spec.pod_template.security_context
    if named and named.run_as_user is not None:
        return {}
    on_node = spec.storage is not None and spec.storage.host_path is not None
    return {"runAsUser": 0} if on_node and not (named and named.run_as_non_root) else {"runAsNonRoot": True}


def _resources(spec: Spec) -> dict[str, Any]:
    """Returns the engine's own resources where the user has set them: they raise nothing, and keep the pod's quality of service."""
    written = as_manifest(spec.pod_template.resources)
    own = {part: {name: str(value) for name, value in written.get(part, {}).items() if "/" not in name} for part in ("requests", "limits")}
    return own if any(own.values()) else RESOURCES

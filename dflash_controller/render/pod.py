"""Renders the pod template of a revision's engines. It never changes after the revision was created."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash_controller.api.names import (
    FETCH_CONTAINER,
    LABEL_BLOCK_SIZE,
    LABEL_REVISION,
    LABEL_ROLE,
    ROLE_ENGINE,
    ROLE_WORKER,
    child_labels,
    engine_selector,
)
from dflash_controller.api.speculation import Speculation
from dflash_controller.api.types import Spec
from dflash_controller.engines.protocol import Launch, Probes
from dflash_controller.engines.resolve import Resolved
from dflash_controller.render.compact import as_manifest
from dflash_controller.render.container import engine_container
from dflash_controller.render.fetch import fetch_container, pod_security
from dflash_controller.render.service_account import service_account_name
from dflash_controller.render.volumes import fetch_mounts, mounts, volumes

PRODUCT_LABEL = "nvidia.com/gpu.product"
"""Node label set by NVIDIA's GPU feature discovery."""


def pod_template(
    role: str,
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
    """Returns metadata and spec of a pod of the revision. It may have empty parts, because the workload is compacted as a whole."""
    mounted = mounts(spec, resolved, namespace, host_path_roots)
    fetched = fetch_mounts(spec, resolved, host_path_roots) if resolved.fetch_image else []
    scheduling = as_manifest(spec.scheduling)
    return {
        "metadata": _metadata(role, name, revision, spec, resolved, speculation),
        "spec": {
            "serviceAccountName": service_account_name(name),
            "automountServiceAccountToken": False,
            # A Service called vllm would otherwise set VLLM_PORT, which vLLM reads as its own setting.
            "enableServiceLinks": False,
            # The kernel gives process 1 of a namespace no signal that it does not handle, and an engine that loads handles none. A worker
            # that ends with its leader is started again before it is deleted: it would hold its accelerators for the whole grace period.
            "shareProcessNamespace": True if role == ROLE_WORKER else None,
            "securityContext": pod_security(spec, resolved),
            "terminationGracePeriodSeconds": resolved.grace_period_s,
            "imagePullSecrets": [as_manifest(secret) for secret in spec.pod_template.image_pull_secrets],
            "initContainers": [fetch_container(FETCH_CONTAINER, f"{namespace}/{name}", spec, resolved, fetched)] if fetched else [],
            "containers": [engine_container(role, spec, resolved, launch, probes, mounted)],
            "volumes": volumes(mounted, fetched),
            "nodeSelector": {PRODUCT_LABEL: resolved.gpu_product} | scheduling.get("nodeSelector", {}),
            "tolerations": tolerations(spec, resolved),
            "affinity": scheduling.get("affinity"),
            "topologySpreadConstraints": [
                {"labelSelector": {"matchLabels": engine_selector(name)}} | constraint
                for constraint in scheduling.get("topologySpreadConstraints", [])
            ],
            "priorityClassName": scheduling.get("priorityClassName"),
            "schedulerName": scheduling.get("schedulerName"),
            "runtimeClassName": scheduling.get("runtimeClassName"),
        },
    }


def _metadata(role: str, name: str, revision: str, spec: Spec, resolved: Resolved, speculation: Speculation) -> dict[str, Any]:
    """Returns labels and annotations. Our labels override the user's; the user's annotations override ours.

    So users can set ``prometheus.io/scrape: "false"``.
    """
    written = as_manifest(spec.pod_template.metadata)
    labels = child_labels(name) | {LABEL_REVISION: revision, LABEL_BLOCK_SIZE: speculation.label(), LABEL_ROLE: role}
    scrape = {"prometheus.io/scrape": "true", "prometheus.io/port": str(resolved.port), "prometheus.io/path": "/metrics"}
    return {
        "labels": written.get("labels", {}) | labels,
        "annotations": (scrape if role == ROLE_ENGINE else {}) | written.get("annotations", {}),
    }


def tolerations(spec: Spec, resolved: Resolved) -> list[dict[str, Any]]:
    """Returns the user's tolerations and ours. By convention, the taint of accelerator nodes has the name of the resource."""
    ours = {"key": resolved.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}
    users = [as_manifest(toleration) for toleration in spec.scheduling.tolerations]
    return [ours, *(toleration for toleration in users if toleration != ours)]

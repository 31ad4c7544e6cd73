"""The PodDisruptionBudget of one deployment: how many of its pods may be evicted at a time."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.names import child_labels
from dflash_controller.render.selectors import all_pods


def pod_disruption_budget(name: str, namespace: str) -> dict[str, Any]:
    """One eviction at a time over all revisions, whatever the rollout allows.

    For multi-node replicas a budget over leaders and workers together behaves group-wise (measured with LeaderWorkerSet 0.10).
    A pod that is not Ready serves nobody and may always be evicted, or it would block a drain for ever.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace, "labels": child_labels(name)},
        "spec": {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": all_pods(name)},
    }

"""The PodDisruptionBudget of one deployment: how many of its pods may be evicted at a time."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.names import child_labels
from dflash_controller.render.selectors import all_pods


def pod_disruption_budget(name: str, namespace: str) -> dict[str, Any]:
    """Returns a budget of one eviction at a time over all revisions, independent of the rollout's own limits.

    For multi-node replicas a budget over leaders and workers together works per group (measured with LeaderWorkerSet 0.10).
    A pod that is not Ready serves no requests and may always be evicted. Otherwise it would block a drain for ever.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace, "labels": child_labels(name)},
        "spec": {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": all_pods(name)},
    }

"""What may happen to the pods of one deployment from outside: evictions and connections."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.names import (
    HTTP_PORT_NAME,
    LABEL_DEPLOYMENT,
    LABEL_ROLE,
    ROLE_ENGINE,
    ROLE_WORKER,
    child_labels,
)


def _all_pods(name: str) -> dict[str, Any]:
    """Selects the engine pods of every revision, the workers of multi-node replicas too, and nothing else that carries the label."""
    return {
        "matchLabels": {LABEL_DEPLOYMENT: name},
        "matchExpressions": [{"key": LABEL_ROLE, "operator": "In", "values": [ROLE_ENGINE, ROLE_WORKER]}],
    }


def pod_disruption_budget(name: str, namespace: str) -> dict[str, Any]:
    """One eviction at a time over all revisions, whatever the rollout allows.

    For multi-node replicas a budget over leaders and workers together behaves group-wise (measured with LeaderWorkerSet 0.10).
    A pod that is not Ready serves nobody and may always be evicted, or it would block a drain for ever.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace, "labels": child_labels(name)},
        "spec": {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": _all_pods(name)},
    }


def network_policy(name: str, namespace: str, *, multi_node: bool) -> dict[str, Any]:
    """Admits anybody to the serving port, and the pods of one deployment to each other where a replica spans nodes.

    Clients, the operator and Prometheus all use the serving port. No source is named for it: a Service of type NodePort or
    LoadBalancer brings traffic from addresses outside the cluster. Every other port of the engine (rendezvous, NCCL) is closed.
    The port is named, not numbered, so that one policy fits two revisions with different ports.
    """
    ingress: list[dict[str, Any]] = [{"ports": [{"port": HTTP_PORT_NAME, "protocol": "TCP"}]}]
    if multi_node:
        ingress.append({"from": [{"podSelector": _all_pods(name)}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace, "labels": child_labels(name)},
        "spec": {"podSelector": _all_pods(name), "policyTypes": ["Ingress"], "ingress": ingress},
    }

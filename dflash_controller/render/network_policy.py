"""The NetworkPolicy of one deployment: who may connect to its engine pods."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.names import HTTP_PORT_NAME, child_labels
from dflash_controller.render.selectors import all_pods


def network_policy(name: str, namespace: str, *, multi_node: bool) -> dict[str, Any]:
    """Returns a policy that allows any source on the serving port, and all ports between the pods of one multi-node deployment.

    Clients, the operator and Prometheus all use the serving port. It is open to any source, because a Service of type NodePort or
    LoadBalancer passes traffic from addresses outside the cluster. Every other port of the engine (rendezvous, NCCL) is closed.
    The port is referred to by name, so that one policy fits revisions with different ports.
    """
    ingress: list[dict[str, Any]] = [{"ports": [{"port": HTTP_PORT_NAME, "protocol": "TCP"}]}]
    if multi_node:
        ingress.append({"from": [{"podSelector": all_pods(name)}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace, "labels": child_labels(name)},
        "spec": {"podSelector": all_pods(name), "policyTypes": ["Ingress"], "ingress": ingress},
    }

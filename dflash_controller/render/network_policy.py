"""The NetworkPolicy of one deployment: who may connect to its engine pods."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.names import HTTP_PORT_NAME, child_labels
from dflash_controller.model.fetch_progress import PORT as PROGRESS_PORT
from dflash_controller.render.selectors import all_pods


def network_policy(name: str, namespace: str, *, multi_node: bool, fetches: bool) -> dict[str, Any]:
    """Returns a policy that allows any source on the serving port, and all ports between the pods of one multi-node deployment.

    Clients, the operator and Prometheus all use the serving port. It is open to any source, because a Service of type NodePort or
    LoadBalancer passes traffic from addresses outside the cluster. Every other port of the engine (rendezvous, NCCL) is closed.
    The port is referred to by name, so that one policy fits revisions with different ports.

    With ``fetches``, pods have an init container whose progress the operator reads. Its port is a number, because network plugins look for
    names only among the containers that run with the pod. It answers byte counts, and nothing listens there once the engine runs.
    """
    ports: list[dict[str, Any]] = [{"port": HTTP_PORT_NAME, "protocol": "TCP"}]
    if fetches:
        ports.append({"port": PROGRESS_PORT, "protocol": "TCP"})
    ingress: list[dict[str, Any]] = [{"ports": ports}]
    if multi_node:
        ingress.append({"from": [{"podSelector": all_pods(name)}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace, "labels": child_labels(name)},
        "spec": {"podSelector": all_pods(name), "policyTypes": ["Ingress"], "ingress": ingress},
    }

"""Admission webhooks that are down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from testbed.cluster import Cluster


@contextmanager
def webhook_down(cluster: Cluster, namespace: str, *, group: str, resource: str) -> Iterator[None]:
    """An admission webhook that nobody answers, for one kind in this namespace."""
    path, name = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", f"down-{namespace}"
    hook = {
        "name": "down.example.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 1,
        "clientConfig": {"url": "https://127.0.0.1:9/validate"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": [resource]}],
    }
    cluster.api.request("POST", path, {"kind": "ValidatingWebhookConfiguration", "metadata": {"name": name}, "webhooks": [hook]})
    try:
        yield
    finally:
        cluster.api.delete(f"{path}/{name}")

"""Kinds that a healthy cluster may lack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.waiting import wait_until
from tests.cluster.test_serving import manifest, ready
from tests.conftest import Kubectl, StartOperator

POD_MONITOR_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture
def pod_monitors(cluster: Cluster) -> Iterator[None]:
    """A cluster that serves PodMonitor, with a schema that accepts everything."""
    cluster.apply_yaml(POD_MONITOR_CRD)
    cluster.wait_for_crds()
    yield
    cluster.kubectl("delete", "crd", "podmonitors.monitoring.coreos.com")


def test_a_pod_monitor_is_made_where_the_kind_exists(pod_monitors: None, start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest())
    ready(kubectl)
    monitor = json.loads(kubectl("get", "podmonitors.monitoring.coreos.com", "chat", "-o", "json"))
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "http"
    assert monitor["metadata"]["ownerReferences"][0]["name"] == "chat"
    kubectl("delete", "podmonitors.monitoring.coreos.com", "chat")
    wait_until(lambda: json.loads(kubectl("get", "podmonitors.monitoring.coreos.com", "-o", "json"))["items"], "the PodMonitor")

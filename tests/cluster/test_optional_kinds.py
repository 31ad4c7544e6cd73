"""Kinds that a healthy cluster may lack."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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


@pytest.fixture
def no_right_to_list_them(cluster: Cluster, rights: None, pod_monitors: None) -> Iterator[Callable[[], None]]:
    """The operator may do nothing with PodMonitors, until the function is called."""
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/dflash-system:dflash-operator"
    whole = cluster.api.get(role)["rules"]

    def grant() -> None:
        cluster.api.request("PATCH", role, {"rules": whole})

    cluster.api.request("PATCH", role, {"rules": [rule for rule in whole if "podmonitors" not in rule["resources"]]})
    yield grant
    grant()


def test_a_kind_that_may_not_be_listed_is_left_out_and_comes_back_without_a_restart(
    no_right_to_list_them: Callable[[], None], start_operator: StartOperator, kubectl: Kubectl
) -> None:
    operator = start_operator()
    kubectl("apply", "-f", "-", input=manifest())
    ready(kubectl)
    assert 'dflash_optional_kind_unavailable{kind="PodMonitor"} 1.0' in operator.metrics()
    no_right_to_list_them()
    wait_until(lambda: json.loads(kubectl("get", "podmonitors.monitoring.coreos.com", "-o", "json"))["items"], "the PodMonitor", 90)
    assert 'dflash_optional_kind_unavailable{kind="PodMonitor"} 0.0' in operator.metrics()

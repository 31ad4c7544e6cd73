"""Service, PodDisruptionBudget, NetworkPolicy, ServiceAccount and PodMonitor."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.names import child_labels
from dflash_controller.render.network_policy import network_policy
from tests.support.render_inputs import NAMESPACE, deployment, pod_templates, rendered

TWO_NODES: dict[str, Any] = {"parallelism": {"tensor": 16, "nodes": 2}}


def by_kind(obj: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {manifest["kind"]: manifest for manifest in rendered(obj)}


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(expression["key"]) in expression["values"] for expression in selector.get("matchExpressions", [])
    )


def role_labels(obj: dict[str, Any]) -> dict[str, dict[str, str]]:
    templates = pod_templates(rendered(obj)[-1])
    return {role: template["metadata"]["labels"] for role, template in templates.items()}


def test_every_child_is_found_by_its_labels_and_owned_by_nobody_yet() -> None:
    for manifest in rendered(deployment(**TWO_NODES)):
        assert child_labels("qwen").items() <= manifest["metadata"]["labels"].items()
        assert manifest["metadata"]["namespace"] == NAMESPACE
        assert "ownerReferences" not in manifest["metadata"]


def test_names() -> None:
    names = {kind: manifest["metadata"]["name"] for kind, manifest in by_kind(deployment(**TWO_NODES)).items()}
    workload = names.pop("LeaderWorkerSet")
    assert names == {
        "Service": "qwen",
        "PodDisruptionBudget": "qwen",
        "NetworkPolicy": "qwen",
        "PodMonitor": "qwen",
        "ServiceAccount": "qwen-engine",
    }
    assert workload not in names.values(), "a Service of the workload's name would take the place of its headless one"


def test_service_and_monitor_select_leaders_only() -> None:
    children, labels = by_kind(deployment(**TWO_NODES)), role_labels(deployment(**TWO_NODES))
    for selector in ({"matchLabels": children["Service"]["spec"]["selector"]}, children["PodMonitor"]["spec"]["selector"]):
        assert selects(selector, labels["engine"])
        assert not selects(selector, labels["worker"])


def test_budget_and_policy_select_workers_too_but_no_other_pod_of_the_deployment() -> None:
    children, labels = by_kind(deployment(**TWO_NODES)), role_labels(deployment(**TWO_NODES))
    for selector in (children["PodDisruptionBudget"]["spec"]["selector"], children["NetworkPolicy"]["spec"]["podSelector"]):
        assert all(selects(selector, labels[role]) for role in ("engine", "worker"))
        assert not selects(selector, child_labels("qwen"))
        assert not selects(selector, labels["engine"] | {"serving.dflash.io/deployment": "other"})


def test_one_pod_at_a_time_may_be_evicted_and_a_broken_one_always() -> None:
    spec = by_kind(deployment(rollout={"maxUnavailable": 3}))["PodDisruptionBudget"]["spec"]
    assert spec["maxUnavailable"] == 1
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_policy_opens_the_serving_port_to_all_and_the_rest_to_the_group_only() -> None:
    single, multi = (by_kind(obj)["NetworkPolicy"]["spec"] for obj in (deployment(), deployment(**TWO_NODES)))
    port = {"ports": [{"port": "http", "protocol": "TCP"}]}
    assert single["ingress"] == [port]
    assert multi["ingress"] == [port, {"from": [{"podSelector": multi["podSelector"]}]}]
    assert single["policyTypes"] == ["Ingress"]
    fetched = network_policy("chat", "models", multi_node=False, fetches=True)["spec"]["ingress"]
    assert fetched == [{"ports": [*port["ports"], {"port": 8090, "protocol": "TCP"}]}], "its progress is read"


def test_the_service_port_is_the_engines_and_its_live_fields_are_the_users() -> None:
    spec = by_kind(deployment())["Service"]["spec"]
    assert (spec["type"], spec["ports"][0]["port"], spec["ports"][0]["targetPort"]) == ("ClusterIP", 30000, "http")
    written = by_kind(deployment(service={"port": 9000, "type": "NodePort", "annotations": {"a": "b"}}))["Service"]
    assert (written["spec"]["type"], written["spec"]["ports"][0]["port"]) == ("NodePort", 9000)
    assert written["metadata"]["annotations"] == {"a": "b"}


def test_engines_get_no_token_by_default() -> None:
    assert by_kind(deployment())["ServiceAccount"]["automountServiceAccountToken"] is False

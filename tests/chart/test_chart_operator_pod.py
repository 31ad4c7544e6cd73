"""The pods of the operator: security, environment, files, and who reaches them."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from dflash_controller.runtime.settings import Settings
from hack.chart_reference import ELSEWHERE
from tests.chart.rendering import CHART, MONITORING, Manifest, manifests, of_kind, operator_pod
from tests.support.releases import default_release

RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
FILES = "/etc/dflash/prometheus/"


def container(values: dict[str, Any] | None = None) -> Manifest:
    [found] = operator_pod(values)["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(values: dict[str, Any] | None = None) -> dict[str, str]:
    """Variables of the operator container; those taken from the pod have a stand-in."""
    fields = {"POD_IPS": "10.1.2.3"}
    return {variable["name"]: variable.get("value", fields.get(variable["name"], "pod")) for variable in container(values)["env"]}


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the operator makes of its environment; every file the chart mounts can be read."""
    readable = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path).startswith((FILES, "/var/run/secrets/")) or readable(path, mode))
    return lambda values: Settings.from_environment(environment(values))


def test_both_pods_meet_the_restricted_standard() -> None:
    [test] = of_kind(manifests(), "Pod")
    for spec in (operator_pod()["spec"], test["spec"]):
        [one] = spec["containers"]
        assert (spec["securityContext"], one["securityContext"]) == (RESTRICTED_POD, RESTRICTED)
        assert one["resources"]["requests"]
        assert "memory" in one["resources"]["limits"]


def test_two_replicas_that_keep_apart_and_are_not_evicted_together() -> None:
    [deployment] = of_kind(manifests(), "Deployment")
    assert deployment["spec"]["replicas"] == 2
    spec = deployment["spec"]["template"]["spec"]
    selector = deployment["spec"]["selector"]
    [preferred] = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["podAffinityTerm"] == {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    [spread] = spec["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["labelSelector"]) == ("topology.kubernetes.io/zone", selector)
    [budget] = of_kind(manifests(), "PodDisruptionBudget")
    assert budget["spec"] == {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": selector}


def test_the_test_pod_has_the_classes_of_the_operators() -> None:
    values = {"priorityClassName": "system-cluster-critical", "runtimeClassName": "gvisor"}
    [test] = of_kind(manifests(values), "Pod")
    for spec in (operator_pod(values)["spec"], test["spec"]):
        assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("system-cluster-critical", "gvisor")


def test_own_affinity_replaces_the_default() -> None:
    assert operator_pod({"affinity": {"nodeAffinity": {}}})["spec"]["affinity"] == {"nodeAffinity": {}}


def test_the_operator_understands_its_default_environment(settings_of: Any) -> None:
    settings = settings_of({})
    image = operator_pod()["spec"]["containers"][0]["image"]
    own = Settings(pod_name="pod", lease_namespace="pod", lease_name="dflash-operator", http_port=8080, pod_ips=("10.1.2.3",))
    assert settings == own.model_copy(update={"fetch_image": image})


def test_weights_are_fetched_with_the_operators_image_where_engine_pods_can_pull_it(settings_of: Any) -> None:
    digest = "sha256:" + "0" * 64
    assert settings_of({"image": {"registry": "r.example", "digest": digest}}).fetch_image.endswith(f"@{digest}")
    for values, expected in (
        ({"imagePullSecrets": [{"name": "registry"}]}, None),
        ({"imagePullSecrets": [{"name": "registry"}], "settings": {"fetchImage": "mirror/fetch:1"}}, "mirror/fetch:1"),
        ({"settings": {"fetchImage": ""}}, None),
    ):
        assert settings_of(values).fetch_image == expected


def test_every_setting_of_the_operator_can_be_set(settings_of: Any) -> None:
    chosen: dict[str, Any] = {
        "workers": 3,
        "resyncSeconds": 61,
        "scrapeSeconds": 1.5,
        "metricsWindowSeconds": 62,
        "warmUpSeconds": 0,
        "tuningSeconds": 63,
        "tuningSlotSeconds": 65,
        "learnedRecordSeconds": 64,
        "sglangVersion": default_release("sglang"),
        "vllmVersion": default_release("vllm"),
        "sglangImage": "a:{version}",
        "vllmImage": "b:{version}",
        "fetchImage": "c:1",
        "allowedHostPaths": ["/a", "/b"],
        "huggingFaceSeconds": 66,
        "logFormat": "text",
        "logLevel": "DEBUG",
        "leaderElection": False,
        "leaseName": "lease",
        "leaseDurationSeconds": 30,
        "renewDeadlineSeconds": 20,
        "retryPeriodSeconds": 5,
    }
    prometheus = {"url": "http://p:9090", "tenant": "t", "matcher": {"a": "b", "c": "d"}}
    values = {"settings": chosen, "prometheus": prometheus, "replicaCount": 1, "watchNamespaces": ["x", "123"]}
    values["metrics"] = {"port": 9000, "replicaLabels": ["ha_pair", "site"]}
    settings = settings_of(values)
    offered = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]["properties"]
    assert set(offered) == set(chosen)
    snake = {"".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name): value for name, value in chosen.items()}
    files = {name for name in Settings.model_fields if name.endswith("_file")}
    names = {f"prometheus_{name}" for name in ("url", "tenant", "matcher", "replica_labels")}
    assert set(snake) | ELSEWHERE | files | names == set(Settings.model_fields)
    for name, value in snake.items():
        assert getattr(settings, name) == (tuple(value) if isinstance(value, list) else value), name
    assert (settings.prometheus_url, settings.prometheus_tenant) == ("http://p:9090", "t")
    assert settings.prometheus_matcher == {"a": "b", "c": "d"}
    assert settings.prometheus_replica_labels == ("ha_pair", "site")
    assert (settings.namespaces, settings.http_port) == (("x", "123"), 9000)


@pytest.mark.parametrize(
    ("values", "endpoint"),
    [
        ({}, "https://huggingface.co"),
        ({"huggingFace": {"endpoint": "http://mirror.example.com:8080/hf"}}, "http://mirror.example.com:8080/hf"),
        ({"huggingFace": {"endpoint": "off"}}, "off"),
        ({"huggingFace": {"endpoint": False}}, "off"),
    ],
)
def test_the_model_hub_is_a_value_and_off_may_be_written_without_quotes(values: dict[str, Any], endpoint: str, settings_of: Any) -> None:
    assert settings_of(values).hugging_face_endpoint == endpoint


@pytest.mark.parametrize(
    ("endpoint", "port"), [("https://huggingface.co", 443), ("http://mirror:8080/hf", 8080), ("http://m", 80), ("off", None)]
)
def test_a_closed_egress_leaves_the_way_to_the_model_hub(endpoint: str, port: int | None) -> None:
    values = {"huggingFace": {"endpoint": endpoint}, "networkPolicy": {"egress": {"enabled": True, "apiServerPorts": [6443]}}}
    [policy] = of_kind(manifests(values), "NetworkPolicy")
    ports = [one["port"] for rule in policy["spec"]["egress"] for one in rule.get("ports", [])]
    assert ports == [53, 53, 6443, *([port] if port else [])]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"bearerToken": {"secretName": "s", "key": "k"}}, {"bearer_token": ("secret", "s", "k", "token")}),
        ({"basicAuth": {"secretName": "s", "key": "k"}}, {"basic_auth": ("secret", "s", "k", "basic-auth")}),
        ({"tls": {"caConfigMapName": "s", "caKey": "k"}}, {"ca": ("configMap", "s", "k", "ca.crt")}),
        (
            {"bearerToken": {"secretName": "a"}, "tls": {"caSecretName": "b", "clientSecretName": "c"}},
            {
                "bearer_token": ("secret", "a", "token", "token"),
                "ca": ("secret", "b", "ca.crt", "ca.crt"),
                "cert": ("secret", "c", "tls.crt", "tls.crt"),
                "key": ("secret", "c", "tls.key", "tls.key"),
            },
        ),
    ],
    ids=["bearer", "basic", "authority", "mutual-tls"],
)
def test_prometheus_credentials_are_files_where_the_operator_looks(
    chosen: dict[str, Any], expected: dict[str, tuple[str, ...]], settings_of: Any
) -> None:
    values = {"prometheus": {"url": "https://p", **chosen}}
    settings, spec = settings_of(values), operator_pod(values)["spec"]
    [volume] = [one for one in spec["volumes"] if one["name"] == "prometheus"]
    [mount] = [one for one in container(values)["volumeMounts"] if one["name"] == "prometheus"]
    assert mount == {"name": "prometheus", "mountPath": FILES.rstrip("/"), "readOnly": True}
    mounted = {}
    for source in volume["projected"]["sources"]:
        [(kind, content)] = source.items()
        [item] = content["items"]
        mounted[FILES + item["path"]] = (kind, content["name"], item["key"], item["path"])
    told = {name: getattr(settings, f"prometheus_{name}_file") for name in ("bearer_token", "basic_auth", "ca", "cert", "key")}
    assert {name: mounted[path] for name, path in told.items() if path} == expected
    assert len(mounted) == len(expected)


def test_the_own_token_needs_no_mount(settings_of: Any) -> None:
    values = {"prometheus": {"url": "https://p", "bearerToken": {"serviceAccount": True}}}
    assert settings_of(values).prometheus_bearer_token_file == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert [one["name"] for one in operator_pod(values)["spec"]["volumes"]] == ["tmp"]


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, "dflash-operator:0.1.0"),
        ({"image": {"tag": "next"}}, "dflash-operator:next"),
        (
            {"image": {"repository": "r.example:5000/a/b", "digest": f"sha256:{'0' * 64}", "tag": "x"}},
            f"r.example:5000/a/b@sha256:{'0' * 64}",
        ),
        ({"global": {"imageRegistry": "g.example"}}, "g.example/dflash-operator:0.1.0"),
        ({"global": {"imageRegistry": "g.example"}, "image": {"registry": "i.example"}}, "i.example/dflash-operator:0.1.0"),
    ],
    ids=["default", "tag", "digest", "global", "registry"],
)
def test_image(values: dict[str, Any], image: str) -> None:
    [test] = of_kind(manifests(values), "Pod")
    assert container(values)["image"] == test["spec"]["containers"][0]["image"] == image


def test_pull_secrets_come_once() -> None:
    values = {"global": {"imagePullSecrets": ["a", {"name": "b"}]}, "imagePullSecrets": [{"name": "b"}, {"name": "c"}]}
    [test] = of_kind(manifests(values), "Pod")
    assert operator_pod(values)["spec"]["imagePullSecrets"] == test["spec"]["imagePullSecrets"] == [{"name": name} for name in "abc"]


def test_the_service_and_the_policy_choose_the_operators_pods_and_not_the_test() -> None:
    [service] = of_kind(manifests(), "Service")
    [policy] = of_kind(manifests(), "NetworkPolicy")
    [test] = of_kind(manifests(), "Pod")
    selector = service["spec"]["selector"].items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() == selector
    assert selector <= operator_pod()["metadata"]["labels"].items()
    assert not selector <= test["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] == container()["ports"][0]["name"]


def test_the_test_pod_asks_the_service() -> None:
    [test] = of_kind(manifests({"metrics": {"port": 9000}}), "Pod")
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    program, url = test["spec"]["containers"][0]["args"]
    compile(program, "test", "exec")
    assert url == "http://dflash-operator-metrics.dflash-system.svc:9000"


def test_only_the_metrics_port_is_open_and_the_test_may_always_come() -> None:
    [policy] = of_kind(manifests(), "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}]}]
    values = {"networkPolicy": {"metricsFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}}
    [policy] = of_kind(manifests(values), "NetworkPolicy")
    [test] = of_kind(manifests(values), "Pod")
    [_, peer] = policy["spec"]["ingress"][0]["from"]
    assert peer["podSelector"]["matchLabels"].items() <= test["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("url", "port"), [("http://p:9090/x", 9090), ("https://p", 443), ("http://p/x", 80), ("https://[fd00::1]:9091", 9091), ("", None)]
)
def test_a_closed_egress_leaves_the_way_to_prometheus(url: str, port: int | None) -> None:
    values = {"prometheus": {"url": url}, "huggingFace": {"endpoint": "off"}, "networkPolicy": {"egress": {"enabled": True}}}
    [policy] = of_kind(manifests(values), "NetworkPolicy")
    ports = [one["port"] for rule in policy["spec"]["egress"] for one in rule.get("ports", [])]
    assert ports == [53, 53, 443, 6443, *([port] if port else [])]
    assert {"serving.dflash.io/role": "engine"} in [
        to["podSelector"]["matchLabels"] for rule in policy["spec"]["egress"] for to in rule.get("to", [])
    ]


def test_pods_are_annotated_for_scraping_where_no_monitor_is_made() -> None:
    plain = operator_pod()["metadata"]["annotations"]
    assert plain["prometheus.io/scrape"] == "true"
    assert plain["prometheus.io/port"] == str(container()["ports"][0]["containerPort"])
    assert "prometheus.io/scrape" not in operator_pod(apis=MONITORING)["metadata"]["annotations"]
    off = {"metrics": {"serviceMonitor": {"enabled": False}}}
    assert operator_pod(off, apis=MONITORING)["metadata"]["annotations"]["prometheus.io/scrape"] == "true"


def test_the_operator_knows_the_addresses_of_its_own_pod() -> None:
    """Engines listen on the families of the pod network; only ``status.podIPs`` has both of a dual-stack pod."""
    (found,) = [entry for entry in container()["env"] if entry["name"] == "POD_IPS"]
    assert found["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIPs"}}

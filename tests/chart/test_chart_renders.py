"""Every way to set the values renders to objects that every supported Kubernetes release takes, unknown fields refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.chart.kinds import problems
from tests.chart.rendering import CHART, KUBERNETES, MONITORING, NAMESPACE, helm, manifests, of_kind, parsed, render

PORTS = [{"port": 9090, "protocol": "TCP"}]
FLAGS = ("--kube-version", KUBERNETES[-1], "--values", "-")
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "rights-and-definition-only": {"deployment": {"create": False}},
    "one-replica": {"replicaCount": 1, "podDisruptionBudget": {"enabled": False}, "settings": {"leaderElection": False}},
    "some-namespaces": {"watchNamespaces": ["team-a", "team-b"]},
    "without-cluster-rights": {
        "watchNamespaces": ["team-a"],
        "crds": {"install": False},
        "rbac": {"readNodes": False, "aggregateRoles": False},
        "admissionPolicy": {"enabled": False},
    },
    "policy-that-warns": {"watchNamespaces": ["team-a"], "admissionPolicy": {"validationActions": ["Warn", "Audit"]}},
    "rights-made-elsewhere": {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "dflash"}},
    "private-registry": {
        "global": {"imageRegistry": "registry.example", "imagePullSecrets": ["shared", {"name": "second"}]},
        "image": {"digest": f"sha256:{'a' * 64}", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "own"}],
    },
    "prometheus-bearer-token": {
        "prometheus": {
            "url": "https://thanos.monitoring:9091",
            "tenant": "team-a",
            "matcher": {"cluster": "eu-1", "replica": "a"},
            "bearerToken": {"secretName": "thanos"},
            "tls": {"caConfigMapName": "service-ca", "caKey": "service-ca.crt"},
        }
    },
    "prometheus-basic-auth": {"prometheus": {"url": "http://mimir", "basicAuth": {"secretName": "mimir", "key": "userpass"}}},
    "prometheus-mutual-tls": {"prometheus": {"url": "https://mimir", "tls": {"caSecretName": "ca", "clientSecretName": "client"}}},
    "prometheus-openshift": {"prometheus": {"url": "https://thanos-querier", "bearerToken": {"serviceAccount": True}}},
    "settings": {
        "settings": {
            "workers": 16,
            "resyncSeconds": 0.5,
            "allowedHostPaths": ["/models", "/data"],
            "vllmImage": "registry.example/vllm:{version}",
            "logFormat": "text",
            "leaseName": "another",
        }
    },
    "scheduling": {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"}]}]
                }
            }
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "dflash-operator"}},
            }
        ],
        "priorityClassName": "system-cluster-critical",
        "runtimeClassName": "gvisor",
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": "50%"}},
        "podDisruptionBudget": {"maxUnavailable": "50%"},
    },
    "extras": {
        "commonLabels": {"team": "inference"},
        "commonAnnotations": {"owner": "inference@example.com"},
        "podLabels": {"sidecar.istio.io/inject": "false"},
        "podAnnotations": {"example.com/a": "b"},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraEnvFrom": [{"secretRef": {"name": "proxy", "optional": True}}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn"}},
    },
    "network-closed": {
        "prometheus": {"url": "http://prometheus.monitoring:9090"},
        "networkPolicy": {
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "egress": {
                "enabled": True,
                "apiServerPorts": [16443],
                "extra": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": PORTS}],
            },
        },
    },
    "monitoring-chosen-by-labels": {
        "metrics": {
            "serviceMonitor": {
                "namespace": "monitoring",
                "labels": {"release": "kube-prometheus-stack"},
                "scrapeTimeout": "10s",
                "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
                "metricRelabelings": [{"action": "drop", "sourceLabels": ["__name__"], "regex": "python_.*"}],
            },
            "enginePodMonitor": {"enabled": True, "labels": {"release": "kube-prometheus-stack"}},
        },
        "prometheusRule": {"labels": {"release": "kube-prometheus-stack"}, "alertLabels": {"team": "inference"}},
        "dashboards": {"namespace": "monitoring", "folder": "LLM", "grafanaOperator": {"instanceSelector": {"grafana": "main"}}},
    },
    "monitoring-off": {
        "metrics": {"scrapeAnnotations": False, "serviceMonitor": {"enabled": False}},
        "prometheusRule": {"enabled": False},
        "dashboards": {"enabled": False},
        "networkPolicy": {"enabled": False},
    },
}
NEEDS_PODMONITOR = {case for case, values in CASES.items() if "enginePodMonitor" in values.get("metrics", {})}
"""Refused where the kind is not served."""


@pytest.mark.parametrize(
    ("case", "apis"), [(case, apis) for case in CASES for apis in ((), MONITORING) if apis or case not in NEEDS_PODMONITOR]
)
def test_every_release_of_kubernetes_takes_every_object(case: str, apis: tuple[str, ...]) -> None:
    rendered = manifests(CASES[case], apis=apis)
    found = {
        f"{manifest['kind']} {manifest['metadata']['name']} on {version}: {problem}"
        for version in KUBERNETES
        for manifest in rendered
        for problem in problems(manifest, version)
    }
    assert found == set()
    assert len(rendered) >= 4


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_objects_do_not_depend_on_the_release(version: str) -> None:
    assert manifests(version=version) == manifests()


def test_the_strict_check_can_fail() -> None:
    [deployment] = of_kind(manifests(), "Deployment")
    assert problems({**deployment, "spec": {**deployment["spec"], "replica": 2}}, KUBERNETES[0])
    [monitor] = of_kind(manifests(apis=MONITORING), "ServiceMonitor")
    assert problems({**monitor, "spec": {**monitor["spec"], "endpoint": []}}, KUBERNETES[0])


@pytest.mark.parametrize("case", CASES)
def test_objects_have_unique_names_the_common_labels_and_a_namespace(case: str) -> None:
    rendered = manifests(CASES[case], apis=MONITORING)
    names = [(manifest["kind"], manifest["metadata"].get("namespace"), manifest["metadata"]["name"]) for manifest in rendered]
    assert len(names) == len(set(names))
    for manifest in rendered:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/instance"] == "dflash-operator"
        cluster_wide = manifest["kind"].startswith(("ClusterRole", "ValidatingAdmission")) or manifest["kind"] == "CustomResourceDefinition"
        assert ("namespace" in manifest["metadata"]) != cluster_wide


def test_lint_finds_nothing() -> None:
    for case, values in CASES.items():
        done = helm("lint", "--strict", str(CHART), *FLAGS, input=yaml.safe_dump(values))
        assert done.returncode == 0, f"{case}: {done.stdout}"


def test_an_older_kubernetes_is_refused() -> None:
    assert "incompatible with Kubernetes v1.29" in render({}, version="1.29").stderr


def test_common_labels_and_annotations_reach_every_object_and_take_none_of_ours() -> None:
    values = {
        **CASES["extras"],
        "commonLabels": {"team": "inference", "app.kubernetes.io/name": "mine", "app.kubernetes.io/managed-by": "me"},
    }
    for manifest in manifests(values, apis=MONITORING):
        assert manifest["metadata"]["labels"]["team"] == "inference"
        assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert manifest["metadata"]["annotations"]["owner"] == "inference@example.com"
    [deployment] = of_kind(manifests(values), "Deployment")
    assert deployment["spec"]["selector"]["matchLabels"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_the_definition_is_the_generated_one_and_is_kept_on_uninstall() -> None:
    [crd] = of_kind(manifests(), "CustomResourceDefinition")
    [generated] = parsed((CHART / "files" / "crd.yaml").read_text())
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert (crd["metadata"]["name"], crd["spec"]) == (generated["metadata"]["name"], generated["spec"])


def test_keeping_and_installing_the_definition_can_be_switched_off() -> None:
    [crd] = of_kind(manifests({"crds": {"keep": False, "annotations": {"a": "b"}}}), "CustomResourceDefinition")
    assert crd["metadata"]["annotations"] == {"a": "b"}
    assert not of_kind(manifests({"crds": {"install": False}}), "CustomResourceDefinition")


def test_without_a_deployment_nothing_of_the_process_remains() -> None:
    kinds = {manifest["kind"] for manifest in manifests({"deployment": {"create": False}, "dashboards": {"enabled": False}})}
    rights = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    assert kinds == {"CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} | rights


def test_two_releases_share_no_object() -> None:
    """But the definition, which one of them brings."""

    def names(namespace: str) -> set[tuple[str, str | None, str]]:
        values = yaml.safe_dump({"watchNamespaces": ["shared"], "crds": {"install": False}})
        done = helm("template", "dflash-operator", str(CHART), "--namespace", namespace, *FLAGS, input=values)
        return {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in parsed(done.stdout)}

    assert names("one")
    assert names("one") & names("two") == set()


def test_the_release_name_alone_is_enough_where_it_holds_the_charts() -> None:
    names = {manifest["metadata"]["name"] for manifest in manifests() if manifest["kind"] == "Deployment"}
    assert names == {"dflash-operator"}
    done = render({}, release="prod")
    assert f"name: prod-dflash-operator\n  namespace: {NAMESPACE}" in done.stdout

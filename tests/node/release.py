"""What is installed on the real node: the operator by its chart, and a Prometheus that finds pods by their annotations."""

from __future__ import annotations

from typing import Any

import yaml

from testbed.cluster import Cluster
from testbed.operator_process import CHART
from testbed.prometheus import relabelling
from testbed.real_node.node_images import OPERATOR_REPOSITORY, PROMETHEUS
from testbed.real_node.runtime import NODE_DIRECTORY
from testbed.waiting import wait_until

OPERATOR_NAMESPACE = "dflash-system"
RELEASE = "dflash-operator"
MONITORING = "monitoring"
_RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


def install_operator(cluster: Cluster) -> None:
    """Installs the chart with two replicas in a namespace that enforces the restricted Pod Security Standard; both are ready."""
    cluster.kubectl("create", "namespace", OPERATOR_NAMESPACE)
    cluster.kubectl("label", "namespace", OPERATOR_NAMESPACE, _RESTRICTED)
    values = f"image.repository={OPERATOR_REPOSITORY},image.pullPolicy=Never,replicaCount=2"
    values += f",settings.allowedHostPaths={{{NODE_DIRECTORY}}}"
    values += f",prometheus.url=http://prometheus.{MONITORING}:9090"
    cluster.helm("install", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE, f"--set={values}", "--wait", "--timeout=240s")
    cluster.wait_for_crds()


def install_prometheus(cluster: Cluster) -> None:
    """Installs Prometheus in a namespace of its own and waits until it is ready."""
    cluster.kubectl("create", "namespace", MONITORING)
    cluster.kubectl("label", "namespace", MONITORING, _RESTRICTED)
    cluster.apply_yaml(_prometheus(), MONITORING)
    cluster.kubectl("rollout", "status", "deployment/prometheus", "-n", MONITORING, "--timeout=240s")


def ask_prometheus(cluster: Cluster, promql: str) -> list[dict[str, Any]]:
    """Returns the result of an instant query, through the API server's proxy."""
    path = f"/api/v1/namespaces/{MONITORING}/services/prometheus:9090/proxy/api/v1/query?query={promql}"
    result: list[dict[str, Any]] = cluster.api.get(path)["data"]["result"]
    return result


def wait_for_series(cluster: Cluster, promql: str, count: int) -> list[dict[str, Any]]:
    """Waits until a query has so many results. Returns them."""
    return wait_until(
        lambda: found if len(found := ask_prometheus(cluster, promql)) == count else None, f"{count} results of {promql}", 180, 0.5
    )


def _prometheus() -> list[dict[str, Any]]:
    configuration = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
        "scrape_configs": [
            {"job_name": "pods", "kubernetes_sd_configs": [{"role": "pod"}], "relabel_configs": relabelling()},
        ],
    }
    labels = {"app": "prometheus"}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "prometheus"}}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "test-prometheus"}, "rules": rules}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "test-prometheus"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "test-prometheus"},
        "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": MONITORING}],
    }
    files = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "prometheus"},
        "data": {"prometheus.yml": yaml.safe_dump(configuration)},
    }
    container = {
        "name": "prometheus",
        "image": PROMETHEUS,
        "args": ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/data", "--web.listen-address=:9090"],
        "ports": [{"name": "http", "containerPort": 9090}],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": "http"}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/prometheus"}, {"name": "data", "mountPath": "/data"}],
    }
    volumes = [{"name": "config", "configMap": {"name": "prometheus"}}, {"name": "data", "emptyDir": {}}]
    pod = {"serviceAccountName": "prometheus", "containers": [container], "volumes": volumes}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "prometheus"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
    ports = [{"name": "http", "port": 9090, "targetPort": "http"}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "prometheus"}, "spec": {"selector": labels, "ports": ports}}
    return [account, role, binding, files, deployment, service]

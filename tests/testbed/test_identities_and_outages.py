"""Who may do what, what is logged of it, and the API server going away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.api import ApiError
from testbed.audit import WRITE_VERBS, service_account_user
from testbed.cluster import Cluster, CommandError
from testbed.nodes import NodePool
from testbed.waiting import wait_until

POD_READER = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: pod-reader}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: pod-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: pod-reader}
subjects: [{kind: ServiceAccount, name: default}]
"""


def test_a_service_account_may_do_what_its_role_says_and_no_more(cluster: Cluster, namespace: str) -> None:
    cluster.apply_yaml(POD_READER, namespace)
    identity = cluster.service_account_kubeconfig(namespace, "default")
    assert cluster.kubectl("auth", "whoami", "-o", "name", kubeconfig=identity)
    assert cluster.kubectl("get", "pods", "-o", "name", kubeconfig=identity) == ""
    for refused in (("get", "secrets"), ("create", "configmap", "mine"), ("get", "pods", "--namespace", "default")):
        with pytest.raises(CommandError, match=r"(?i)forbidden: User \"" + service_account_user(namespace, "default")):
            cluster.kubectl(*refused, kubeconfig=identity)
    with pytest.raises(ApiError, match="404"):
        cluster.service_account_kubeconfig(namespace, "nobody")


def test_the_audit_log_counts_each_request_by_its_user(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl(
        "create", "rolebinding", "edit", "--clusterrole=edit", f"--serviceaccount={namespace}:default", "--namespace", namespace
    )
    identity = cluster.service_account_kubeconfig(namespace, "default")
    user = service_account_user(namespace, "default")
    before = cluster.audit_mark()
    cluster.kubectl("create", "configmap", "mine", kubeconfig=identity)
    between = cluster.audit_mark()
    cluster.kubectl("annotate", "configmap", "mine", "a=b", kubeconfig=identity)
    cluster.kubectl("get", "configmap", "mine", kubeconfig=identity)
    with pytest.raises(CommandError):
        cluster.kubectl("delete", "namespace", namespace, kubeconfig=identity)
    cluster.kubectl("annotate", "configmap", "mine", "a=c", "--overwrite", "--namespace", namespace)

    assert [event["verb"] for event in cluster.audit(before, user=user, verbs=WRITE_VERBS)] == ["create", "patch", "delete"]
    assert [event["responseStatus"]["code"] for event in cluster.audit(between, user=user, verbs=WRITE_VERBS)] == [200, 403]
    assert {event["objectRef"]["resource"] for event in cluster.audit(before, user=user, verbs={"create", "patch"})} == {"configmaps"}
    assert len(cluster.audit(before, user="kwok-admin", verbs={"patch"})) >= 1
    assert cluster.audit(cluster.audit_mark(), user=user) == []


@pytest.fixture(scope="module")
def fragile() -> Iterator[Cluster]:
    """A cluster whose API server may go away: kwok takes up to half a minute to find it again."""
    with Cluster(pools=[NodePool("cpu", 1, gpus=0)]) as running:
        yield running


def test_a_killed_api_server_comes_back_with_its_state_and_acts_at_once(fragile: Cluster) -> None:
    cluster, namespace = fragile, fragile.create_namespace()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "before"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    cluster.apply_yaml(pod, namespace)
    cluster.kubectl("wait", "pod/before", "--for=condition=Ready", "--namespace", namespace, "--timeout=60s")
    identity = cluster.service_account_kubeconfig(namespace, "default")

    cluster.control_plane.kill_apiserver()
    assert not cluster.api.is_ready()
    with pytest.raises(CommandError, match="refused"):
        cluster.kubectl("get", "pods")
    cluster.control_plane.start_apiserver()

    assert service_account_user(namespace, "default") in cluster.kubectl("auth", "whoami", kubeconfig=identity)
    cluster.apply_yaml({**pod, "metadata": {"name": "after"}}, namespace)
    cluster.kubectl("wait", "pod/after", "pod/before", "--for=condition=Ready", "--namespace", namespace, "--timeout=60s")
    addresses = [cluster.get("pod", name, "--namespace", namespace)["status"]["podIP"] for name in ("before", "after")]
    assert addresses[0] != addresses[1]


def test_a_paused_api_server_answers_nobody_and_goes_on(fragile: Cluster) -> None:
    fragile.control_plane.pause_apiserver()
    try:
        assert not fragile.api.is_ready()
        with pytest.raises(TimeoutError):
            fragile.api.request("GET", "/version", timeout=0.2)
    finally:
        fragile.control_plane.resume_apiserver()
    wait_until(fragile.api.is_ready, "the API server to go on")


def test_helm_installs_with_its_caches_in_the_cluster_directory(
    cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chart = tmp_path_factory.mktemp("chart")
    (chart / "templates").mkdir()
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: probe\nversion: 0.1.0\n")
    (chart / "templates" / "map.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}'}\n")
    cluster.helm("install", "first", str(chart), "--namespace", namespace)
    assert cluster.get("configmap", "first", "--namespace", namespace)["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    with pytest.raises(CommandError, match="cannot re-use a name"):
        cluster.helm("install", "first", str(chart), "--namespace", namespace)

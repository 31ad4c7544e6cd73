"""Nodes, scheduling and the annotations that steer pods and nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from testbed import stages
from testbed.cluster import Cluster
from testbed.nodes import GPU_RESOURCE, NodePool, node_manifests
from testbed.waiting import wait_until
from tests.conftest import Kubectl

MakePod = Callable[..., Callable[[], dict[str, Any]]]


@pytest.fixture
def make_pod(cluster: Cluster, namespace: str) -> MakePod:
    """Creates a pod that tolerates GPU nodes; returns a function that reads it."""

    def make(name: str, gpus: int = 0, tolerates: bool = True, grace_s: int = 30, **annotations: str) -> Callable[[], dict[str, Any]]:
        container = {"name": "engine", "image": "engine", "resources": {"limits": {GPU_RESOURCE: str(gpus)}}}
        cluster.apply_yaml(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "annotations": {key.replace("__", "/").replace("_", "-"): value for key, value in annotations.items()},
                },
                "spec": {
                    "containers": [container if gpus else {"name": "engine", "image": "engine"}],
                    "tolerations": [{"key": GPU_RESOURCE, "operator": "Exists"}] if tolerates else [],
                    "terminationGracePeriodSeconds": grace_s,
                },
            },
            namespace,
        )
        return lambda: cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")  # type: ignore[no-any-return]

    return make


def is_ready(pod: dict[str, Any]) -> bool:
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in pod["status"].get("conditions", ()))


def test_each_gpu_node_takes_eight_gpus_and_the_next_pod_waits(cluster: Cluster, make_pod: MakePod) -> None:
    gpu_nodes = [node for node in cluster.get("nodes")["items"] if GPU_RESOURCE in node["status"]["allocatable"]]
    whole = [make_pod(f"whole-{number}", gpus=8) for number in range(len(gpu_nodes))]
    placed = [wait_until(lambda read=read: is_ready(read()) and read(), "Ready") for read in whole]  # type: ignore[misc]
    assert len({pod["spec"]["nodeName"] for pod in placed}) == len(gpu_nodes)
    addresses = {pod["status"]["podIP"] for pod in placed}
    assert len(addresses) == len(gpu_nodes)
    assert all(address.startswith("127.") for address in addresses)

    one_more = make_pod("one-more", gpus=1)
    message = wait_until(lambda: one_more()["status"].get("conditions", [{}])[0].get("message"), "the scheduler's verdict")
    assert message.startswith("0/9 nodes are available: 9 Insufficient nvidia.com/gpu")


def test_gpu_nodes_are_labelled_and_keep_other_pods_away(cluster: Cluster, make_pod: MakePod) -> None:
    labels = cluster.get("node", "b200-0")["metadata"]["labels"]
    assert (labels["nvidia.com/gpu.product"], labels["nvidia.com/gpu.count"]) == ("NVIDIA-B200", "8")
    pod = make_pod("plain", tolerates=False)
    wait_until(lambda: is_ready(pod()), "Ready")
    assert pod()["spec"]["nodeName"] == "cpu-0"


def test_pools_number_their_networks_through_and_have_a_limit() -> None:
    nodes = list(node_manifests((NodePool("a", 2), NodePool("b", 1, gpus=0, resources={"rdma/ib": "8"})), slot=7))
    assert [node["spec"]["podCIDR"] for node in nodes] == ["127.7.0.0/24", "127.7.1.0/24", "127.7.2.0/24"]
    assert nodes[2]["status"]["capacity"]["rdma/ib"] == "8"
    assert "nvidia.com/gpu.product" not in nodes[2]["metadata"]["labels"]
    with pytest.raises(ValueError, match="256 nodes"):
        list(node_manifests((NodePool("a", 257),), slot=7))


def test_slow_start_keeps_a_running_pod_unready_for_its_time(make_pod: MakePod) -> None:
    pod = make_pod("slow", sim__ready_after="2")
    started = wait_until(lambda: pod()["status"].get("phase") == "Running" and time.monotonic(), "Running")
    assert not is_ready(pod())
    wait_until(lambda: is_ready(pod()), "Ready")
    assert 0.5 < time.monotonic() - started < 6


def test_readiness_follows_its_annotation(make_pod: MakePod, kubectl: Kubectl) -> None:
    pod = make_pod("moody")
    wait_until(lambda: is_ready(pod()), "Ready")
    kubectl("annotate", "pod", "moody", "sim/ready=false")
    wait_until(lambda: not is_ready(pod()), "not Ready")
    kubectl("annotate", "pod", "moody", "sim/ready-")
    wait_until(lambda: is_ready(pod()), "Ready again")
    assert pod()["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_crashing_pod_restarts_until_its_annotation_goes(make_pod: MakePod, kubectl: Kubectl) -> None:
    pod = make_pod("crash", sim__crash="137", sim__restart_after="200ms")
    status = wait_until(lambda: _status_after_restarts(pod(), 2), "two restarts")
    assert not is_ready(pod())
    assert status["lastState"]["terminated"] | {"startedAt": "", "finishedAt": ""} == {
        "exitCode": 137,
        "reason": "OOMKilled",
        "startedAt": "",
        "finishedAt": "",
    }
    kubectl("annotate", "pod", "crash", "sim/crash-")
    wait_until(lambda: is_ready(pod()), "Ready")


def _status_after_restarts(pod: dict[str, Any], restarts: int) -> dict[str, Any] | None:
    status: dict[str, Any] | None = next(iter(pod["status"].get("containerStatuses", ())), None)
    return status if status and status["restartCount"] >= restarts else None


def test_a_deleted_pod_drains_for_its_time_but_not_beyond_its_grace_period(cluster: Cluster, namespace: str, make_pod: MakePod) -> None:
    lasting, capped = make_pod("lasting", sim__exit_after="2"), make_pod("capped", grace_s=1, sim__exit_after="60")
    for read in (lasting, capped):
        wait_until(lambda read=read: is_ready(read()), "Ready")  # type: ignore[misc]
    began = time.monotonic()
    cluster.kubectl("delete", "pod", "lasting", "capped", "--namespace", namespace, "--wait=false")
    assert is_ready(lasting())
    assert lasting()["metadata"]["deletionTimestamp"]
    cluster.kubectl("wait", "pod", "lasting", "capped", "--for=delete", "--namespace", namespace, "--timeout=60s")
    assert 0.9 < time.monotonic() - began < 6


def test_a_failed_node_holds_its_pods_until_it_recovers(cluster: Cluster, namespace: str, make_pod: MakePod, kubectl: Kubectl) -> None:
    pod = make_pod("stranded", gpus=8)
    wait_until(lambda: is_ready(pod()), "Ready")
    node = pod()["spec"]["nodeName"]
    cluster.fail_node(node)
    try:
        wait_until(lambda: not is_ready(pod()), "its pod to be not Ready")
        kubectl("delete", "pod", "stranded", "--wait=false", "--grace-period=1")
        time.sleep(1.5)  # longer than the grace period: a living node would have ended it
        assert pod()["metadata"]["deletionTimestamp"]
    finally:
        cluster.recover_node(node)
    kubectl("wait", "pod", "stranded", "--for=delete", "--timeout=60s")


def test_stages_can_be_changed_while_the_cluster_runs(cluster: Cluster, make_pod: MakePod, kubectl: Kubectl) -> None:
    ready = next(stage for stage in stages.standard_objects() if stage["metadata"]["name"] == "pod-ready")
    never = yaml.safe_load(yaml.safe_dump(ready))
    never["spec"]["selector"]["matchExpressions"].append({"jq": {"key": ".metadata.name", "operator": "NotIn", "values": ["never"]}})
    cluster.apply_yaml(never)
    try:
        never_pod, other = make_pod("never"), make_pod("other")
        wait_until(lambda: is_ready(other()), "Ready")
        assert not is_ready(never_pod())
    finally:
        cluster.apply_yaml(ready)
    kubectl("annotate", "pod", "never", "looked=again")  # kwok looks at a pod when the pod changes
    wait_until(lambda: is_ready(never_pod()), "Ready")


def test_claims_of_the_default_storage_class_are_bound(cluster: Cluster, namespace: str, kubectl: Kubectl) -> None:
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}}
    cluster.apply_yaml({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "weights"}, "spec": claim}, namespace)
    kubectl("wait", "pvc", "weights", "--for=jsonpath={.status.phase}=Bound", "--timeout=60s")

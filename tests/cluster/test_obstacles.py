"""What the API server refuses, and what is taken away, costs no replica: scaling, repair, pins and aborts go on beside it."""

from __future__ import annotations

from testbed.cluster import Cluster
from testbed.pod_watch import PodWatch, breaks
from testbed.waiting import wait_until
from tests.conftest import Kubectl, StartOperator
from tests.support.deployment import Deployment, rollout_spec
from tests.support.webhooks import webhook_down

OLD, NEW = "a" * 40, "b" * 40
SLOW = {"metadata": {"annotations": {"sim/ready-after": "2"}}}
QUICK = {"warm_up_seconds": "1"}


def test_scaling_repair_pin_and_abort_go_on_beside_a_refused_service(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    start_operator(**QUICK)
    quota = {"metadata": {"name": "no-load-balancers"}, "spec": {"hard": {"services.loadbalancers": "0"}}}
    cluster.api.request("POST", f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    deployment = Deployment(cluster, namespace).create(rollout_spec(2))
    deployment.wait_done()
    former = deployment.status()["stableRevision"]
    deployment.patch(drafter={"revision": OLD})
    deployment.wait_done()
    stable = deployment.status()["stableRevision"]

    # All at once: a Service over its quota, twice the replicas, and a Deployment deleted by hand.
    deployment.patch(service={"type": "LoadBalancer"}, replicas=4)
    cluster.api.delete(f"/apis/apps/v1/namespaces/{namespace}/deployments/{stable}")
    wait_until(lambda: deployment.status().get("readyReplicas") == 4, "four replicas in spite of the refused Service")
    wait_until(lambda: deployment.condition("AccessoriesReady")[:2] == ("False", "QuotaExceeded"), "the refused Service to be told")
    assert deployment.condition("Stalled")[:2] == ("True", "QuotaExceeded")
    assert "services.loadbalancers" in deployment.condition("AccessoriesReady")[2]

    deployment.annotate(pin=former)
    wait_until(lambda: deployment.revisions()[former]["readyReplicas"] == 4, "the pinned revision")
    deployment.annotate(pin=None)
    wait_until(lambda: deployment.revisions()[stable]["readyReplicas"] == 4, "the spec's revision again")

    deployment.patch(podTemplate=SLOW, drafter={"revision": NEW})
    tried = wait_until(lambda: deployment.status().get("candidateRevision"), "a candidate")
    deployment.annotate(abort=tried)
    wait_until(lambda: deployment.revisions()[tried]["state"] == "Failed", "the aborted candidate")
    wait_until(lambda: deployment.revisions()[stable]["readyReplicas"] == 4, "all stable replicas again")

    cluster.api.delete(f"/api/v1/namespaces/{namespace}/resourcequotas/no-load-balancers")
    wait_until(lambda: deployment.condition("AccessoriesReady")[0] == "True", "the Service once it is allowed", 60)


def test_an_invalid_spec_stops_neither_scaling_nor_repair(start_operator: StartOperator, cluster: Cluster, namespace: str) -> None:
    start_operator()
    deployment = Deployment(cluster, namespace).create(rollout_spec(2))
    deployment.wait_done()
    stable = deployment.status()["stableRevision"]
    deployment.patch(blockSize=32, replicas=3)
    cluster.api.delete(f"/apis/apps/v1/namespaces/{namespace}/deployments/{stable}")
    wait_until(lambda: deployment.status().get("readyReplicas") == 3, "three replicas in spite of the invalid spec")
    assert deployment.condition("Stalled")[:2] == ("True", "InvalidSpec")


def test_a_webhook_that_does_not_answer_is_named_and_stops_only_what_it_guards(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    start_operator()
    deployment = Deployment(cluster, namespace).create(rollout_spec(2))
    deployment.wait_done()
    pods = deployment.pod_uids()
    with webhook_down(cluster, namespace, group="apps", resource="deployments"):
        deployment.patch(replicas=3, service={"port": 8080, "annotations": {"seen": "yes"}})
        wait_until(lambda: deployment.condition("Stalled")[:2] == ("True", "WritesFail"), "the outage in a condition")
        assert "down.example.io" in deployment.condition("Stalled")[2]
        generation = deployment.get()["metadata"]["generation"]
        assert deployment.status()["observedGeneration"] == generation
        service = next(item for item in deployment.children("services") if item["metadata"]["name"] == "chat")
        assert service["metadata"]["annotations"]["seen"] == "yes"
        assert deployment.pod_uids() == pods
    wait_until(lambda: deployment.status().get("readyReplicas") == 3, "the third replica once the webhook is gone", 60)
    wait_until(lambda: deployment.condition("Stalled")[0] == "False", "the outage to be over")


def test_an_orphaned_deployment_keeps_every_pod(
    start_operator: StartOperator, cluster: Cluster, kubectl: Kubectl, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator()
    deployment = Deployment(cluster, namespace).create(rollout_spec(3))
    deployment.wait_done()
    pods, stable = deployment.pod_uids(), deployment.status()["stableRevision"]
    old = deployment.children("deployments")[0]["metadata"]["uid"]
    kubectl("delete", f"deployment/{stable}", "--cascade=orphan", "--wait=false")

    def made_again() -> bool:
        return [item["metadata"]["uid"] for item in deployment.children("deployments")] not in ([], [old])

    wait_until(made_again, "the Deployment again", 90)
    deployment.wait_done()
    deployment.wait_look()
    assert deployment.pod_uids() == pods
    assert not breaks(pod_watch.moments(namespace, "chat"), least=3, most=3)


def test_going_back_while_replicas_are_replaced_keeps_the_old_ones(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(rollout_spec(4, podTemplate=SLOW))
    deployment.wait_done()
    old, before = deployment.status()["stableRevision"], deployment.pod_uids()
    deployment.patch(drafter={"revision": NEW})
    new = wait_until(lambda: deployment.status().get("candidateRevision"), "a candidate")
    wait_until(lambda: deployment.revisions()[new]["replicas"] == 2, "two new replicas")
    deployment.patch(drafter={"revision": OLD})
    wait_until(lambda: deployment.status().get("stableRevision") == old, "the old revision to be active again")
    deployment.wait_done()
    assert len(deployment.pod_uids() & before) >= 2
    assert deployment.history(old)[-1] == ("User", "Stable", "Reverted")
    moments = pod_watch.moments(namespace, "chat")
    assert not breaks(moments, least=3, most=4)

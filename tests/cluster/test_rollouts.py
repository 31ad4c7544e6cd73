"""What makes a new revision and what does not, and that replicas are replaced within the budget: judged from the pods' watch stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.operator_process import NAMESPACE, SERVICE_ACCOUNT
from testbed.pod_watch import PodWatch, breaks
from testbed.waiting import wait_until
from testbed.write_proxy import Write, WriteProxy
from tests.conftest import Kubectl, StartOperator
from tests.support.deployment import REVISION, UNJUDGED, Deployment
from tests.support.releases import default_release

OLD, NEW = "a" * 40, "b" * 40
SLOW = {"metadata": {"annotations": {"sim/ready-after": "2", "sim/exit-after": "2"}}}


def spec(replicas: int = 3, surge: int | str = 0, unavailable: int | str = 1, **more: Any) -> dict[str, Any]:
    return {
        "target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40},
        "drafter": {"revision": OLD},
        "replicas": replicas,
        "rollout": {"maxSurge": surge, "maxUnavailable": unavailable, **UNJUDGED},
        **more,
    }


def wait_until_states(deployment: Deployment, *states: str) -> None:
    wait_until(lambda: deployment.states() == list(states), f"the revisions of {deployment.name} to be {states}")


BUDGETS: Mapping[str, tuple[int, int | str, int | str, int, int]] = {
    # replicas, maxSurge, maxUnavailable; serving at least, pods at most
    "one-with-an-outage": (1, 0, 1, 0, 1),
    "one-with-a-surge": (1, 1, 0, 1, 2),
    "three-in-place": (3, 0, 1, 2, 3),
    "three-with-a-surge": (3, 1, 0, 3, 4),
    "five-both-ways": (5, 1, 2, 3, 6),
    "four-by-halves": (4, "50%", "25%", 3, 6),
}


def test_a_new_drafter_makes_one_revision_and_keeps_the_budget(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator()
    deployments = {name: Deployment(cluster, namespace, name) for name in BUDGETS}
    for name, (replicas, surge, unavailable, _, _) in BUDGETS.items():
        deployments[name].create(spec(replicas, surge, unavailable, podTemplate=SLOW))
    for deployment in deployments.values():
        deployment.wait_done()
    begun = {name: len(pod_watch.moments(namespace, name)) for name in BUDGETS}
    for deployment in deployments.values():
        deployment.patch(drafter={"revision": NEW})
    for deployment in deployments.values():
        deployment.wait_done(60)
    for name, deployment in deployments.items():
        least, most = BUDGETS[name][3:]
        moments = pod_watch.moments(namespace, name)
        assert not breaks(moments[begun[name] - 1 :], least=least, most=most), name
        wait_until_states(deployment, "Retired", "Stable")
        new = deployment.status()["stableRevision"]
        assert deployment.names("deployments") == [new]
        assert {f"{name}-{pod['metadata']['labels'][REVISION]}" for pod in deployment.children("pods")} == {new}
        assert deployment.status()["drafterRevision"] == NEW
        assert deployment.status()["rollout"]["phase"] == "Completed"
    # An outage is what the numbers allow here, and it is announced.
    assert min(moment.serving for moment in pod_watch.moments(namespace, "one-with-an-outage")[begun["one-with-an-outage"] :]) == 0


def test_what_does_not_define_the_engine_makes_no_revision_and_restarts_nothing(
    start_operator: StartOperator, cluster: Cluster, namespace: str, kubectl: Kubectl
) -> None:
    tolerations = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in ("team-a", "team-b")]
    env = [{"name": "HF_HUB_OFFLINE", "value": "0"}, {"name": "NCCL_DEBUG", "value": "WARN"}]
    start_operator()
    deployment = Deployment(cluster, namespace).create(
        spec(
            engine={"name": "sglang", "version": default_release("sglang"), "env": env},
            scheduling={"tolerations": tolerations},
            blockSize=16,
        )
    )
    deployment.wait_done()
    (revision,), pods = deployment.names("controllerrevisions"), deployment.pod_uids()

    kubectl("label", "dfd/chat", "team=ml")
    kubectl("annotate", "dfd/chat", "example.com/note=reviewed")
    deployment.patch(scheduling={"tolerations": tolerations[::-1]}, engine={"env": env[::-1]})
    deployment.patch(tuning={"mode": "Off", "minGainPercent": 7}, rollout={"historyLimit": 3, "maxSurge": 1})
    deployment.patch(service={"type": "LoadBalancer", "annotations": {"example.com/pool": "inner"}})
    deployment.patch(engine={"extraArgs": []}, podTemplate={"metadata": {"labels": {}}})
    deployment.patch(replicas=4)
    deployment.wait_done()
    wait_until(lambda: deployment.children("services")[0]["spec"]["type"] == "LoadBalancer", "the Service to follow")
    assert deployment.names("controllerrevisions") == [revision]
    assert len(deployment.pod_uids()) == 4
    assert pods < deployment.pod_uids()


def test_a_revision_that_never_serves_takes_one_replica_and_can_be_left(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator()
    deployment = Deployment(cluster, namespace).create(spec())
    deployment.wait_done()
    first = deployment.status()["stableRevision"]
    deployment.patch(
        podTemplate={"metadata": {"annotations": {"sim/crash": "1", "sim/restart-after": "200ms", "sim/crash-after": "100ms"}}}
    )
    wait_until(lambda: deployment.condition("RolloutHealthy")[1] == "EngineFailing", "the failure to be told")
    assert deployment.condition("Available")[0] == "True"
    assert deployment.status()["stableRevision"] == first
    deployment.patch(drafter={"revision": NEW}, podTemplate=None)
    deployment.wait_done()
    assert deployment.status()["drafterRevision"] == NEW
    assert deployment.states().count("Stable") + deployment.states().count("Retired") == 2
    assert not breaks(pod_watch.moments(namespace, "chat"), least=2, most=3)


@pytest.mark.parametrize("replicas", [0, 1, 5], ids=lambda replicas: f"scaled to {replicas}")
def test_a_write_planned_on_old_knowledge_is_refused_and_planned_again(
    replicas: int, start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, SERVICE_ACCOUNT)
    with WriteProxy(kubeconfig, cluster.directory / f"{namespace}.kubeconfig") as proxy:
        start_operator(kubeconfig=proxy.kubeconfig)
        deployment = Deployment(cluster, namespace).create(spec())
        deployment.wait_done()
        old = deployment.status()["stableRevision"]
        wait_until(lambda: deployment.children("deployments")[0]["status"].get("readyReplicas") == 3, "the workload's status to settle")

        def somebody_is_quicker(write: Write) -> bool:
            if (write.kind, write.name) == ("deployments", old):
                proxy.pass_all()
                path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{old}/scale"
                cluster.api.request("PATCH", path, {"spec": {"replicas": replicas}})
            return True

        proxy.before = somebody_is_quicker
        deployment.patch(drafter={"revision": NEW})
        deployment.wait_done()
        refused = [write for write, status in proxy.answers if status == 409 and (write.name, write.method) == (old, "PATCH")]
        assert refused, "the operator's write carried the version it was planned from"
        assert b'"resourceVersion"' in refused[0].body
        wait_until_states(deployment, "Retired", "Stable")
        assert deployment.names("deployments") == [deployment.status()["stableRevision"]]
        assert len(deployment.pod_uids()) == 3
        assert not breaks(pod_watch.moments(namespace, "chat"), least=min(replicas, 2), most=max(replicas, 3))

"""The API server, Prometheus and the operator itself fail, one at a time. Engines are never touched for it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.audit import WRITE_VERBS
from testbed.cluster import Cluster
from testbed.control_plane import ControlPlane
from testbed.operator_process import NAMESPACE, SERVICE_ACCOUNT, USER, OperatorProcess, install_chart
from testbed.prometheus import Prometheus
from testbed.waiting import wait_until
from testbed.write_proxy import Write, WriteProxy
from tests.conftest import StartOperator
from tests.support.deployment import UNJUDGED, Deployment

CRDS = Path(__file__).parents[2] / "crds"
OUTAGE_S = 8.0
OLD, NEW = "a" * 40, "b" * 40
SPEC = {"target": {"model": "Qwen/Qwen3.5-9B"}, "drafter": {"revision": OLD}, "replicas": 3, "rollout": UNJUDGED}


@pytest.fixture
def fragile() -> Iterator[Cluster]:
    """A cluster of the test's own, whose API server may go away."""
    with Cluster() as cluster:
        cluster.install_crds(CRDS)
        install_chart(cluster, crds=False)
        yield cluster


def kill(control_plane: ControlPlane) -> None:
    control_plane.kill_apiserver()
    time.sleep(OUTAGE_S)
    control_plane.start_apiserver()


def pause(control_plane: ControlPlane) -> None:
    control_plane.pause_apiserver()
    time.sleep(OUTAGE_S)
    control_plane.resume_apiserver()


@pytest.mark.parametrize(("outage", "begun_s"), [(kill, 0.7), (pause, 0.0)], ids=["killed in mid-rollout", "paused as the change is made"])
def test_a_change_is_carried_out_across_an_outage_of_the_api_server(
    outage: Callable[[ControlPlane], None], begun_s: float, fragile: Cluster
) -> None:
    namespace = fragile.create_namespace()
    operator = OperatorProcess(fragile, {"namespaces": namespace, "log_format": "text"}).start().wait_to_lead()
    deployment = Deployment(fragile, namespace).create(SPEC)
    deployment.wait_done()
    deployment.patch(drafter={"revision": NEW})
    time.sleep(begun_s)
    outage(fragile.control_plane)

    def done() -> bool:
        if not operator.running:
            operator.start()  # as the kubelet would
        return deployment.is_done()

    wait_until(done, f"the change to be done (see {operator.log})", 90, 0.2)
    wait_until(lambda: deployment.states() == ["Retired", "Stable"], "the old revision to retire")
    assert deployment.status()["drafterRevision"] == NEW
    assert deployment.names("deployments") == [deployment.status()["stableRevision"]]
    assert len(deployment.pod_uids()) == 3


def writes_since(cluster: Cluster, mark: int) -> list[str]:
    events = cluster.audit(mark, user=USER, verbs=WRITE_VERBS)
    return [f"{event['verb']} {event['requestURI']}" for event in events if event["objectRef"]["resource"] != "leases"]


def test_without_prometheus_nothing_changes_but_what_is_said_of_the_metrics(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    with Prometheus(cluster, scrape_interval_s=1.0, namespaces=[namespace]) as prometheus:
        start_operator(prometheus_url=prometheus.url)
        deployment = Deployment(cluster, namespace).create(SPEC)
        deployment.wait_done()
        wait_until(lambda: deployment.condition("MetricsAvailable")[0] == "True", "the metrics")
        pods = deployment.pod_uids()

        for ask, word in ((signal.SIGSTOP, "no answer"), (signal.SIGKILL, "connect")):
            mark = cluster.audit_mark()
            process = cluster.workspace.process("prometheus")
            process.send(ask)
            wait_until(lambda: deployment.condition("MetricsAvailable")[0] == "False", "the condition to turn", 60, 0.2)
            _, reason, message = deployment.condition("MetricsAvailable")
            assert reason == "PrometheusError"
            assert word in message.lower()
            assert deployment.is_done()
            assert deployment.condition("Available")[0] == "True"
            assert {write.split("?")[0] for write in writes_since(cluster, mark)} == {
                f"patch /apis/serving.dflash.io/v1alpha1/namespaces/{namespace}/dflashdeployments/chat/status"
            }
            assert deployment.pod_uids() == pods
            if ask == signal.SIGSTOP:
                process.send(signal.SIGCONT)
                wait_until(lambda: deployment.condition("MetricsAvailable")[0] == "True", "the metrics to be back", 30, 0.2)


def test_when_the_leader_dies_the_other_operator_takes_over_and_restarts_nothing(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    leader = start_operator("first", leader_election="true")
    deployment = Deployment(cluster, namespace).create(SPEC)
    deployment.wait_done()
    other = OperatorProcess(cluster, leader.settings, name=f"{namespace}-second")
    with other:
        assert not other.leads()
        pods = deployment.pod_uids()
        mark = cluster.audit_mark()
        leader.kill()
        killed = time.monotonic()
        other.wait_to_lead()
        assert time.monotonic() - killed < 20
        deployment.patch(replicas=4)
        deployment.wait_done()
        assert time.monotonic() - killed < 30
        assert pods < deployment.pod_uids()
        assert len(deployment.pod_uids()) == 4
        assert not [write for write in writes_since(cluster, mark) if write.startswith(("delete ", "create /apis/apps"))]


def test_a_leader_paused_in_the_middle_of_a_write_changes_nothing_when_it_wakes(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    """Its last write arrives when another has led, finished the rollout and deleted the workload the write is about."""
    lease = {"leader_election": "true", "lease_duration_seconds": "5", "renew_deadline_seconds": "4", "retry_period_seconds": "1"}
    kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, SERVICE_ACCOUNT)
    with WriteProxy(kubeconfig, cluster.directory / f"{namespace}.kubeconfig") as proxy:
        first = start_operator("first", kubeconfig=proxy.kubeconfig, **lease)
        deployment = Deployment(cluster, namespace).create(SPEC)
        deployment.wait_done()
        old = deployment.status()["stableRevision"]
        process, paused, go_on = cluster.workspace.process(first.name), threading.Event(), threading.Event()

        def hold(write: Write) -> bool:
            if (write.kind, write.name) == ("deployments", old):
                process.send(signal.SIGSTOP)
                paused.set()
                go_on.wait(60)
            return True

        with OperatorProcess(cluster, first.settings, name=f"{namespace}-second") as second:
            proxy.before = hold
            deployment.patch(drafter={"revision": NEW})
            assert paused.wait(20)
            second.wait_to_lead()
            deployment.wait_done()
            new = deployment.status()["stableRevision"]
            wait_until(lambda: (deployment.names("deployments"), deployment.states()) == ([new], ["Retired", "Stable"]), "the end")
            pods, sent = deployment.pod_uids(), len(proxy.writes)

            go_on.set()
            late, status = wait_until(lambda: proxy.answers[-1] if len(proxy.answers) == sent else None, "the late write's answer")
            assert (late.kind, late.name) == ("deployments", old)
            assert status in (404, 409)
            process.send(signal.SIGCONT)
            wait_until(lambda: not first.running, "the old leader to end")
            assert [str(write) for write in proxy.writes[sent:]] == []
            assert (deployment.names("deployments"), deployment.pod_uids()) == ([new], pods)

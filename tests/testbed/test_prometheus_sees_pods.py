"""Prometheus finds annotated pods and scrapes them at their own addresses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.prometheus import PORT_ANNOTATION, SCRAPE_ANNOTATION, Prometheus, PrometheusError
from testbed.waiting import wait_until


class _Metrics(BaseHTTPRequestHandler):
    """Answers with the address that was asked."""

    def do_GET(self) -> None:
        host = self.connection.getsockname()[0]
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(f'sim_address{{host="{host}"}} 1\nsim_last_octet {host.split(".")[3]}\n'.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        return


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> Iterator[dict[str, str]]:
    """Addresses of three pods by name, each with a server: `seen-0` and `seen-1` ask to be scraped, `unseen` does not."""
    for name in ("seen-0", "seen-1", "unseen"):
        container = {"name": "engine", "image": "engine", "ports": [{"containerPort": 8000}, {"containerPort": 9}]}
        metadata = {"name": name, "labels": {"serving.dflash.io/deployment": "chat"}}
        cluster.apply_yaml({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}, namespace)
    cluster.kubectl("wait", "pod", "--all", "--for=condition=Ready", "--namespace", namespace, "--timeout=60s")
    found = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in cluster.get("pods", "--namespace", namespace)["items"]}
    servers = {name: ThreadingHTTPServer((address, 0), _Metrics) for name, address in found.items()}
    for name, server in servers.items():
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        wanted = (f"{SCRAPE_ANNOTATION}={str(name != 'unseen').lower()}", f"{PORT_ANNOTATION}={server.server_address[1]}")
        cluster.kubectl("annotate", "pod", name, *wanted, "--namespace", namespace)
    yield found
    for server in servers.values():
        server.shutdown()
        server.server_close()


def test_pods_are_scraped_at_their_own_address_with_their_labels(
    cluster: Cluster, namespace: str, pods: dict[str, str], tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("groups: [{name: g, rules: [{record: sim_doubled, expr: 2 * sim_last_octet}]}]")
    with Prometheus(cluster, scrape_interval_s=0.5, namespaces=[namespace], rule_files=[rules], name=namespace) as prometheus:
        wait_until(lambda: set(prometheus.values("sim_doubled")) == {"seen-0", "seen-1"}, "both pods to be scraped")
        found = {series["metric"]["pod"]: series["metric"] for series in prometheus.query("sim_address")}
        assert {pod: metric["host"] for pod, metric in found.items()} == {pod: pods[pod] for pod in ("seen-0", "seen-1")}
        assert {(metric["namespace"], metric["serving_dflash_io_deployment"]) for metric in found.values()} == {(namespace, "chat")}
        assert prometheus.values("count(up)") == {"": 2.0}
        with pytest.raises(PrometheusError, match="parse error"):
            prometheus.query("sum(")

        cluster.kubectl("delete", "pod", "seen-0", "--namespace", namespace)
        wait_until(lambda: set(prometheus.values("up")) == {"seen-1"}, "the deleted pod to go")


def test_pods_are_found_with_the_rights_of_a_service_account(cluster: Cluster, namespace: str, pods: dict[str, str]) -> None:
    identity = cluster.service_account_kubeconfig(namespace, "default")
    cluster.kubectl(
        "create", "rolebinding", "view", "--clusterrole=view", f"--serviceaccount={namespace}:default", "--namespace", namespace
    )
    with Prometheus(cluster, namespaces=[namespace], kubeconfig=identity, name=namespace) as prometheus:
        wait_until(lambda: set(prometheus.values("up == 1")) == set(pods) - {"unseen"}, "both pods to be scraped")


def test_a_prometheus_that_cannot_start_says_why(cluster: Cluster, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("groups: [{name: g, rules: [{record: x, expr: 'sum('}]}]")
    with pytest.raises(PrometheusError, match=r"rules\.yaml"):
        Prometheus(cluster, rule_files=[rules]).start()

"""The operator process itself: start, outage, stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.audit import WRITE_VERBS
from testbed.cluster import Cluster
from testbed.operator_process import tells_leader
from testbed.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEPLOYMENT = {
    "apiVersion": "serving.dflash.io/v1alpha1",
    "kind": "DFlashDeployment",
    "metadata": {"name": "demo"},
    "spec": {"target": {"model": "Qwen/Qwen3.5-9B"}},
}
Start = Callable[..., "Running"]


class Running:
    """A started operator."""

    def __init__(self, process: subprocess.Popen[str], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def fetch(self, path: str) -> str:
        """The page, empty while there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def leads(self) -> bool:
        return tells_leader(self.fetch("/metrics"))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Start]:
    """Starts operators that serve the test's namespace."""
    started: list[Running] = []

    def run(**settings: str) -> Running:
        port, log = free_port(), tmp_path / f"operator-{len(started)}.log"
        own = {name: value for name, value in os.environ.items() if not name.startswith("DFLASH_")}
        environment = own | {
            "KUBECONFIG": str(cluster.admin_kubeconfig),
            "DFLASH_HTTP_HOST": "127.0.0.1",
            "DFLASH_HTTP_PORT": str(port),
            "DFLASH_NAMESPACES": namespace,
            "DFLASH_LEASE_NAMESPACE": namespace,
            **settings,
        }
        with log.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, "operator/main.py"], cwd=ROOT, env=environment, stdout=stream, stderr=stream, text=True
            )
        started.append(Running(process, port, log))
        return started[-1]

    yield run
    for running in started:
        print(f"--- {running.log.name}\n{running.log.read_text()}")
        running.process.kill()
        running.process.wait()


def named(cluster: Cluster, namespace: str, kind: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = cluster.get(kind, "-n", namespace, "-l", "serving.dflash.io/deployment=demo")["items"]
    return items


def test_it_serves_rides_out_an_outage_hands_over_and_stops(cluster: Cluster, namespace: str, start: Start) -> None:
    cluster.apply_yaml(DEPLOYMENT, namespace)
    first = start()
    wait_until(lambda: named(cluster, namespace, "services"), "the operator to make the Service")
    second = start()
    wait_until(lambda: "[+] API server answers" in second.fetch("/readyz"), "the standby to be ready")
    assert first.leads()
    assert not second.leads()

    # Shorter than the renew deadline of 10 s: the leader stays, and its watches come back.
    cluster.control_plane.pause_apiserver()
    try:
        wait_until(lambda: "could not be renewed" in first.log.read_text(), "the leader to notice", timeout=15)
    finally:
        cluster.control_plane.resume_apiserver()
    cluster.kubectl("-n", namespace, "delete", "service", "demo")
    wait_until(lambda: named(cluster, namespace, "services"), "the Service to be put back")
    assert first.process.poll() is None
    assert first.leads()

    assert first.stop() == 0
    wait_until(second.leads, "the standby to take over at once", timeout=8)
    cluster.kubectl("-n", namespace, "delete", "service", "demo")
    wait_until(lambda: named(cluster, namespace, "services"), "the new leader to put the Service back")
    assert second.stop() == 0
    lease = cluster.get("lease", "dflash-operator", "-n", namespace)
    assert lease["spec"].get("holderIdentity", "") == ""
    severities = {json.loads(line)["severity"] for line in first.log.read_text().splitlines()}
    assert severities <= {"INFO", "WARNING"}


def test_it_refuses_settings_it_cannot_use(start: Start) -> None:
    running = start(DFLASH_WORKERS="many")
    assert running.process.wait(timeout=30) != 0
    assert "DFLASH_WORKERS" in running.log.read_text()


def test_a_standby_keeps_up_and_writes_nothing_until_it_leads(cluster: Cluster, namespace: str, start: Start) -> None:
    held = {"holderIdentity": "another", "leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:00.000000Z"}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "dflash-operator"}, "spec": held}
    cluster.apply_yaml(lease, namespace)
    mark = cluster.audit_mark()
    standby = start()

    def requests(*verbs: str) -> list[str]:
        events = cluster.audit(mark, verbs=verbs)
        return [f"{event['verb']} {event['requestURI']}" for event in events if event.get("userAgent", "").startswith("dflash-operator")]

    def seen(kind: str) -> bool:
        return f'dflash_last_event_timestamp_seconds{{kind="{kind}"}}' in standby.fetch("/metrics")

    cluster.apply_yaml(DEPLOYMENT, namespace)
    wait_until(lambda: seen("DFlashDeployment"), "the standby to see the deployment")
    assert standby.fetch("/readyz") == "[+] API server answers\n"
    assert standby.fetch("/healthz") == "[+] cluster is listed\n"
    assert not standby.leads()
    assert requests(*WRITE_VERBS) == []
    assert not named(cluster, namespace, "services")

    cluster.kubectl("-n", namespace, "patch", "lease", "dflash-operator", "--type=merge", "-p", '{"spec":{"holderIdentity":""}}')
    wait_until(lambda: named(cluster, namespace, "services"), "the new leader to make the Service", timeout=10)
    first, *others = requests(*WRITE_VERBS)
    assert "/leases/dflash-operator" in first, "the Lease comes first"
    assert others
    assert standby.stop() == 0


def test_a_standby_stops_well(cluster: Cluster, namespace: str, start: Start) -> None:
    first = start()
    wait_until(first.leads, "the first to lead")
    second = start()
    wait_until(lambda: "[+] API server answers" in second.fetch("/readyz"), "the standby to be ready")
    assert second.stop() == 0
    assert first.leads()

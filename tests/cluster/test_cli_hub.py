"""``kubectl dflash doctor --from-pod`` on a real API server: the pod is made, its end is understood, and it is always removed.

kwok's pods run nothing: a thread does what a kubelet would, with the real program as a process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dflash_controller.cli import failures, hub_pod
from dflash_controller.cli.program import run
from testbed.cluster import Cluster
from testbed.hub_server import HubServer, commit_of
from testbed.waiting import wait_until

NOW = "2026-01-01T00:00:00Z"
State = dict[str, Any]
Doctor = Callable[..., dict[str, str]]


def operator(cluster: Cluster, namespace: str, endpoint: str, **pod: Any) -> None:
    """The Deployment of an operator that serves the namespace; it has no pods."""
    labels = {"app.kubernetes.io/name": "dflash-operator", "test": namespace}
    variables = {"DFLASH_NAMESPACES": namespace, "DFLASH_HUGGING_FACE_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1"}
    env = [{"name": name, "value": value} for name, value in variables.items()]
    container = {"name": "operator", "image": "dflash-operator:test", "env": env}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], **pod}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "dflash-operator", "labels": labels}
    cluster.apply_yaml({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}, namespace)


def pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def started(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """The pod, once kwok has nothing more to do with it."""

    def ready() -> dict[str, Any] | None:
        for pod in pods(cluster, namespace):
            if any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions") or ()):
                return pod
        return None

    return wait_until(ready, "the pod that asks")


@contextmanager
def kubelet(cluster: Cluster, namespace: str, state: Callable[[dict[str, Any]], State]) -> Iterator[list[dict[str, Any]]]:
    """Gives the container of the one pod a state. Yields a list, in which the pod is afterwards."""
    seen: list[dict[str, Any]] = []

    def play() -> None:
        pod = started(cluster, namespace)
        seen.append(pod)
        [status] = pod["status"]["containerStatuses"]
        # A merge patch sets no field of a state to nothing, but replaces the whole list.
        statuses = [{**status, "ready": False, "state": state(pod)}]
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
        cluster.api.request("PATCH", path, {"status": {"containerStatuses": statuses}})

    thread = threading.Thread(target=play)
    thread.start()
    yield seen
    thread.join(timeout=60)
    assert not thread.is_alive()


def process(tmp_path: Path) -> Callable[[dict[str, Any]], State]:
    """Runs what the container of a pod would run, and returns how it ended."""

    def play(pod: dict[str, Any]) -> State:
        [container] = pod["spec"]["containers"]
        file = tmp_path / "termination-log"
        python, *command = (*container["command"], *container["args"])
        assert (python, command[-1]) == ("python3", "/dev/termination-log")
        env = {item["name"]: item["value"] for item in container["env"]}
        subprocess.run([sys.executable, *command[:-1], str(file)], env=env, check=True, timeout=60)
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": NOW, "finishedAt": NOW, "message": file.read_text()}
        return {"terminated": ended}

    return play


@pytest.fixture
def doctor(cluster: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs ``doctor`` and returns its answer about the hub. Afterwards no pod is left."""

    def call(*arguments: str, kubeconfig: Path | None = None, into: str = namespace) -> dict[str, str]:
        capsys.readouterr()
        where = ("--kubeconfig", str(kubeconfig or cluster.admin_kubeconfig), "--namespace", into)
        status = run(["doctor", "-o", "json", *arguments, *where])
        out, err = capsys.readouterr()
        assert status in (failures.OK, failures.NEGATIVE), err
        [found] = [item for item in json.loads(out) if item["name"] == hub_pod.NAME]
        assert "--from-pod" in arguments or "starts pod" not in err
        wait_until(lambda: not pods(cluster, namespace), "the pod to be removed")
        return dict(found)

    return call


def test_a_pod_asks_the_hub(cluster: Cluster, namespace: str, doctor: Doctor, tmp_path: Path) -> None:
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    with HubServer() as hub:
        operator(cluster, namespace, hub.url)
        found = doctor()
        assert (found["result"], "--from-pod" in found["remedy"], hub.url in found["text"]) == ("not checked", True, True)
        assert not hub.asked
        hub.publish(hub_pod.MODEL, commit_of("a"), {"config.json": {}})
        with kubelet(cluster, namespace, process(tmp_path)) as seen:
            found = doctor("--from-pod")
        assert found == {"name": hub_pod.NAME, "result": "ok", "text": f"{hub.url} answers pods of namespace {namespace}", "remedy": ""}
        assert sum(hub.asked.values()) == 1
        [pod] = seen
        assert pod["spec"]["activeDeadlineSeconds"] == 180, "it ends by itself where nobody is left to remove it"
        assert not pod["spec"].get("volumes"), "it has no token"
        hub.status = 403
        with kubelet(cluster, namespace, process(tmp_path)):
            found = doctor("--from-pod")
        assert (found["result"], "HTTP 403" in found["text"]) == ("FAILED", True)
        endpoint = hub.url
    with kubelet(cluster, namespace, process(tmp_path)):
        found = doctor("--from-pod")
    assert (found["result"], f"{endpoint} cannot be reached" in found["text"]) == ("FAILED", True)
    operator(cluster, namespace, "off")
    found = doctor()
    assert (found["result"], "asks none" in found["text"]) == ("ok", True)


def test_a_pod_that_cannot_start_is_told_and_removed(cluster: Cluster, namespace: str, doctor: Doctor) -> None:
    operator(cluster, namespace, "https://hub.example.com")
    back_off = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    with kubelet(cluster, namespace, lambda _: back_off):
        found = doctor("--from-pod")
    assert found["result"] == "FAILED"
    assert "the image of container ask cannot be pulled (ImagePullBackOff: Back-off pulling image)" in found["text"]
    assert "dflash-operator:test" in found["remedy"]
    found = doctor("--from-pod", "--timeout", "1")
    assert (found["result"], "it runs and says nothing for 1 s" in found["text"]) == ("FAILED", True)
    operator(cluster, namespace, "https://hub.example.com", nodeSelector={"test": "nowhere"})
    found = doctor("--from-pod", "--timeout", "3")
    assert (found["result"], "no node accepts it for 3 s: Unschedulable: 0/" in found["text"]) == ("FAILED", True), found


def test_a_pod_that_the_api_server_refuses_is_told(cluster: Cluster, namespace: str, doctor: Doctor) -> None:
    operator(cluster, namespace, "https://hub.example.com")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    cluster.apply_yaml(quota, namespace)
    wait_until(lambda: cluster.get("-n", namespace, "resourcequota", "none").get("status", {}).get("used"), "the quota to be counted")
    found = doctor("--from-pod")
    assert (found["result"], "cannot be created: Pod: the API server refuses it:" in found["text"]) == ("FAILED", True)
    assert "exceeded quota: none" in found["text"]
    assert "Ask for the right" not in found["text"]
    cluster.kubectl("-n", namespace, "delete", "resourcequota", "none")


def test_a_namespace_that_does_not_exist_is_told(cluster: Cluster, namespace: str, doctor: Doctor) -> None:
    operator(cluster, namespace, "https://hub.example.com")
    cluster.kubectl("-n", namespace, "set", "env", "deployment/dflash-operator", "DFLASH_NAMESPACES=no-such-namespace")
    found = doctor("--from-pod", into="no-such-namespace")
    assert (found["result"], found["text"]) == ("FAILED", "the pod that asks cannot be created: there is no namespace no-such-namespace")


def test_without_rights_nothing_is_created(cluster: Cluster, namespace: str, doctor: Doctor) -> None:
    operator(cluster, namespace, "https://hub.example.com")
    cluster.wait_for_service_account(namespace)
    stranger = cluster.service_account_kubeconfig(namespace, "default")
    found = doctor("--from-pod", kubeconfig=stranger)
    assert (found["result"], "no operator that serves" in found["text"]) == ("unknown", True), "it may not read Deployments"
    account = f"--serviceaccount={namespace}:default"
    cluster.kubectl("create", "clusterrolebinding", f"view-{namespace}", "--clusterrole=view", account)
    try:
        found = doctor("--from-pod", kubeconfig=stranger)
        assert (found["result"], "you may not create pods, delete pods" in found["text"]) == ("unknown", True), found
        # Who may create and not remove would leave it behind.
        cluster.kubectl("-n", namespace, "create", "role", "creator", "--verb=create", "--resource=pods")
        cluster.kubectl("-n", namespace, "create", "rolebinding", "creator", "--role=creator", account)
        found = wait_until(
            lambda: "create" not in (answer := doctor("--from-pod", kubeconfig=stranger))["text"] and answer, "the right to create"
        )
        assert "you may not delete pods" in found["text"]
    finally:
        cluster.kubectl("delete", "clusterrolebinding", f"view-{namespace}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_pod(cluster: Cluster, namespace: str, number: signal.Signals) -> None:
    operator(cluster, namespace, "https://hub.example.com")
    where = ("--kubeconfig", str(cluster.admin_kubeconfig), "--namespace", namespace)
    command = [sys.executable, "-m", "dflash_controller.cli.program", "doctor", "--from-pod", *where]
    doctor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        started(cluster, namespace)
        doctor.send_signal(number)
        out, err = doctor.communicate(timeout=60)
    finally:
        doctor.kill()
    assert (doctor.returncode, out) == (failures.INTERRUPTED, "")
    assert err.startswith("starts pod dflash-doctor-")
    assert "Traceback" not in err
    wait_until(lambda: not pods(cluster, namespace), "the pod to be removed")

"""The product on a cluster of yours: ``make e2e-node KUBECONFIG=… OPERATOR_IMAGE=… ENGINE_IMAGE=…``.

Everything is made in one namespace that is deleted afterwards; outside of it the cluster is only read. The CustomResourceDefinition must be
there, because it belongs to the whole cluster (``testbed.user_cluster`` looks for it first). The engine image is the simulator's, so no
weights are downloaded; its pods still ask for a GPU, as real ones do.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from testbed import binaries
from testbed.cluster import CommandError
from testbed.operator_process import CHART
from testbed.waiting import wait_until
from tests.support.deployment import UNJUDGED
from tests.support.releases import default_release

MODEL = "Qwen/Qwen3.5-9B"
LEAST_REQUESTS = 1000
LOAD_SECONDS = 240


@dataclass(frozen=True)
class Namespace:
    """One namespace of a cluster, through kubectl and helm."""

    name: str
    kubeconfig: str

    def run(self, program: str, *arguments: str, text: str | None = None, timeout: float = 300) -> str:
        command = [str(binaries.path_of(program)), f"--kubeconfig={self.kubeconfig}", f"--namespace={self.name}", *arguments]
        answer = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=timeout)
        if answer.returncode != 0:
            raise CommandError(answer)
        return answer.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("kubectl", "get", *arguments, "-o", "json"))
        return found

    def apply(self, manifest: dict[str, Any]) -> None:
        self.run("kubectl", "apply", "-f", "-", text=json.dumps(manifest))

    def engines(self) -> set[str]:
        """UIDs of the engine pods."""
        return {pod["metadata"]["uid"] for pod in self.get("pods", "-lserving.dflash.io/role=engine")["items"]}


def given(name: str, meaning: str) -> str:
    value = os.environ.get(name)
    assert value, f"set {name}: {meaning}"
    return value


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    """A fresh namespace that enforces the restricted Pod Security Standard."""
    found = Namespace(f"dflash-check-{secrets.token_hex(3)}", given("DFLASH_CHECKED_KUBECONFIG", "the cluster's kubeconfig"))
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    found.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": found.name, "labels": labels}})
    try:
        yield found
    finally:
        found.run("kubectl", "delete", "namespace", found.name, "--wait=true", "--timeout=240s")


def outside(namespace: Namespace) -> set[tuple[str, str]]:
    """What the whole cluster has: kind and name of objects that belong to no namespace and could be left by an install."""
    kinds = "namespaces,clusterroles,clusterrolebindings,crd,validatingadmissionpolicies,validatingadmissionpolicybindings"
    return {(item["kind"], item["metadata"]["name"]) for item in namespace.get(kinds)["items"]}


def test_install_serve_change_drain_and_uninstall(namespace: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    before = outside(namespace)
    repository, _, tag = given("OPERATOR_IMAGE", "the operator's image in a registry of the cluster").rpartition(":")
    values = f"image.repository={repository},image.tag={tag},crds.install=false,admissionPolicy.enabled=false,dashboards.enabled=false"
    values += f",rbac.readNodes=false,rbac.aggregateRoles=false,watchNamespaces={{{namespace.name}}}"
    values += ",metrics.serviceMonitor.enabled=false,prometheusRule.enabled=false"
    namespace.run("helm", "install", "dflash-check", str(CHART), f"--set={values}", "--wait", "--timeout=180s")
    namespace.run("helm", "test", "dflash-check", "--timeout=120s")

    namespace.apply(deployment("a"))
    wait_done(namespace)
    old = namespace.engines()
    namespace.apply(load_job(namespace))
    wait_until(lambda: namespace.get("job", "load")["status"].get("active"), "the load to run", 120, 1)
    begun = time.monotonic()
    namespace.apply(deployment("b"))
    wait_until(lambda: len(now := namespace.engines()) == 3 and not old & now, "the engines to be replaced", 300, 2)
    wait_done(namespace)
    changed = namespace.engines()
    evict(namespace)
    wait_until(lambda: len(now := namespace.engines()) == 3 and not changed & now, "the evicted engines to be replaced", 300, 2)
    assert time.monotonic() - begun < LOAD_SECONDS, "the load ended before the changes did: nothing is shown"
    namespace.run("kubectl", "wait", "--for=condition=Complete", "job/load", f"--timeout={LOAD_SECONDS + 60}s", timeout=LOAD_SECONDS + 90)
    report = json.loads(namespace.run("kubectl", "logs", "job/load").strip().splitlines()[-1])
    with capsys.disabled():
        print(f"\n{report['requests']} requests, failed: {report['errors'] or 'none'}", flush=True)
    assert report["errors"] == {}
    assert report["requests"] >= LEAST_REQUESTS

    namespace.run("helm", "uninstall", "dflash-check", "--wait")
    assert outside(namespace) - before == set(), "left in the cluster"


def deployment(drafter: str) -> dict[str, Any]:
    product = os.environ.get("GPU_PRODUCT")
    return {
        "apiVersion": "serving.dflash.io/v1alpha1",
        "kind": "DFlashDeployment",
        "metadata": {"name": "chat"},
        "spec": {
            "target": {"model": MODEL, "revision": "f" * 40},
            "drafter": {"revision": drafter * 40},
            "engine": {"name": "sglang", "version": default_release("sglang"), "image": given("ENGINE_IMAGE", "the simulator's image")},
            **({"accelerator": {"product": product}} if product else {}),
            "replicas": 3,
            "tuning": {"mode": "Off"},
            "rollout": UNJUDGED,
            "podTemplate": {"terminationGracePeriodSeconds": 40, "securityContext": {"runAsNonRoot": True}},
        },
    }


def load_job(namespace: Namespace) -> dict[str, Any]:
    """Load from inside the cluster, by the Service's name; half of the requests stream."""
    [service] = namespace.get("service", "chat")["spec"]["ports"]
    command = ["python3", "-m", "testbed.traffic", f"http://chat.{namespace.name}:{service['port']}", f"--model={MODEL}", "--rate=10"]
    command += [f"--seconds={LOAD_SECONDS}", "--stream=0.5", "--max-tokens=60", "--new-connections"]
    container = {
        "name": "load",
        "image": given("ENGINE_IMAGE", "the simulator's image"),
        "command": command,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    pod = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "load"}, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}


def wait_done(namespace: Namespace) -> None:
    def is_done() -> bool:
        found = namespace.get("dfd", "chat")
        status = found.get("status") or {}
        conditions = {item["type"]: item["status"] for item in status.get("conditions") or ()}
        fresh = status.get("observedGeneration") == found["metadata"]["generation"]
        return fresh and (conditions.get("Ready"), conditions.get("Reconciling")) == ("True", "False")

    wait_until(is_done, "the deployment to be done", 300, 1)


def evict(namespace: Namespace) -> None:
    """Evicts every engine pod as `kubectl drain` does: a refusal by the budget is asked again."""
    for pod in namespace.get("pods", "-lserving.dflash.io/role=engine")["items"]:
        name = pod["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace.name}}
        path = f"/api/v1/namespaces/{namespace.name}/pods/{name}/eviction"
        wait_until(_admitted(namespace, path, json.dumps(eviction)), f"the eviction of {name}", 180, 1)


def _admitted(namespace: Namespace, path: str, eviction: str) -> Callable[[], bool]:
    def ask() -> bool:
        try:
            namespace.run("kubectl", "create", "--raw", path, "-f", "-", text=eviction)
        except CommandError as error:
            if "disruption budget" not in error.stderr:
                raise
            return False
        return True

    return ask

"""The product as its users run it, on a node whose pods are containers: install, serve, change, drain, reboot.

The tests run in order, on one installation, which those of `test_uninstall.py` remove. The engines are simulators under the names of
the engines' images.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from testbed import binaries
from testbed.cluster import Cluster, CommandError
from testbed.operator_process import ROOT
from testbed.pod_watch import PodWatch
from testbed.real_node.node import RealNode
from testbed.real_node.node_images import ENGINE_REPOSITORY
from testbed.waiting import wait_until
from tests.e2e.conftest import Say
from tests.node.load import Load
from tests.node.release import OPERATOR_NAMESPACE, RELEASE, ask_prometheus, wait_for_series
from tests.support.deployment import UNJUDGED, Deployment
from tests.support.releases import default_release

MODEL = "Qwen/Qwen3.5-9B"
EXAMPLES = {"sglang": "qwen3.5-9b-sglang.yaml", "vllm": "qwen3.5-9b-vllm.yaml"}
RATE = 20.0
KEPT_RATE = 5.0
LEAST_REQUESTS = 2000
ENGINES = ("sglang", "vllm")


def spec(engine: str, startup_s: float = 0, **changes: Any) -> dict[str, Any]:
    """Three replicas of the project's own image of an engine that are replaced without being judged."""
    release = default_release(engine)
    env = [{"name": "DFLASH_SIM_STARTUP_SECONDS", "value": str(startup_s)}]
    return {
        "target": {"model": MODEL, "revision": "f" * 40},
        "drafter": {"revision": "a" * 40},
        "engine": {"name": engine, "version": release, "image": f"{ENGINE_REPOSITORY}{engine}:v{release}", "env": env},
        "replicas": 3,
        "tuning": {"mode": "Off"},
        "rollout": UNJUDGED,
        "podTemplate": {"terminationGracePeriodSeconds": 60, "securityContext": {"runAsNonRoot": True}},
        **changes,
    }


def address(cluster: Cluster, deployment: Deployment) -> str:
    """The base URL of a deployment's Service, once connections reach a pod: kube-proxy follows the endpoints by up to a second."""
    found = cluster.get("service", deployment.name, "--namespace", deployment.namespace)["spec"]
    host, port = found["clusterIP"], found["ports"][0]["port"]

    def connects() -> bool:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            return False
        return True

    wait_until(connects, f"the Service of {deployment.name} to take connections", 180)
    return f"http://{host}:{port}"


def in_pod(cluster: Cluster, namespace: str, pod: str, program: str) -> str:
    """What a Python program says that runs in a pod."""
    return cluster.kubectl("exec", "--namespace", namespace, pod, "--", "python3", "-c", program)


def failed_liveness(cluster: Cluster, namespace: str) -> list[str]:
    """What the kubelet says of failed liveness probes of a namespace's pods, also of those that are gone; each as often as it was seen."""
    events = cluster.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return [event["message"] for event in events if "liveness probe" in event["message"].lower() for _ in range(event.get("count") or 1)]


def killed(cluster: Cluster, namespace: str) -> list[str]:
    """What the kubelet says of containers that it ended because of their liveness probe. A single late answer ends none."""
    return [message for message in failed_liveness(cluster, namespace) if "restarted" in message]


def passed_liveness(cluster: Cluster, node: RealNode, namespace: str) -> float:
    """Liveness probes that the pods of a namespace have passed, as the kubelet counts them."""
    page = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node.name}/proxy/metrics/probes")
    lines = [line for line in page.splitlines() if line.startswith("prober_probe_total{") and f'namespace="{namespace}"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines if 'probe_type="Liveness"' in line and 'result="successful"' in line)


def restarts(deployment: Deployment) -> int:
    return sum(status["restartCount"] for pod in deployment.children("pods") for status in pod["status"].get("containerStatuses") or ())


@pytest.fixture(scope="module")
def pod_watch(cluster: Cluster) -> Iterator[PodWatch]:
    with PodWatch(cluster) as watch:
        yield watch


def test_both_replicas_run_as_the_restricted_standard_wants_and_helm_test_passes(cluster: Cluster, operator: str, say: Say) -> None:
    pods = cluster.get("pods", "--namespace", operator, "-lapp.kubernetes.io/name=dflash-operator")["items"]
    assert [pod["spec"]["nodeName"] for pod in pods] == ["real-0"] * 2
    for pod in pods:
        [container] = pod["status"]["containerStatuses"]
        assert container["restartCount"] == 0
        ready = next(item for item in pod["status"]["conditions"] if item["type"] == "Ready")["lastTransitionTime"]
        say(f"{pod['metadata']['name']}: container started {container['state']['running']['startedAt']}, pod Ready {ready}")
    program = 'import os; print(os.getuid()); open("/opt/dflash/x", "w")'
    with pytest.raises(CommandError, match="Read-only file system"):
        in_pod(cluster, operator, pods[0]["metadata"]["name"], program)
    said = cluster.helm("test", RELEASE, "--namespace", operator, "--timeout=240s")
    assert re.search(r"Phase:\s+Succeeded", said)


def test_the_operators_image_starts_quickly(cluster: Cluster, operator: str, say: Say) -> None:
    """How long the process needs until it serves health; said, not judged, because the machine may be busy."""
    [first, *_] = cluster.get("pods", "--namespace", operator, "-lapp.kubernetes.io/name=dflash-operator")["items"]
    program = """
import os, subprocess, sys, time, urllib.request
started = time.monotonic()
env = {**os.environ, "DFLASH_HTTP_PORT": "9999", "DFLASH_LEASE_NAME": "dflash-operator"}
process = subprocess.Popen([sys.executable, "/opt/dflash/operator/main.py"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while True:
    try:
        urllib.request.urlopen("http://127.0.0.1:9999/healthz", timeout=1)
        break
    except OSError:
        assert process.poll() is None, "it ended"
        time.sleep(0.02)
print(f"{time.monotonic() - started:.2f}")
process.kill()
"""
    seconds = float(in_pod(cluster, operator, first["metadata"]["name"], program))
    say(f"the operator answers {seconds:.2f} s after its start")
    assert seconds > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_an_example_serves_through_its_service_without_a_token(engine: str, cluster: Cluster, engines: str) -> None:
    cluster.kubectl("apply", "--namespace", engines, "-f", str(ROOT / "examples" / EXAMPLES[engine]))
    [name] = [item["metadata"]["name"] for item in cluster.get("dfd", "--namespace", engines)["items"]]
    deployment = Deployment(cluster, engines, name)
    deployment.wait_done(300)
    [pod] = [pod["metadata"]["name"] for pod in deployment.children("pods")]
    port = cluster.get("service", name, "--namespace", engines)["spec"]["ports"][0]["port"]

    program = f"""
import json, os, urllib.request
body = json.dumps({{"model": "{MODEL}", "prompt": "hello", "max_tokens": 7, "ignore_eos": True}}).encode()
url = "http://{name}.{engines}.svc.cluster.local:{port}/v1/completions"
request = urllib.request.Request(url, body, {{"Content-Type": "application/json"}})
answer = json.load(urllib.request.urlopen(request, timeout=20))
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
print(json.dumps({{
    "tokens": answer["usage"]["completion_tokens"],
    "token": os.path.exists("/var/run/secrets/kubernetes.io"),
    "seccomp": status["Seccomp"].strip(),
    "capabilities": int(status["CapEff"], 16),
    "privileges": status["NoNewPrivs"].strip(),
}}))
"""
    found = json.loads(in_pod(cluster, engines, pod, program))
    assert found == {"tokens": 7, "token": False, "seccomp": "2", "capabilities": 0, "privileges": "1"}
    assert "POST /v1" not in cluster.kubectl("logs", "--namespace", engines, pod), "the logs can be read"


def test_engines_of_the_projects_images_are_users_with_a_home(cluster: Cluster, restricted: str) -> None:
    program = """
import getpass, os, pathlib, pwd
home = pathlib.Path.home()
(home / ".cache" / "kernels").mkdir(parents=True)
print(os.getuid(), pwd.getpwuid(os.getuid()).pw_name, getpass.getuser(), home, os.getcwd())
"""
    for deployment in [Deployment(cluster, restricted, engine).create(spec(engine, replicas=1)) for engine in ENGINES]:
        deployment.wait_done(300)
        [pod] = [pod["metadata"]["name"] for pod in deployment.children("pods")]
        assert in_pod(cluster, restricted, pod, program).split() == ["65532", "engine", "engine", "/home/engine", "/home/engine"]


def test_prometheus_finds_operator_and_engines_by_their_annotations(cluster: Cluster, restricted: str) -> None:
    deployment = Deployment(cluster, restricted).create(spec("sglang", replicas=2))
    deployment.wait_done(300)
    assert len(wait_for_series(cluster, f'up{{namespace="{OPERATOR_NAMESPACE}"}}==1', 2)) == 2
    wait_for_series(cluster, f'up{{namespace="{restricted}"}}==1', 2)
    [leading] = ask_prometheus(cluster, "sum(dflash_leader)")
    assert leading["value"][1] == "1"

    def measured() -> bool:
        return deployment.condition("MetricsAvailable")[0] == "True"

    wait_until(measured, f"the operator to measure through Prometheus: {deployment.condition('MetricsAvailable')}", 180, 1)


def test_no_request_fails_while_the_drafter_changes_and_the_node_is_drained(
    cluster: Cluster, node: RealNode, restricted: str, say: Say
) -> None:
    """With each engine's own way to stop: SGLang answers until it is drained, vLLM closes its port at once."""
    deployments = [Deployment(cluster, restricted, engine).create(spec(engine, startup_s=3)) for engine in ENGINES]
    for deployment in deployments:
        deployment.wait_done(300)
    with ExitStack() as stack:
        loads = [Loads(stack, address(cluster, deployment)) for deployment in deployments]
        before = {deployment.name: deployment.pod_uids() for deployment in deployments}
        for deployment in deployments:
            deployment.patch(drafter={"revision": "b" * 40})
        for deployment in deployments:
            assert deployment.wait_phase("Completed", "RolledBack", "Held", timeout=240)["phase"] == "Completed"
        changed = {deployment.name: replaced(deployment, before[deployment.name]) for deployment in deployments}
        rolled = [load.new.answered for load in loads]
        drain(cluster, node, "serving.dflash.io/role=engine", 6)
        for deployment in deployments:
            replaced(deployment, changed[deployment.name])
            deployment.wait_done(300)
        wait_until(lambda: min(load.new.answered for load in loads) >= LEAST_REQUESTS, "the requests", 180, 0.5)
    for engine, load, first in zip(ENGINES, loads, rolled, strict=True):
        say(f"{engine}: {load.new.summary()} ({first} answered before the drain)\n{engine}, kept connections: {load.kept.summary()}")
    for deployment, load in zip(deployments, loads, strict=True):
        assert not load.new.log.failures, f"{deployment.name}: {load.new.summary()}"
        assert restarts(deployment) == 0
    assert killed(cluster, restricted) == []


class Loads:
    """Load on one Service, on a new connection for each request and on kept ones.

    A Service sends new connections elsewhere once a pod is told to stop. A client that keeps its connection goes on with that pod and may
    meet its end, so it must try again. How often is said, not judged.
    """

    def __init__(self, stack: ExitStack, url: str) -> None:
        self.new = stack.enter_context(Load(url, MODEL, RATE))
        self.kept = stack.enter_context(Load(url, MODEL, KEPT_RATE, keep_alive=True))


def replaced(deployment: Deployment, before: set[str]) -> set[str]:
    """Waits until none of these pods is left and three others serve. Returns theirs."""
    wait_until(lambda: len(now := deployment.pod_uids()) == 3 and not before & now, f"the pods of {deployment.name}", 300, 0.5)
    return deployment.pod_uids()


def drain(cluster: Cluster, node: RealNode, selector: str, count: int) -> None:
    """Evicts so many pods as `kubectl drain` does, one after the other as their budget allows.

    The node takes pods again at once: there is no room elsewhere, and the replacements need a place.
    """
    command = [str(binaries.path_of("kubectl")), f"--kubeconfig={cluster.admin_kubeconfig}", "drain", node.name, "--ignore-daemonsets"]
    command += ["--delete-emptydir-data", f"--pod-selector={selector}", "--timeout=240s"]
    draining = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: cluster.get("node", node.name)["spec"].get("unschedulable"), "the node to be cordoned", 180)
        cluster.kubectl("uncordon", node.name)
        output, _ = draining.communicate(timeout=260)
        assert draining.returncode == 0, output
        assert output.count("evicted") >= count, output
    finally:
        draining.kill()


def test_a_loading_a_saturated_and_a_late_engine_are_left_alive(cluster: Cluster, node: RealNode, restricted: str, say: Say) -> None:
    """The engine answers no probe for 15 s while it loads, has more requests than it takes at once, and then answers nothing at all until
    a liveness probe has failed."""
    asked = spec("sglang", startup_s=15, replicas=1)
    asked["engine"]["maxConcurrency"] = 2
    asked["podTemplate"]["terminationGracePeriodSeconds"] = 30
    deployment = Deployment(cluster, restricted).create(asked)
    deployment.wait_done(300)
    assert restarts(deployment) == 0
    with Load(address(cluster, deployment), MODEL, rate=40.0) as load:
        before = passed_liveness(cluster, node, restricted)
        wait_until(lambda: passed_liveness(cluster, node, restricted) > before, "a liveness probe of a saturated engine", 180, 1)
        before_it = failed_liveness(cluster, restricted)
        set_fault(deployment, hang=True)
        missed = wait_until(lambda: failed_liveness(cluster, restricted)[len(before_it) :], "a liveness probe to fail", 180, 1)
        set_fault(deployment, hang=False)
        answered = load.answered
        wait_until(lambda: load.answered > answered, "the engine to go on", 180)
        assert restarts(deployment) == 0
        assert not load.log.errors
        deployment.patch(replicas=0)
        wait_until(lambda: not deployment.children("pods"), "the engine to end", 180, 0.5)
        say(f"saturated: {load.answered} requests answered, none failed before it was stopped; late: {missed[0]}")
    assert killed(cluster, restricted) == []


def set_fault(deployment: Deployment, **faults: Any) -> None:
    """Sets faults of a deployment's only engine."""
    [pod] = deployment.children("pods")
    port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
    url = f"http://{pod['status']['podIP']}:{port}/sim/faults"
    request = urllib.request.Request(url, json.dumps(faults).encode(), {"Content-Type": "application/json"}, method="PATCH")
    urllib.request.urlopen(request, timeout=10).close()


def test_everything_serves_again_by_itself_after_a_reboot(
    cluster: Cluster, node: RealNode, restricted: str, operator: str, say: Say
) -> None:
    deployment = Deployment(cluster, restricted).create(spec("vllm", replicas=2))
    deployment.wait_done(300)
    before = deployment.pod_uids()
    node.reboot()
    begun = time.monotonic()

    def answers() -> bool:
        with Load(address(cluster, deployment), MODEL, rate=5.0) as load:
            wait_until(lambda: load.answered + sum(load.log.errors.values()) > 0, "an answer or a failure", 60)
        return load.answered > 0 and restarts(deployment) >= 2

    wait_until(answers, "the Service to answer again", 300, 1)
    say(f"the Service answers {time.monotonic() - begun:.0f} s after the node is Ready again")
    deployment.wait_done(300)
    assert deployment.pod_uids() == before, "the same pods, with restarted containers"
    cluster.kubectl("rollout", "status", f"deployment/{RELEASE}", "--namespace", operator, "--timeout=240s")
    deployment.patch(replicas=1)
    deployment.wait_done(300)

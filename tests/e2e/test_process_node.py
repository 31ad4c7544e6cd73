"""A node whose pods are processes reports what a kubelet would. The engine simulator is the process."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from testbed.cluster import Cluster
from testbed.nodes import NodePool
from testbed.process_node.node import ProcessNode
from testbed.waiting import wait_until

pytestmark = pytest.mark.long

GPUS = 2
ARGUMENTS = ["Qwen/Qwen3.5-9B", "--port=8000", "--shutdown-timeout=20", "--served-model-name=m"]
QUICK = {"periodSeconds": 1, "timeoutSeconds": 1}
HEALTH = {"httpGet": {"path": "/health", "port": "http"}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of its own: beside the process node it has one node of kwok's."""
    with Cluster(pools=(NodePool("cpu", 1, gpus=0),)) as running:
        yield running


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[ProcessNode]:
    options = (f"--gpus={GPUS}", "--product=NVIDIA-H200", "--first-back-off=3", "--simulator=--startup-seconds=1.5")
    with ProcessNode(cluster, *options) as running:
        yield running


@pytest.fixture
def namespace(cluster: Cluster, node: ProcessNode) -> Iterator[str]:
    name = cluster.create_namespace()
    yield name
    cluster.empty_namespace(name)


class Pods:
    """Pods of one namespace that ask for one GPU."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._namespace = namespace

    def create(self, name: str, *, spec: dict[str, Any] | None = None, **container: Any) -> None:
        made = {
            "name": "engine",
            "image": "vllm/vllm-openai:v0.26.0",
            "command": ["vllm", "serve"],
            "args": ARGUMENTS,
            "ports": [{"name": "http", "containerPort": 8000}],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
            "startupProbe": {**HEALTH, **QUICK, "failureThreshold": 30},
            "readinessProbe": {**HEALTH, **QUICK, "failureThreshold": 2},
            "terminationMessagePolicy": "FallbackToLogsOnError",
            **container,
        }
        tolerated = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
        whole = {"containers": [made], "tolerations": tolerated, "terminationGracePeriodSeconds": 15, **(spec or {})}
        self.cluster.api.request("POST", self._path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole})

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.api.get(f"{self._path}/{name}")
        return found

    def engine(self, name: str) -> dict[str, Any]:
        """The engine's container status; empty before there is one."""
        statuses: list[dict[str, Any]] = self.get(name)["status"].get("containerStatuses") or [{}]
        return statuses[0]

    def ready(self, name: str) -> bool:
        return any(item["type"] == "Ready" and item["status"] == "True" for item in self.get(name)["status"].get("conditions", ()))

    def wait_ready(self, name: str) -> str:
        """Waits until a pod is Ready. Returns its base URL."""
        wait_until(lambda: self.ready(name), f"{name} to be Ready", 40)
        return f"http://{self.get(name)['status']['podIP']}:8000"

    def delete(self, name: str) -> None:
        self.cluster.api.delete(f"{self._path}/{name}")

    def wait_gone(self, name: str) -> None:
        wait_until(lambda: name not in {pod["metadata"]["name"] for pod in self.cluster.api.get(self._path)["items"]}, f"{name} to go", 40)

    def process(self, node: ProcessNode, name: str) -> dict[str, Any]:
        """The last process of a pod."""
        return [item for item in node.ran() if item["pod"] == f"{self._namespace}/{name}"][-1]


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> Pods:
    return Pods(cluster, namespace)


def ask(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"}, method=method), timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def complete(url: str, tokens: int) -> int:
    """Asks for a completion. Returns how many tokens came."""
    body = {"model": "m", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
    return int(ask("POST", f"{url}/v1/completions", body)["usage"]["completion_tokens"])


def under_way(pool: ThreadPoolExecutor, url: str, tokens: int) -> Future[int]:
    """Sends a request, and returns once the engine works on it."""
    sent = pool.submit(complete, url, tokens)
    wait_until(lambda: ask("GET", f"{url}/sim/state")["running"] == 1, "the request to be under way")
    return sent


def delete_during_a_long_request(pods: Pods) -> None:
    """Deletes the pod ``one`` while it works on a request that outlasts it, and waits until it is gone."""
    url = pods.wait_ready("one")
    with ThreadPoolExecutor(1) as pool:
        cut = under_way(pool, url, 60_000)
        pods.delete("one")
        pods.wait_gone("one")
        with pytest.raises(ConnectionError):
            cut.result(10)


def test_a_pod_runs_its_own_command_line_at_its_own_address_and_is_ready_when_its_probes_say_so(node: ProcessNode, pods: Pods) -> None:
    pods.create("one")
    wait_until(lambda: pods.engine("one").get("state", {}).get("running"), "the engine to run")
    assert (pods.engine("one")["started"], pods.engine("one")["ready"]) == (False, False)  # it loads for 1.5 s

    url = pods.wait_ready("one")

    assert url.startswith(f"http://{'.'.join(pods.cluster.pod_network.split('.')[:2])}.250.")
    assert complete(url, 20) == 20
    process = pods.process(node, "one")
    assert process["podCommand"] == ["vllm", "serve", *ARGUMENTS]
    assert process["command"][-len(ARGUMENTS) - 2 :] == process["podCommand"]
    status = pods.engine("one")
    assert (status["started"], status["ready"], status["restartCount"]) == (True, True, 0)
    conditions = {item["type"]: item["status"] for item in pods.get("one")["status"]["conditions"]}
    assert set(conditions) == {"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"}
    assert set(conditions.values()) == {"True"}


def test_pods_have_gpus_of_their_own_and_one_too_many_waits_for_a_free_one(node: ProcessNode, pods: Pods) -> None:
    for name in ("one", "two"):
        pods.create(name)
        pods.wait_ready(name)
    pods.create("three")

    def refused() -> bool:
        conditions = pods.get("three")["status"].get("conditions") or ()
        return any(item["type"] == "PodScheduled" and item.get("reason") == "Unschedulable" for item in conditions)

    wait_until(refused, "the third pod to be found unschedulable")
    assert {pods.process(node, name)["gpus"] for name in ("one", "two")} == {"0", "1"}
    assert pods.get("one")["status"]["podIP"] != pods.get("two")["status"]["podIP"]
    freed = pods.process(node, "one")["gpus"]
    pods.delete("one")
    pods.wait_ready("three")
    assert pods.process(node, "three")["gpus"] == freed


def test_a_crash_shows_its_exit_code_and_the_second_one_waits_before_the_restart(pods: Pods) -> None:
    pods.create("one")
    url = pods.wait_ready("one")

    ask("POST", f"{url}/sim/crash", {"code": 42, "message": "CUDA error"})
    wait_until(lambda: pods.engine("one")["restartCount"] == 1, "the restart")
    assert pods.engine("one")["lastState"]["terminated"]["exitCode"] == 42
    pods.wait_ready("one")

    ask("POST", f"{url}/sim/crash", {"code": 137})
    waiting = wait_until(lambda: pods.engine("one")["state"].get("waiting"), "the back-off")
    assert waiting["reason"] == "CrashLoopBackOff"
    assert not pods.ready("one")
    assert pods.engine("one")["lastState"]["terminated"]["exitCode"] == 137
    pods.wait_ready("one")
    assert pods.engine("one")["restartCount"] == 2
    assert pods.get("one")["status"]["phase"] == "Running"


def test_readiness_follows_health_without_a_restart(pods: Pods) -> None:
    pods.create("one")
    url = pods.wait_ready("one")

    ask("PATCH", f"{url}/sim/faults", {"unhealthy": True})
    wait_until(lambda: not pods.ready("one"), "the pod to be unready")
    ask("DELETE", f"{url}/sim/faults")
    pods.wait_ready("one")

    assert pods.engine("one")["restartCount"] == 0


def test_an_engine_that_hangs_is_restarted_by_its_liveness_probe(pods: Pods) -> None:
    pods.create("one", livenessProbe={**HEALTH, **QUICK, "failureThreshold": 2, "terminationGracePeriodSeconds": 2})
    url = pods.wait_ready("one")

    with ThreadPoolExecutor(1) as pool:
        broken = under_way(pool, url, 20_000)
        ask("PATCH", f"{url}/sim/faults", {"hang": True})
        wait_until(lambda: pods.engine("one")["restartCount"] == 1, "the restart", 30)
        with pytest.raises(ConnectionError):
            broken.result(10)

    assert pods.engine("one")["lastState"]["terminated"]["exitCode"] == 137  # it drained in vain until its grace period was over
    pods.wait_ready("one")


def test_an_engine_that_never_answers_is_restarted_by_its_startup_probe(pods: Pods) -> None:
    env = [{"name": "DFLASH_SIM_STARTUP_SECONDS", "value": "60"}]
    pods.create("one", env=env, startupProbe={**HEALTH, **QUICK, "failureThreshold": 2})
    wait_until(lambda: pods.engine("one").get("restartCount") == 1, "the restart", 30)
    assert not pods.engine("one")["started"]


def test_a_deleted_pod_pauses_and_then_answers_what_is_under_way(node: ProcessNode, pods: Pods) -> None:
    pods.create("one", lifecycle={"preStop": {"sleep": {"seconds": 2}}})
    url = pods.wait_ready("one")

    with ThreadPoolExecutor(1) as pool:
        long = under_way(pool, url, 800)
        pods.delete("one")
        assert complete(url, 10) == 10  # the pause is for clients that do not know yet
        assert pods.ready("one")
        assert long.result(30) == 800
    pods.wait_gone("one")

    process = pods.process(node, "one")
    assert process["exitCode"] == 0
    assert "sigkillAt" not in process


def test_a_pod_that_outlasts_its_grace_period_is_killed(node: ProcessNode, pods: Pods) -> None:
    pods.create("one", spec={"terminationGracePeriodSeconds": 3})
    delete_during_a_long_request(pods)

    process = pods.process(node, "one")
    assert process["exitCode"] == 137
    assert process["sigkillAt"] > process["sigtermAt"]


def test_a_refused_command_line_fails_with_the_engines_own_words(pods: Pods) -> None:
    pods.create("one", args=[*ARGUMENTS, "--no-such-flag"], spec={"restartPolicy": "Never"})
    wait_until(lambda: pods.get("one")["status"].get("phase") == "Failed", "the pod to fail")
    ended = pods.engine("one")["state"]["terminated"]
    assert ended["exitCode"] == 2
    assert "--no-such-flag" in ended["message"]


def test_a_container_waits_for_a_secret_that_is_missing(node: ProcessNode, pods: Pods, namespace: str) -> None:
    pods.create("one", env=[{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}])
    waiting = wait_until(lambda: (pods.engine("one").get("state") or {}).get("waiting", {}).get("message"), "the message")
    assert waiting == "there is no key token in secret hub"
    assert pods.engine("one")["state"]["waiting"]["reason"] == "CreateContainerConfigError"

    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "data": {"token": base64.b64encode(b"s3cret").decode()}}
    pods.cluster.api.request("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)
    pods.wait_ready("one")
    assert pods.process(node, "one")["podEnv"]["TOKEN"] == "s3cret"


def test_kwok_leaves_a_process_node_and_its_pods_alone(cluster: Cluster, node: ProcessNode, pods: Pods) -> None:
    pods.create("one")
    pods.wait_ready("one")
    pods.create("simulated", image="busybox", command=["sleep"], args=["9"], resources={}, startupProbe=None, readinessProbe=None)
    pods.wait_ready("simulated")
    assert pods.get("simulated")["spec"]["nodeName"] == "cpu-0"
    found = cluster.api.get(f"/api/v1/nodes/{node.name}")
    assert found["status"]["nodeInfo"]["kubeletVersion"] == ""
    assert found["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert found["status"]["capacity"]["nvidia.com/gpu"] == str(GPUS)


def test_engines_end_with_a_killed_node_agent_and_run_again_with_the_next_one(cluster: Cluster, node: ProcessNode, pods: Pods) -> None:
    pods.create("one")
    url = pods.wait_ready("one")
    supervisor = pods.process(node, "one")["pid"]

    cluster.workspace.process(node.name).stop(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{supervisor}/cmdline").exists(), "the supervisor to end")
    with pytest.raises(URLError, match="refused"):
        complete(url, 10)
    node.start()

    try:
        wait_until(lambda: pods.engine("one")["restartCount"] == 1, "the next agent to start the engine")
    except TimeoutError as error:
        pytest.fail(f"{error}: {pods.get('one')['status']}\n{node.log.read_text()[-3000:]}")
    assert complete(pods.wait_ready("one"), 10) == 10


def test_a_pause_longer_than_the_grace_period_leaves_the_engine_two_seconds(node: ProcessNode, pods: Pods) -> None:
    pods.create("one", spec={"terminationGracePeriodSeconds": 2}, lifecycle={"preStop": {"exec": {"command": ["sleep", "60"]}}})
    delete_during_a_long_request(pods)

    process = pods.process(node, "one")
    assert process["sigkillAt"] - process["sigtermAt"] > 1.5  # never less, however busy the machine is


def test_an_engine_that_failed_its_liveness_probe_still_has_its_grace_period_when_it_is_deleted(node: ProcessNode, pods: Pods) -> None:
    pods.create("one", livenessProbe={**HEALTH, **QUICK, "failureThreshold": 2, "terminationGracePeriodSeconds": 1})
    url = pods.wait_ready("one")
    with ThreadPoolExecutor(1) as pool:
        broken = under_way(pool, url, 20_000)
        ask("PATCH", f"{url}/sim/faults", {"hang": True})
        wait_until(lambda: pods.engine("one")["restartCount"] == 1, "the restart", 30)
        with pytest.raises(ConnectionError):
            broken.result(10)
        url = pods.wait_ready("one")

        long = under_way(pool, url, 400)
        pods.delete("one")
        assert long.result(30) == 400
    pods.wait_gone("one")

    assert pods.process(node, "one")["exitCode"] == 0

"""The simulator plays the pods of a real API server, as kwok schedules and starts them."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

from testbed.simulator_process import SimulatorProcess
from testbed.waiting import wait_until
from tests.conftest import Kubectl

PORT = 30000


def deployment(name: str, replicas: int, *extra: str, annotations: dict[str, str] | None = None) -> str:
    arguments = [
        *[
            "-m",
            "sglang.launch_server",
            "--model-path",
            "Qwen/Qwen3.5-9B",
            "--speculative-algorithm",
            "DFLASH",
            "--enable-metrics",
            "--served-model-name",
            "m",
        ],
        *["--speculative-draft-model-path", "z-lab/Qwen3.5-9B-DFlash", "--speculative-num-draft-tokens", "16"],
        *extra,
    ]
    container = {
        "name": "engine",
        "image": "lmsysorg/sglang:v0.5.23",
        "command": ["python3"],
        "args": [*arguments, "--host=$(POD_IP)"],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    template = {
        "metadata": {"labels": {"app": name}, "annotations": annotations or {}},
        "spec": {"containers": [container], "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 5},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})


def pods(kubectl: Kubectl, name: str) -> list[dict[str, Any]]:
    listing = f"/api/v1/namespaces/{kubectl.namespace}/pods?labelSelector=app%3D{name}"
    found: list[dict[str, Any]] = kubectl.cluster.api.get(listing)["items"]
    return found


def is_ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))


def ready(kubectl: Kubectl, name: str, count: int) -> list[dict[str, Any]] | None:
    found = [pod for pod in pods(kubectl, name) if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]
    return found if len(found) == count else None


def ask(pod: dict[str, Any], path: str, body: object = None, method: str | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    url = f"http://{pod['status']['podIP']}:{PORT}{path}"
    with urlopen(Request(url, data, {"Content-Type": "application/json"}, method=method), timeout=5) as answer:
        return str(answer.read().decode())


def test_each_pod_is_an_engine_of_its_own(simulator: SimulatorProcess, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=deployment("web", 3))
    found = wait_until(lambda: ready(kubectl, "web", 3), "three pods", 30)
    answer = json.loads(ask(found[0], "/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 20}))
    assert answer["usage"]["completion_tokens"] == 20
    counted = ["sglang:num_requests_total" in ask(pod, "/metrics") for pod in found]
    assert counted == [True, False, False]
    played = {entry["address"]: entry for entry in simulator.pods()}
    assert f"--host={found[1]['status']['podIP']}" in played[found[1]["status"]["podIP"]]["argv"]


def test_a_refused_command_line_crash_loops_with_the_engines_words(simulator: SimulatorProcess, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=deployment("bad", 1, "--no-such-flag"))

    def crash_looping() -> dict[str, Any] | None:
        found = pods(kubectl, "bad")
        statuses = found[0]["status"].get("containerStatuses", []) if found else []
        return found[0] if statuses and statuses[0]["restartCount"] >= 2 else None

    pod = wait_until(crash_looping, "a crash loop", 30)
    assert not is_ready(pod)
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 2
    assert "--no-such-flag" in pod["metadata"]["annotations"]["sim/message"]


def test_a_crash_restarts_the_engine_with_fresh_counters(simulator: SimulatorProcess, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=deployment("crash", 1))
    (pod,) = wait_until(lambda: ready(kubectl, "crash", 1), "the pod", 30)
    ask(pod, "/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 20})
    assert "sglang:num_requests_total" in ask(pod, "/metrics")
    ask(pod, "/sim/crash", {"code": 137})

    def restarted() -> dict[str, Any] | None:
        found = ready(kubectl, "crash", 1)
        return found[0] if found and found[0]["status"]["containerStatuses"][0]["restartCount"] == 1 else None

    again = wait_until(restarted, "the restart", 30)
    assert again["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "OOMKilled"
    assert "sim/crash" not in again["metadata"].get("annotations", {})
    assert "sglang:num_requests_total" not in ask(again, "/metrics")


def test_a_hung_engine_is_unready_until_it_recovers(simulator: SimulatorProcess, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=deployment("hang", 1))
    (pod,) = wait_until(lambda: ready(kubectl, "hang", 1), "the pod", 30)
    ask(pod, "/sim/faults", {"hang": True}, "PATCH")
    wait_until(lambda: not is_ready(pods(kubectl, "hang")[0]), "unready", 10)
    ask(pod, "/sim/faults", method="DELETE")
    wait_until(lambda: ready(kubectl, "hang", 1), "ready again", 10)


def test_deleted_pods_are_gone_and_their_successors_answer(simulator: SimulatorProcess, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=deployment("swap", 1))
    (old,) = wait_until(lambda: ready(kubectl, "swap", 1), "the pod", 30)
    kubectl("delete", "pod", old["metadata"]["name"], "--wait=true")
    (new,) = wait_until(lambda: ready(kubectl, "swap", 1), "its successor", 30)
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert json.loads(ask(new, "/v1/models"))["data"][0]["id"] == "m"

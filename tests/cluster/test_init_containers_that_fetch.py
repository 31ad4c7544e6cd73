"""Engine pods whose init container fetches: the real program with the rendered command line, and statuses as a kubelet writes them."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash_controller.model.fetch_progress import LIMIT_VARIABLE
from testbed.cluster import Cluster
from testbed.waiting import wait_until
from tests.conftest import StartOperator
from tests.support.deployment import Deployment, rollout_spec
from tests.support.fetching import message_file, start
from tests.support.hub_server import COMMIT, HubServer, content

TARGET, DRAFTER = "Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash"
FILES = {"config.json": b"{}", "model.safetensors": content(40_000_000, 1)}
IMAGE = "dflash-operator:test"
HELD = {"sim/start-after": "1h"}
"""The init container runs until the test says otherwise."""
NOW = "2026-01-01T00:00:00Z"
Fault = Callable[[HubServer], dict[str, str]]


def fetching(cluster: Cluster, namespace: str) -> tuple[Deployment, dict[str, Any]]:
    """A new deployment and its pod, whose init container runs."""
    spec = rollout_spec(
        1,
        target={"model": TARGET, "revision": COMMIT},
        drafter={"revision": COMMIT},
        storage={"emptyDir": {}},
        podTemplate={"metadata": {"annotations": HELD}},
    )
    deployment = Deployment(cluster, namespace).create(spec)
    [pod] = wait_until(lambda: [pod for pod in deployment.children("pods") if pod["status"].get("podIP")], "the pod's init container")
    return deployment, pod


def arguments(pod: dict[str, Any]) -> list[str]:
    """What the kubelet would start, into another directory."""
    [init] = pod["spec"]["initContainers"]
    assert init["command"] == ["python3", "-m", "dflash_controller.fetch"]
    return [argument for argument in init["args"] if not argument.startswith("--into=")]


def report(deployment: Deployment, pod: dict[str, Any], state: dict[str, Any], **more: Any) -> None:
    """Writes the state of the init container into the pod's status. kwok leaves the pod alone from then on."""
    path = f"/api/v1/namespaces/{deployment.namespace}/pods/{pod['metadata']['name']}"
    deployment.cluster.api.request("PATCH", path, {"metadata": {"annotations": {"sim/frozen": "true"}}})
    init = {**pod["status"]["initContainerStatuses"][0], "ready": False, "state": state, **more}
    deployment.cluster.api.request("PATCH", f"{path}/status", {"status": {"initContainerStatuses": [init]}})


def test_the_progress_of_an_init_container_is_in_the_status(
    start_operator: StartOperator, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    start_operator(fetch_image=IMAGE)
    deployment, pod = fetching(cluster, namespace)
    into = tmp_path / "storage"
    into.mkdir()
    with HubServer({TARGET: FILES, DRAFTER: FILES}, rate=500_000) as hub:
        process = start(into, *arguments(pod), endpoint=hub.endpoint)
        try:
            name = pod["metadata"]["name"]
            words = rf"0 of 1 serving\. Pod {name} fetches the weights\. It has [\d.]+ MB of 80\.0 MB \(\d+ %\), [\d.]+ .B/s, .* left"
            wait_until(lambda: re.fullmatch(words, deployment.condition("Ready")[2]), "bytes, rate and time left", 100)
            assert deployment.condition("Ready")[:2] == ("False", "Starting")
            assert re.search(words, deployment.rollout()["message"])
            assert deployment.condition("Stalled")[0] == "False"
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
    policy = deployment.children("networkpolicies")[0]["spec"]["ingress"]
    assert {"port": 8090, "protocol": "TCP"} in policy[0]["ports"]


def unauthorized(hub: HubServer) -> dict[str, str]:
    hub.token = "right"
    return {"HF_TOKEN": "wrong"}


def gated(hub: HubServer) -> dict[str, str]:
    hub.gated = {DRAFTER}
    return {"HF_TOKEN": "right"}


def missing(hub: HubServer) -> dict[str, str]:
    del hub.models[DRAFTER]
    return {"HF_TOKEN": "right"}


def no_space(hub: HubServer) -> dict[str, str]:
    return {LIMIT_VARIABLE: "100000000"}


def corrupted(hub: HubServer) -> dict[str, str]:
    hub.corrupted = {"model.safetensors"}
    return {}


FAULTS: list[tuple[Fault, str, str]] = [
    (unauthorized, "WeightsForbidden", "spec.huggingFace"),
    (gated, "WeightsForbidden", "terms"),
    (missing, "WeightsNotFound", DRAFTER),
    (no_space, "StorageFull", "spec.storage"),
    (corrupted, "WeightsCorrupt", "HF_ENDPOINT"),
]


def test_the_end_of_an_init_container_is_a_condition_with_its_remedy(
    start_operator: StartOperator, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    start_operator(fetch_image=IMAGE)
    deployment, pod = fetching(cluster, namespace)
    for fault, reason, remedy in FAULTS:
        into = tmp_path / fault.__name__
        into.mkdir()
        with HubServer({TARGET: FILES, DRAFTER: FILES}) as hub:
            environment = fault(hub)
            process = start(into, *arguments(pod), endpoint=hub.endpoint, **environment)
            _, log = process.communicate(timeout=120)
        said = message_file(into).read_text()
        words = json.loads(said)["message"]
        ended = {"exitCode": process.returncode, "reason": "Error", "startedAt": NOW, "finishedAt": NOW, "message": said}
        report(
            deployment,
            pod,
            {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}},
            lastState={"terminated": ended},
            restartCount=1,
        )
        assert remedy in words, fault.__name__
        wait_until(lambda: words[:60] in deployment.condition("Ready")[2], f"the words of the program: {log}")  # noqa: B023
        status, told, shown = deployment.condition("Ready")
        assert (status, told) == ("False", reason)
        assert f"kubectl logs {pod['metadata']['name']} -c dflash-fetch" in shown
    report(deployment, pod, {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": NOW, "finishedAt": NOW}}, restartCount=1)
    wait_until(lambda: deployment.condition("Ready")[:2] == ("False", "Starting"), "the failure to be over")


def test_weights_in_an_image_reach_the_pod(start_operator: StartOperator, cluster: Cluster, namespace: str) -> None:
    start_operator(fetch_image=IMAGE)
    models = {"target": {"model": TARGET, "revision": COMMIT}, "drafter": {"revision": COMMIT}}
    reference = "registry.example.com/weights/qwen3.5-9b:1"
    deployment = Deployment(cluster, namespace).create(rollout_spec(1, **models, storage={"image": {"reference": reference}}))
    deployment.wait_done()
    [pod] = deployment.children("pods")
    volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "storage")
    assert volume["image"] == {"reference": reference, "pullPolicy": "IfNotPresent"}, "the API server knows image volumes"
    assert "initContainers" not in pod["spec"]

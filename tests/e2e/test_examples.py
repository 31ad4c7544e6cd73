"""Every file of examples/ reaches Ready; the one over two nodes as far as it can where no LeaderWorkerSet controller runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.api import ApiError
from testbed.cluster import Cluster
from testbed.operator_process import OperatorProcess
from testbed.simulator_process import SimulatorProcess
from testbed.waiting import wait_until
from tests.conftest import StartOperator
from tests.support.deployment import Deployment

ROOT = Path(__file__).parents[2]
LEADER_WORKER_SET = ROOT / "testbed" / "data" / "leaderworkerset-crd.yaml"
TWO_NODES = ROOT / "examples" / "qwen3.5-397b-a17b-sglang-two-nodes.yaml"
ONE_NODE = sorted(path for path in (ROOT / "examples").glob("*.yaml") if path != TWO_NODES)


@pytest.fixture(scope="module")
def applied(cluster: Cluster, rights: None, simulator: SimulatorProcess) -> Iterator[str]:
    """The namespace in which all examples of one node were applied at once, as a user would, with an operator."""
    namespace = cluster.create_namespace("examples")
    settings = {"namespaces": namespace, "leader_election": "false", "log_format": "text"}
    try:
        with OperatorProcess(cluster, settings, name=namespace):
            for path in ONE_NODE:
                cluster.kubectl("--namespace", namespace, "apply", "-f", str(path))
            yield namespace
    finally:
        cluster.delete_namespace(namespace)


def test_there_is_an_example_of_every_seed_model_on_both_engines() -> None:
    found = {(spec["target"]["model"], spec["engine"]["name"]) for path in ONE_NODE for spec in [yaml.safe_load(path.read_text())["spec"]]}
    models = ("Qwen/Qwen3.5-9B", "Qwen/Qwen3.5-27B", "Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.5-397B-A17B")
    assert found == {(model, engine) for model in models for engine in ("sglang", "vllm")}


@pytest.mark.parametrize("path", ONE_NODE, ids=lambda path: path.stem)
def test_an_example_reaches_ready(path: Path, applied: str, cluster: Cluster, simulator: SimulatorProcess) -> None:
    written = yaml.safe_load(path.read_text())
    deployment = Deployment(cluster, applied, written["metadata"]["name"])
    deployment.wait_done(60)
    assert deployment.condition("Stalled")[0] == "False"
    pods = deployment.children("pods")
    assert len(pods) == written["spec"]["replicas"]
    played = {pod["pod"]: pod for pod in simulator.pods()}
    for pod in pods:
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == str(written["spec"]["parallelism"]["tensor"])
        engine = played[f"{applied}/{pod['metadata']['name']}"]
        assert (engine["engine"], engine["release"]) == (written["spec"]["engine"]["name"], written["spec"]["engine"]["version"])
        assert engine["block_size"] == written["spec"]["blockSize"]


@pytest.fixture
def leader_worker_sets_later(cluster: Cluster) -> Iterator[None]:
    yield
    name = yaml.safe_load(LEADER_WORKER_SET.read_text())["metadata"]["name"]
    cluster.kubectl("delete", "crd", name, "--ignore-not-found")


def test_the_example_over_two_nodes_asks_for_leader_worker_sets_and_takes_them_when_they_come(
    start_operator: StartOperator, cluster: Cluster, namespace: str, leader_worker_sets_later: None
) -> None:
    start_operator(resync_seconds="2")
    cluster.kubectl("--namespace", namespace, "apply", "-f", str(TWO_NODES))
    written = yaml.safe_load(TWO_NODES.read_text())
    deployment = Deployment(cluster, namespace, written["metadata"]["name"])
    wait_until(lambda: deployment.condition("Stalled")[0] == "True", "Stalled")
    _, reason, message = deployment.condition("Stalled")
    assert reason == "LeaderWorkerSetMissing"
    assert "Install LeaderWorkerSet 0.9" in message
    assert deployment.condition("Ready")[:2] == ("False", "LeaderWorkerSetMissing")
    assert not deployment.children("controllerrevisions")

    cluster.install_crds(LEADER_WORKER_SET)
    wait_until(lambda: made_so_far(deployment), "the LeaderWorkerSet")
    (made,), (revision,) = deployment.children("leaderworkersets"), deployment.children("controllerrevisions")
    assert contains(made, revision["data"]["workload"])
    assert made["metadata"]["name"] == revision["metadata"]["name"]
    assert (made["spec"]["replicas"], made["spec"]["leaderWorkerTemplate"]["size"]) == (1, 2)
    for template in ("leaderTemplate", "workerTemplate"):
        (engine,) = made["spec"]["leaderWorkerTemplate"][template]["spec"]["containers"]
        assert engine["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert "--tp-size=16" in engine["args"] or "--tensor-parallel-size=16" in engine["args"], json.dumps(engine["args"])
    wait_until(lambda: deployment.condition("Stalled")[0] == "False", "Stalled to end")
    assert deployment.condition("Ready")[:2] == ("False", "Starting")


def made_so_far(deployment: Deployment) -> list[dict[str, Any]]:
    try:
        return deployment.children("leaderworkersets")
    except ApiError:  # the kind is established a moment before it can be listed
        return []


def contains(whole: Any, part: Any) -> bool:
    """Whether everything in ``part`` is in ``whole``; defaults may have been added."""
    if isinstance(part, Mapping):
        return isinstance(whole, Mapping) and all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)

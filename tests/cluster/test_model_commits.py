"""Branches of a real API server's DFlashDeployments against a hub on this machine: resolved once, moved, adopted, and without the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.hub_server import HubServer, commit_of
from testbed.waiting import wait_until
from tests.conftest import StartOperator
from tests.support.deployment import UNJUDGED, Deployment

TARGET, DRAFTER = "Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash"
T1, D1, D2, D3 = (commit_of(name) for name in ("target", "first", "second", "third"))
TARGET_CONFIG = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 248320}
DRAFTER_CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": 4096,
    "vocab_size": 248320,
    "block_size": 16,
    "dflash_config": {"target_layer_ids": [1, 15, 29]},
}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        server.publish(TARGET, T1, {"config.json": TARGET_CONFIG})
        server.publish(DRAFTER, D1, {"config.json": DRAFTER_CONFIG})
        yield server


def spec(**more: Any) -> dict[str, Any]:
    """Two replicas of branches, whose weights the operator's pods fetch."""
    return {
        "target": {"model": TARGET},
        "replicas": 2,
        "tuning": {"mode": "Off"},
        "storage": {"emptyDir": {}},
        "rollout": {"maxSurge": 0, "maxUnavailable": 1, **UNJUDGED},
        **more,
    }


def notice(deployment: Deployment, reason: str) -> str:
    return next((item["message"] for item in deployment.status().get("notices") or () if item["reason"] == reason), "")


def commits(deployment: Deployment) -> list[set[str]]:
    """Of each pod, those of the drafter that its specification names."""
    pods = [json.dumps(pod["spec"]) for pod in deployment.children("pods") if not pod["metadata"].get("deletionTimestamp")]
    return [{commit for commit in (D1, D2, D3) if commit in text} for text in pods]


def test_a_branch_is_resolved_once_moves_unadopted_and_is_adopted_by_restart_id_with_and_without_the_hub(
    start_operator: StartOperator, cluster: Cluster, namespace: str, hub: HubServer
) -> None:
    start_operator(hugging_face_endpoint=hub.url, hugging_face_seconds="1", warm_up_seconds="1")
    deployment = Deployment(cluster, namespace).create(spec())
    deployment.wait_done()
    assert commits(deployment) == [{D1}, {D1}]
    assert deployment.status()["drafterRevision"] == D1
    assert not notice(deployment, "RevisionNotPinned")

    # The branch moves: nothing starts, and both commits are named.
    pods, revisions = deployment.pod_uids(), deployment.names("controllerrevisions")
    hub.publish(DRAFTER, D2, {"config.json": DRAFTER_CONFIG})
    told = wait_until(lambda: notice(deployment, "NewerDrafterAvailable"), "the newer drafter to be reported")
    assert D1 in told
    assert D2 in told
    assert "change spec.restartId" in told
    # A pod that is deleted comes back with the old commit.
    gone = deployment.children("pods")[0]["metadata"]
    cluster.api.delete(f"/api/v1/namespaces/{namespace}/pods/{gone['name']}")
    wait_until(lambda: gone["uid"] not in deployment.pod_uids() and deployment.is_done(), "the deleted pod again")
    assert commits(deployment) == [{D1}, {D1}]
    assert deployment.names("controllerrevisions") == revisions

    # A new restartId adopts it, on every replica.
    deployment.patch(restartId="adopt")
    deployment.wait_done()
    assert commits(deployment) == [{D2}, {D2}]
    assert not pods & deployment.pod_uids()
    wait_until(lambda: not notice(deployment, "NewerDrafterAvailable"), "the report to go")

    # Without the hub what runs goes on, and the status says what is not known.
    pods = deployment.pod_uids()
    hub.stop()
    told = wait_until(lambda: notice(deployment, "HubUnavailable"), "the hub's absence to be reported")
    assert f"{hub.url} cannot be reached" in told
    assert deployment.condition("Ready")[0] == "True"
    deployment.patch(drafter={"revision": "v2"})
    wait_until(lambda: deployment.condition("Stalled")[:2] == ("True", "RevisionNotResolved"), "the branch that nobody can resolve")
    message = deployment.condition("Stalled")[2]
    assert message.startswith(f"spec.drafter.revision: v2 of {DRAFTER} is not resolved to a commit, because {hub.url} cannot be reached")
    assert "set spec.drafter.revision to a 40-digit commit" in message
    assert deployment.pod_uids() == pods
    assert deployment.condition("Available")[0] == "True"

    # It goes on by itself once the hub is back.
    hub.publish(DRAFTER, D3, {"config.json": DRAFTER_CONFIG}, ref="v2")
    hub.start()
    wait_until(lambda: deployment.status().get("drafterRevision") == D3, "the branch to be resolved", 60)
    deployment.wait_done()
    assert commits(deployment) == [{D3}, {D3}]


def test_a_drafter_of_another_target_never_starts_an_engine(
    start_operator: StartOperator, cluster: Cluster, namespace: str, hub: HubServer
) -> None:
    wrong = {**DRAFTER_CONFIG, "dflash_config": {"target_layer_ids": [1, 47]}}
    hub.publish(DRAFTER, D1, {"config.json": wrong})
    start_operator(hugging_face_endpoint=hub.url, hugging_face_seconds="1")
    deployment = Deployment(cluster, namespace).create(spec())
    wait_until(lambda: deployment.condition("Stalled")[0] == "True", "the refusal")
    status, reason, message = deployment.condition("Stalled")
    assert (status, reason) == ("True", "DrafterMismatch")
    assert message.startswith(f"spec.drafter.model: {DRAFTER} reads layer 47 of its target (target_layer_ids)")
    assert not deployment.names("controllerrevisions")
    assert not deployment.names("pods")
    # The publisher corrects the branch, and the deployment starts by itself.
    hub.publish(DRAFTER, D2, {"config.json": DRAFTER_CONFIG})
    deployment.wait_done(60)
    assert commits(deployment) == [{D2}, {D2}]

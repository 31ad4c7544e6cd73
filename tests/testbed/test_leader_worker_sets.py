"""LeaderWorkerSets act as their controller makes them act: with the stand-in, or with the real one (`make e2e-lws`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.leader_worker_set import objects
from testbed.leader_worker_set.processes import LeaderWorkerSets
from testbed.waiting import wait_until
from tests.conftest import Kubectl

REAL = os.environ.get("DFLASH_REAL_LWS") == "1"
NAME = "set-r1"
LABELS = {"example.com/engine": "set"}


@pytest.fixture(scope="module", autouse=True)
def leader_worker_sets(cluster: Cluster) -> Iterator[None]:
    with LeaderWorkerSets(cluster, real=REAL):
        yield


@pytest.fixture
def made(cluster: Cluster, namespace: str) -> Groups:
    """Two groups of two pods, all Ready."""
    cluster.apply_yaml(leader_worker_set(replicas=2), namespace)
    groups = Groups(cluster, namespace)
    groups.wait_ready(2)
    return groups


def template(role: str) -> dict[str, Any]:
    container = {"name": "engine", "image": "example.com/engine:1", "env": [{"name": "MASTER", "value": "$(LWS_LEADER_ADDRESS):1"}]}
    return {"metadata": {"labels": LABELS, "annotations": {"example.com/role": role}}, "spec": {"containers": [container]}}


def leader_worker_set(replicas: int) -> dict[str, Any]:
    return {
        "apiVersion": objects.API_VERSION,
        "kind": "LeaderWorkerSet",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "Shared"},
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 1, "maxSurge": 0},
            },
            "leaderWorkerTemplate": {
                "size": 2,
                "restartPolicy": "RecreateGroupAfterStart",
                "leaderTemplate": template("leader"),
                "workerTemplate": template("worker"),
            },
        },
    }


class Groups:
    """The pods of the LeaderWorkerSet."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace

    def get(self, kind: str, group: str = "/apis/apps/v1", name: str = "") -> Any:
        return self._cluster.api.get(f"{group}/namespaces/{self._namespace}/{kind}{'/' if name else ''}{name}")

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self.get("pods", "/api/v1")["items"]}

    def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("leaderworkersets", f"/apis/{objects.API_VERSION}", NAME).get("status") or {}
        return found

    def wait_ready(self, count: int) -> None:
        def ready() -> bool:
            pods = self.pods().values()
            counted = self.status().get("replicas") == self.status().get("readyReplicas") == count
            return counted and len(pods) == 2 * count and all(map(objects.is_ready, pods))

        wait_until(ready, f"{count} groups")


def test_pods_know_their_group_and_the_set_says_what_it_has(made: Groups) -> None:
    pods = made.pods()
    assert set(pods) == {f"{NAME}-0", f"{NAME}-0-1", f"{NAME}-1", f"{NAME}-1-1"}
    for name, pod in pods.items():
        labels, index = pod["metadata"]["labels"], name.removeprefix(f"{NAME}-").partition("-")[0]
        worker = "1" if name.count("-") == 3 else "0"
        assert LABELS.items() <= labels.items()
        assert (labels[objects.NAME], labels[objects.GROUP_INDEX], labels[objects.WORKER_INDEX]) == (NAME, index, worker)
        assert pod["metadata"]["annotations"][objects.SIZE] == "2"
        assert [item["value"] for item in pod["spec"]["containers"][0]["env"]] == [
            f"{NAME}-{index}.{NAME}.{pod['metadata']['namespace']}",
            "2",
            worker,
            "$(LWS_LEADER_ADDRESS):1",
        ]
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("StatefulSet", NAME if worker == "0" else f"{NAME}-{index}")
    owners = {item["metadata"]["name"]: item["metadata"]["ownerReferences"][0] for item in made.get("statefulsets")["items"]}
    assert {name: (owner["kind"], owner["name"]) for name, owner in owners.items()} == {
        NAME: ("LeaderWorkerSet", NAME),
        f"{NAME}-0": ("Pod", f"{NAME}-0"),
        f"{NAME}-1": ("Pod", f"{NAME}-1"),
    }
    # Those of the StatefulSets have the labels of the pods' templates.
    revisions = [item["metadata"] for item in made.get("controllerrevisions")["items"]]
    controllers = [(item["ownerReferences"][0]["kind"], LABELS.items() <= item["labels"].items()) for item in revisions]
    assert sorted(controllers) == [("LeaderWorkerSet", False), *[("StatefulSet", True)] * 3]
    (service,) = (item for item in made.get("services", "/api/v1")["items"] if item["metadata"]["name"] == NAME)
    assert service["spec"]["selector"] == {objects.NAME: NAME}
    status = made.status()
    assert (status["updatedReplicas"], status["observedGeneration"]) == (2, 1)
    assert status["hpaPodSelector"] == f"{objects.NAME}={NAME},{objects.WORKER_INDEX}=0"
    assert {item["type"]: item["status"] for item in status["conditions"]} == {"Available": "True", "Progressing": "False"}


@pytest.mark.skipif(REAL, reason="as LeaderWorkerSet 0.10 does; the release built here is 0.9")
def test_labels_and_annotations_of_a_set_reach_its_stateful_sets_and_their_revisions(cluster: Cluster, namespace: str) -> None:
    manifest = leader_worker_set(replicas=1)
    manifest["metadata"] |= {"labels": {"example.com/team": "ml"}, "annotations": {"example.com/state": "Stable"}}
    cluster.apply_yaml(manifest, namespace)
    groups = Groups(cluster, namespace)
    groups.wait_ready(1)
    for item in groups.get("statefulsets")["items"]:
        assert item["metadata"]["labels"]["example.com/team"] == "ml"
    copies = [item["metadata"].get("annotations") or {} for item in groups.get("controllerrevisions")["items"]]
    assert sum(copy.get("example.com/state") == "Stable" for copy in copies) == 2
    assert not any("example.com/team" in pod["metadata"]["labels"] for pod in groups.pods().values())


@pytest.mark.parametrize(
    "harm",
    [
        lambda kubectl, pod: kubectl("delete", "pod", pod, "--wait=false"),
        lambda kubectl, pod: kubectl("delete", "pod", pod, "--grace-period=0", "--force"),
        lambda kubectl, pod: kubectl("annotate", "pod", pod, "sim/crash=1"),
    ],
    ids=["deleted", "force-deleted", "restarted"],
)
def test_a_group_that_loses_a_pod_is_recreated_as_a_whole(harm: Callable[[Kubectl, str], str], made: Groups, kubectl: Kubectl) -> None:
    group, other = (f"{NAME}-1", f"{NAME}-1-1"), (f"{NAME}-0", f"{NAME}-0-1")
    for member in group:
        before = made.uids()
        harm(kubectl, member)

        def recreated(before: dict[str, str] = before) -> bool:
            now = made.uids()
            return set(now) == set(before) and not any(now[name] == before[name] for name in group)

        wait_until(recreated, f"another leader and another worker after the end of {member}")
        made.wait_ready(2)
        assert all(made.uids()[name] == before[name] for name in other)
        assert all(container["restartCount"] == 0 for pod in made.pods().values() for container in pod["status"]["containerStatuses"])


def test_a_leader_is_not_ready_before_its_workers(cluster: Cluster, namespace: str) -> None:
    manifest = leader_worker_set(replicas=1)
    manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["annotations"] |= {"sim/ready": "false"}
    cluster.apply_yaml(manifest, namespace)
    groups = Groups(cluster, namespace)
    wait_until(lambda: {pod["status"]["phase"] for pod in groups.pods().values()} == {"Running"} and len(groups.pods()) == 2, "two pods")
    assert not any(map(objects.is_ready, groups.pods().values()))
    path = f"/api/v1/namespaces/{namespace}/pods/{NAME}-0-1"
    cluster.api.request("PATCH", path, {"metadata": {"annotations": {"sim/ready": None}}})
    groups.wait_ready(1)
    cluster.api.request("PATCH", path, {"metadata": {"annotations": {"sim/ready": "false"}}})
    wait_until(lambda: groups.status().get("readyReplicas") is None, "the group not to be ready")
    assert objects.is_ready(groups.pods()[f"{NAME}-0"]), "a leader does not know"


def test_the_highest_indexes_go_first_and_an_orphan_delete_keeps_all_pods(
    made: Groups, cluster: Cluster, namespace: str, kubectl: Kubectl
) -> None:
    kubectl("scale", "leaderworkerset", NAME, "--replicas=3")
    made.wait_ready(3)
    kubectl("scale", "leaderworkerset", NAME, "--replicas=1")
    made.wait_ready(1)
    before = made.uids()
    assert set(before) == {f"{NAME}-0", f"{NAME}-0-1"}
    kubectl("delete", "leaderworkerset", NAME, "--cascade=orphan")
    cluster.apply_yaml(leader_worker_set(replicas=1), namespace)
    made.wait_ready(1)
    assert made.uids() == before
    kubectl("delete", "leaderworkerset", NAME)
    wait_until(lambda: not made.pods(), "the pods to go")

"""Objects of users that carry our label, and workloads deleted without their pods, beside a real API server and its controllers."""

from __future__ import annotations

import json
from typing import Any

import yaml

from testbed.waiting import wait_until
from tests.conftest import Kubectl, StartOperator
from tests.support.deployment import UNJUDGED, Deployment

LABEL = "serving.dflash.io/deployment=chat"
CHILDREN = "controllerrevisions,deployments,services,pdb,networkpolicies,serviceaccounts"
ANOTHER = "chat-rzzzzzzz"


def manifest(**spec: Any) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "serving.dflash.io/v1alpha1",
            "kind": "DFlashDeployment",
            "metadata": {"name": "chat"},
            "spec": {"target": {"model": "Qwen/Qwen3.5-9B"}, **spec},
        }
    )


def get(kubectl: Kubectl, *what: str) -> Any:
    return json.loads(kubectl("get", *what, "-o", "json"))


def status(kubectl: Kubectl) -> dict[str, Any]:
    return Deployment(kubectl.cluster, kubectl.namespace, "chat").status()


def ready(kubectl: Kubectl) -> None:
    kubectl("wait", "--for=condition=Ready", "dfd/chat", "--timeout=120s")


def copied(child: dict[str, Any], name: str) -> dict[str, Any]:
    """As somebody who debugs makes one: another name, and everything else as it was."""
    metadata = {field: child["metadata"].get(field) or {} for field in ("labels", "annotations")}
    copy = {**child, "metadata": {**metadata, "name": name, "ownerReferences": child["metadata"]["ownerReferences"]}}
    copy.pop("status", None)
    if child["kind"] == "Service":
        copy["spec"] = {key: value for key, value in child["spec"].items() if not key.startswith("clusterIP")}
    if child["kind"] == "Deployment":
        copy["spec"] = child["spec"] | {"replicas": 1}
    return copy


def uids(kubectl: Kubectl, owner: str) -> set[str]:
    """Returns the pods whose ReplicaSet belongs to a Deployment of this name."""
    pods = get(kubectl, "pods", "-l", LABEL)["items"]
    return {pod["metadata"]["uid"] for pod in pods if pod["metadata"]["name"].rpartition("-")[0].rpartition("-")[0] == owner}


def lasting(item: dict[str, Any]) -> str:
    metadata = {field: value for field, value in item["metadata"].items() if field not in ("resourceVersion", "managedFields")}
    metadata["annotations"] = {
        key: value for key, value in (metadata.get("annotations") or {}).items() if not key.startswith("deployment.kubernetes.io/")
    }
    return json.dumps([metadata, item.get("spec"), item.get("data")], sort_keys=True)


def test_copies_of_children_survive_everything_and_count_for_nothing(start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest(replicas=2, rollout=UNJUDGED))
    ready(kubectl)
    first = status(kubectl)["stableRevision"]
    copies = []
    for child in get(kubectl, CHILDREN, "-l", LABEL)["items"]:
        copies.append(copied(child, f"{child['metadata']['name']}-debug"))
        if child["kind"] in ("Deployment", "ControllerRevision"):
            copies.append(copied(child, ANOTHER))
    kubectl("create", "-f", "-", input=yaml.safe_dump_all(copies))
    wanted = [f"{item['kind'].lower()}/{item['metadata']['name']}" for item in copies]
    wait_until(lambda: uids(kubectl, ANOTHER) and uids(kubectl, f"{first}-debug"), "the pods of the copies")
    before = {lasting(item) for item in get(kubectl, *wanted)["items"]}
    pods = uids(kubectl, ANOTHER) | uids(kubectl, f"{first}-debug")

    def told() -> str:
        return next((item["message"] for item in status(kubectl).get("notices") or () if item["reason"] == "ForeignObject"), "")

    wait_until(lambda: f"ControllerRevision {first}-debug" in told(), "the notice")
    kubectl("patch", "dfd/chat", "--type=merge", "-p", '{"spec":{"replicas":3}}')
    wait_until(lambda: status(kubectl)["serving"] == "3/3", "three replicas")
    assert (status(kubectl)["replicas"], status(kubectl)["stableRevision"]) == (3, first)
    kubectl("patch", "dfd/chat", "--type=merge", "-p", '{"spec":{"restartId":"again","replicas":2}}')
    wait_until(lambda: status(kubectl)["stableRevision"] != first and status(kubectl)["serving"] == "2/2", "the new revision", 120)
    ready(kubectl)
    wait_until(lambda: [item["metadata"]["name"] for item in get(kubectl, "deployments")["items"]].count(first) == 0, "the old to go", 60)
    assert {lasting(item) for item in get(kubectl, *wanted)["items"]} == before
    assert uids(kubectl, ANOTHER) | uids(kubectl, f"{first}-debug") == pods
    assert status(kubectl)["replicas"] == 2


def test_a_workload_deleted_without_its_pods_comes_back_and_keeps_them(start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest(replicas=3))
    ready(kubectl)
    name = status(kubectl)["stableRevision"]
    uid, pods = get(kubectl, "deployment", name)["metadata"]["uid"], uids(kubectl, name)
    kubectl("delete", f"deployment/{name}", "--cascade=orphan", "--wait=false")
    wait_until(
        lambda: any(
            item["metadata"]["uid"] != uid and item["status"].get("readyReplicas") == 3 for item in get(kubectl, "deployments")["items"]
        ),
        "the workload",
        90,
    )
    assert get(kubectl, "deployment", name)["spec"]["replicas"] == 3
    assert uids(kubectl, name) == pods
    assert len(get(kubectl, "pods", "-l", LABEL)["items"]) == 3

"""The rights that the chart grants, compared with the audit log of a run: all that is used is granted, all that is granted is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from testbed.audit import service_account_user
from testbed.cluster import Cluster
from testbed.leader_worker_set.processes import LeaderWorkerSets
from testbed.operator_process import NAMESPACE, SERVICE_ACCOUNT
from testbed.waiting import wait_until
from tests.cluster.test_optional_kinds import POD_MONITOR_CRD
from tests.conftest import StartOperator
from tests.e2e.conftest import Say
from tests.support.deployment import UNJUDGED, Deployment

pytestmark = pytest.mark.long

Right = tuple[str, str]
"""Resource with its group, and verb."""
HOST_PATH = "/mnt/models"
FETCHING = {"sim/complete-after": "0s"}
CHILDREN = (
    "/services",
    "/serviceaccounts",
    "policy/poddisruptionbudgets",
    "networking.k8s.io/networkpolicies",
    "monitoring.coreos.com/podmonitors",
    "apps/deployments",
    "apps/controllerrevisions",
    "leaderworkerset.x-k8s.io/leaderworkersets",
    "batch/jobs",
)
SELDOM: Mapping[Right, str] = {
    ("serving.dflash.io/dflashdeployments/finalizers", "update"): "checked by an admission plugin that this cluster does not run",
    ("serving.dflash.io/dflashdeployments", "get"): "read again after a conflict",
    ("/events", "get"): "asked once per event after a restart",
    **{(kind, "get"): "read again after a conflict, or where its name is taken" for kind in CHILDREN},
}
"""Rights that a run without conflicts may not use, and when they are used."""


@pytest.fixture(scope="module")
def optional_kinds(cluster: Cluster) -> Iterator[None]:
    """LeaderWorkerSet and PodMonitor."""
    cluster.apply_yaml(POD_MONITOR_CRD)
    with LeaderWorkerSets(cluster):
        yield
    cluster.kubectl("delete", "crd", POD_MONITOR_CRD["metadata"]["name"])


def granted(cluster: Cluster) -> set[Right]:
    """What the roles of the operator's ServiceAccount allow, as the API server has them."""
    found: set[Right] = set()
    for binding in cluster.get("clusterrolebindings,rolebindings", "-A")["items"]:
        subject = {"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": NAMESPACE}
        if subject not in (binding.get("subjects") or ()):
            continue
        place = ["--namespace", binding["metadata"]["namespace"]] if binding["roleRef"]["kind"] == "Role" else []
        for rule in cluster.get(binding["roleRef"]["kind"], binding["roleRef"]["name"], *place)["rules"]:
            found |= {(f"{g}/{r}", verb) for g in rule["apiGroups"] for r in rule["resources"] for verb in rule["verbs"]}
    return found


def used(events: list[dict[str, Any]]) -> set[Right]:
    """What was asked for. Server-side apply of a new object is a patch that also needs the right to create."""
    found: set[Right] = set()
    for event in events:
        if "objectRef" not in event:
            continue
        reference = event["objectRef"]
        resource = f"{reference.get('apiGroup', '')}/{reference['resource']}"
        if subresource := reference.get("subresource"):
            resource += f"/{subresource}"
        found.add((resource, event["verb"]))
        if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:
            found.add((resource, "create"))
    return found


def table(granted: set[Right], used: set[Right]) -> str:
    """Returns the rights by resource, for people: those in brackets were not used."""
    lines = []
    for resource in sorted({resource for resource, _ in granted | used}):
        verbs = sorted(verb for name, verb in granted | used if name == resource)
        shown = [verb if (resource, verb) in used else f"({verb})" for verb in verbs]
        lines.append(f"  {resource.removeprefix('/'):60} {' '.join(shown)}")
    return "\n".join(lines)


def spec(revision: str, **more: Any) -> dict[str, Any]:
    return {
        "target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40},
        "drafter": {"revision": revision * 40},
        "replicas": 1,
        "tuning": {"mode": "Off"},
        "rollout": {**UNJUDGED, "maxSurge": 0, "maxUnavailable": 1, "historyLimit": 1},
        "podTemplate": {"metadata": {"annotations": FETCHING}},
        **more,
    }


def revisions(deployment: Deployment) -> list[str]:
    """Its own ones: those of a StatefulSet have its labels too."""
    found = deployment.children("controllerrevisions")
    return [item["metadata"]["name"] for item in found if item["metadata"]["ownerReferences"][0]["kind"] == "DFlashDeployment"]


def test_the_rights_granted_are_the_rights_used(
    start_operator: StartOperator, cluster: Cluster, namespace: str, optional_kinds: None, say: Say
) -> None:
    mark = cluster.audit_mark()
    start_operator(namespaces="", lease_name=SERVICE_ACCOUNT, leader_election="true", allowed_host_paths=HOST_PATH, warm_up_seconds="1")
    one = Deployment(cluster, namespace, "one").create(spec("a", storage={"hostPath": {"path": HOST_PATH}}))
    several = Deployment(cluster, namespace, "several").create(
        spec("a", target={"model": "Qwen/Qwen3.5-397B-A17B", "revision": "f" * 40}, parallelism={"tensor": 16, "nodes": 2})
    )
    for revision in "bcd":
        for deployment in (one, several):
            deployment.wait_done(90)
            deployment.patch(drafter={"revision": revision * 40})
    for deployment in (one, several):
        deployment.wait_done(90)
    wait_until(lambda: len(revisions(one)) == len(revisions(several)) == 2, "the histories to be cut")
    wait_until(lambda: not one.names("jobs"), "the Jobs to go")
    [pod] = one.children("pods")
    cluster.fail_node(pod["spec"]["nodeName"])
    try:
        cluster.api.delete(f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}")
        user = service_account_user(NAMESPACE, SERVICE_ACCOUNT)
        wait_until(lambda: ("/nodes", "get") in used(cluster.audit(mark, user=user)), "the operator to look at the node", 60, 1)
    finally:
        cluster.recover_node(pod["spec"]["nodeName"])

    events = cluster.audit(mark, user=user)
    allowed, asked = granted(cluster), used(events)
    say(f"rights granted; not used in this run in brackets:\n{table(allowed, asked)}")
    assert {(event["verb"], event["requestURI"]) for event in events if event["responseStatus"].get("code") == 403} == set()
    assert asked - allowed == set(), "used without being granted"
    assert allowed - asked - set(SELDOM) == set(), "granted and not used"
    assert set(SELDOM) <= allowed, "a reason for a right that is not granted"

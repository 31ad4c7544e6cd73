"""Replicas over two nodes, from start to orphans: with a stand-in for the LeaderWorkerSet controller, or the real one (`make e2e-lws`).

Each test prints its steps with their times; `make e2e-lws` shows them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.api import ApiError
from testbed.cluster import Cluster
from testbed.leader_worker_set import objects
from testbed.leader_worker_set.processes import LeaderWorkerSets
from testbed.simulator_process import SimulatorProcess
from testbed.stages import EXIT_AFTER
from testbed.waiting import wait_until
from tests.cluster.test_optional_kinds import POD_MONITOR_CRD
from tests.conftest import StartOperator
from tests.support.deployment import JUDGED, UNJUDGED, Deployment, Version, followed, played_with
from tests.support.groups import ROLE, groups, uids, wait_for, wait_whole, whole
from tests.support.releases import default_release
from tests.support.webhooks import webhook_down

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("leader_worker_sets")]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "qwen3.5-397b-a17b-sglang-two-nodes.yaml"
MODEL = "Qwen/Qwen3.5-397B-A17B"
OLD, NEW, COLLAPSED, BROKEN = "a" * 40, "b" * 40, "c" * 40, "d" * 40
ENGINES = tuple({"name": name, "version": default_release(name)} for name in ("sglang", "vllm"))
MEMBER = {"engine": "leader", "worker": "worker"}
QUICK = {"warm_up_seconds": "1"}
CRASHING = {"sim/crash": "1", "sim/message": "NCCL error: unhandled system error", "sim/crash-after": "200ms"}


@pytest.fixture(scope="module")
def leader_worker_sets(cluster: Cluster) -> Iterator[LeaderWorkerSets]:
    """LeaderWorkerSet and PodMonitor."""
    cluster.apply_yaml(POD_MONITOR_CRD)
    with LeaderWorkerSets(cluster, real=os.environ.get("DFLASH_REAL_LWS") == "1") as running:
        yield running
    cluster.kubectl("delete", "crd", POD_MONITOR_CRD["metadata"]["name"])


class Steps:
    """Says what has been reached, and how long after the start of the test."""

    def __init__(self, title: str) -> None:
        self._start = time.monotonic()
        print(f"\n== {title}", flush=True)

    def __call__(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:6.1f} s  {text}", flush=True)


@pytest.fixture
def step(request: pytest.FixtureRequest) -> Steps:
    return Steps(request.node.name)


def spec(
    engine: Mapping[str, str] = ENGINES[0], replicas: int = 2, *, rollout: Mapping[str, Any] = UNJUDGED, **more: Any
) -> dict[str, Any]:
    return {
        "target": {"model": MODEL, "revision": "f" * 40},
        "drafter": {"revision": OLD},
        "engine": dict(engine),
        "replicas": replicas,
        "parallelism": {"tensor": 16, "nodes": 2},
        "tuning": {"mode": "Off"},
        "rollout": {"maxSurge": 0, "maxUnavailable": 1, **rollout},
        **more,
    }


def with_two_groups(cluster: Cluster, namespace: str) -> Deployment:
    """A deployment of which both groups serve. The operator runs."""
    deployment = Deployment(cluster, namespace).create(spec())
    wait_whole(deployment, 2)
    return deployment


def told(versions: list[Version], type: str) -> set[str]:
    """Every status that a condition has had."""
    return {item["status"] for version in versions for item in version.object["status"]["conditions"] if item["type"] == type}


def selected(cluster: Cluster, namespace: str, selector: Mapping[str, Any] | str) -> set[str]:
    """The names of the pods that a label selector, as an object or as text, finds."""
    if not isinstance(selector, str):
        parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
        parts += [
            f"{item['key']} {item['operator'].lower()} ({','.join(item['values'])})" for item in selector.get("matchExpressions") or ()
        ]
        selector = ",".join(parts)
    return {pod["metadata"]["name"] for pod in cluster.get("pods", f"--namespace={namespace}", f"--selector={selector}")["items"]}


@contextmanager
def crashing(deployment: Deployment, role: str, *, drafter: str = "") -> Iterator[None]:
    """While it lasts, every pod of this role (and this drafter) crashes shortly after its start, whatever group it is made for."""
    over, api = threading.Event(), deployment.cluster.api
    met: set[str] = set()

    def path(pod: Mapping[str, Any]) -> str:
        return f"/api/v1/namespaces/{deployment.namespace}/pods/{pod['metadata']['name']}"

    def crash() -> None:
        while not over.wait(0.1):
            for pod in deployment.children("pods"):
                metadata = pod["metadata"]
                arguments = " ".join(pod["spec"]["containers"][0]["args"])
                if metadata["labels"][ROLE] == role and drafter in arguments and metadata["uid"] not in met:
                    met.add(metadata["uid"])
                    with suppress(ApiError):  # it is gone, or another has its name
                        api.request("PATCH", path(pod), {"metadata": {"uid": metadata["uid"], "annotations": CRASHING}})

    thread = threading.Thread(target=crash, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for pod in deployment.children("pods"):
            if pod["metadata"]["uid"] in met:
                api.delete(path(pod))


def test_the_example_starts_and_what_selects_its_pods_tells_leaders_from_workers(
    start_operator: StartOperator, cluster: Cluster, namespace: str, simulator: SimulatorProcess, step: Steps
) -> None:
    start_operator()
    cluster.kubectl("--namespace", namespace, "apply", "-f", str(EXAMPLE))
    name = yaml.safe_load(EXAMPLE.read_text())["metadata"]["name"]
    deployment = Deployment(cluster, namespace, name)
    step("applied")
    wait_whole(deployment, 1)
    step("Ready: one group of two pods")
    deployment.patch(replicas=2)
    wait_whole(deployment, 2)
    step("scaled to 2")
    leaders = {pod["metadata"]["name"] for pod in deployment.children("pods") if pod["metadata"]["labels"][objects.WORKER_INDEX] == "0"}
    everyone = set(deployment.names("pods"))
    assert (len(leaders), len(everyone)) == (2, 4)
    played = {pod["pod"].partition("/")[2]: pod["argv"] for pod in simulator.pods() if pod["pod"].startswith(f"{namespace}/")}
    for pod in everyone:
        leader = pod if pod in leaders else pod.rpartition("-")[0]
        address = f"{leader}.{leader.rpartition('-')[0]}.{namespace}:20000"
        assert f"--dist-init-addr={address}" in played[pod]
        assert f"--node-rank={0 if pod in leaders else 1}" in played[pod]

    (service,) = (item for item in deployment.children("services") if item["metadata"]["name"] == name)
    assert selected(cluster, namespace, {"matchLabels": service["spec"]["selector"]}) == leaders
    scale = cluster.api.get(f"/apis/serving.dflash.io/v1alpha1/namespaces/{namespace}/dflashdeployments/{name}/scale")
    assert scale["status"]["replicas"] == 2
    assert selected(cluster, namespace, scale["status"]["selector"]) == leaders
    (monitor,) = cluster.get("podmonitors.monitoring.coreos.com", f"--namespace={namespace}")["items"]
    assert selected(cluster, namespace, monitor["spec"]["selector"]) == leaders
    (policy,) = deployment.children("networkpolicies")
    assert selected(cluster, namespace, policy["spec"]["podSelector"]) == everyone
    (among,) = (rule for rule in policy["spec"]["ingress"] if "from" in rule)
    assert "ports" not in among, "ranks talk to each other on ports of their own choice"
    assert selected(cluster, namespace, among["from"][0]["podSelector"]) == everyone
    step("Service, status.selector and PodMonitor select leaders; the NetworkPolicy lets a group's pods talk to each other")

    (budget,) = deployment.children("poddisruptionbudgets")
    assert selected(cluster, namespace, budget["spec"]["selector"]) == everyone
    budget_path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}"
    wait_until(lambda: cluster.api.get(budget_path)["status"].get("disruptionsAllowed") == 1, "the budget to allow one")
    before = groups(deployment)
    first, second = sorted(leaders)
    # A worker that is gone before its leader is being deleted is not expected by the budget any more. A real one takes time to stop.
    worker = f"/api/v1/namespaces/{namespace}/pods/{first}-1"
    cluster.api.request("PATCH", worker, {"metadata": {"annotations": {EXIT_AFTER: "2"}}})
    evict(cluster, namespace, f"{first}-1")
    with pytest.raises(ApiError, match="429"):
        evict(cluster, namespace, second)
    wait_until(lambda: not set(before[first].values()) & uids(deployment), "the group to be recreated")
    wait_whole(deployment, 2)
    assert groups(deployment)[second] == before[second]
    step("a worker was evicted: its group was recreated, and no pod of the other could be evicted meanwhile")


def evict(cluster: Cluster, namespace: str, pod: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    cluster.api.request("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)


def test_a_group_is_recreated_as_a_whole_and_replicas_come_and_go(
    start_operator: StartOperator, cluster: Cluster, namespace: str, step: Steps
) -> None:
    start_operator()
    deployment = with_two_groups(cluster, namespace)
    step("Ready with 2 groups")
    stable = deployment.status()["stableRevision"]
    with followed(deployment, "dflashdeployments") as versions:
        for victim in ("worker", "engine"):
            before = groups(deployment)
            gone = before[f"{stable}-0"]
            (name,) = (pod["metadata"]["name"] for pod in deployment.children("pods") if pod["metadata"]["uid"] == gone[victim])
            cluster.kubectl("--namespace", namespace, "delete", "pod", name, "--wait=false")
            wait_until(lambda gone=gone: not set(gone.values()) & uids(deployment), "the group to be recreated")
            wait_whole(deployment, 2)
            assert groups(deployment)[f"{stable}-1"] == before[f"{stable}-1"]
            step(f"{MEMBER[victim]} deleted: its group was recreated, the other untouched")
    statuses = [version.object["status"] for version in versions]
    assert min(status["readyReplicas"] for status in statuses) == 1
    assert told(versions, "Stalled") == {"False"}
    assert told(versions, "Reconciling") == {"False"}, "nobody has changed anything"
    assert deployment.names("controllerrevisions")[0] == stable

    deployment.patch(replicas=3)
    wait_whole(deployment, 3)
    step("scaled to 3")
    deployment.patch(replicas=1)
    wait_whole(deployment, 1)
    assert set(groups(deployment)) == {f"{stable}-0"}
    step("scaled to 1: the highest indexes went")


def test_a_group_with_a_worker_that_is_not_ready_does_not_serve(
    start_operator: StartOperator, cluster: Cluster, namespace: str, step: Steps
) -> None:
    start_operator()
    deployment = with_two_groups(cluster, namespace)
    stable = deployment.status()["stableRevision"]
    worker = f"/api/v1/namespaces/{namespace}/pods/{stable}-1-1"
    step("Ready with 2 groups")
    cluster.api.request("PATCH", worker, {"metadata": {"annotations": {"sim/ready": "false"}}})
    wait_until(lambda: deployment.status().get("readyReplicas") == 1, "the group to be counted as not ready")
    step("a worker is not Ready: 1 of 2 ready")
    cluster.api.request("PATCH", worker, {"metadata": {"annotations": {"sim/ready": None}}})
    wait_whole(deployment, 2)
    step("it is Ready again: 2 of 2")


def test_a_drafter_is_promoted_group_by_group_and_a_collapsed_one_is_rolled_back(
    start_operator: StartOperator, simulator: SimulatorProcess, cluster: Cluster, namespace: str, step: Steps
) -> None:
    start_operator(**QUICK)
    both = [Deployment(cluster, namespace, engine["name"]).create(spec(engine, rollout=JUDGED)) for engine in ENGINES]
    for deployment in both:
        wait_whole(deployment, 2)
    first = {deployment.name: (deployment.status()["stableRevision"], uids(deployment)) for deployment in both}
    step("SGLang and vLLM: Ready with 2 groups each")
    with ExitStack() as stack:
        seen = {deployment.name: stack.enter_context(followed(deployment, "dflashdeployments")) for deployment in both}
        for deployment in both:
            deployment.patch(drafter={"revision": NEW})
        for deployment in both:
            assert deployment.wait_phase("Completed", "RolledBack", "Held", timeout=300)["phase"] == "Completed"
            wait_whole(deployment, 2)
    for deployment in both:
        assert told(seen[deployment.name], "RolloutHealthy") == {"True"}, "a group that is being made is no failure"
        revision, pods = first[deployment.name]
        assert deployment.status()["drafterRevision"] == NEW
        assert deployment.status()["stableRevision"] != revision
        assert not pods & uids(deployment)
        step(f"{deployment.name}: a good drafter was judged and promoted on both groups")
    before = {deployment.name: groups(deployment) for deployment in both}
    with played_with(simulator, namespace, {"ccc*": {"acceptance": 0.0}}):
        for deployment in both:
            deployment.patch(drafter={"revision": COLLAPSED})
        for deployment in both:
            assert deployment.wait_phase("Completed", "RolledBack", "Held", timeout=300)["phase"] == "RolledBack"
    for deployment in both:
        stable = deployment.status()["stableRevision"]
        wait_until(lambda deployment=deployment: whole(deployment, 2), "the replica taken for the trial to be back")
        assert deployment.status()["drafterRevision"] == NEW
        assert groups(deployment)[f"{stable}-0"] == before[deployment.name][f"{stable}-0"], "only the highest index was taken"
        step(f"{deployment.name}: a collapsed one was rolled back after a trial on one group")


def test_a_candidate_that_cannot_start_is_given_up(start_operator: StartOperator, cluster: Cluster, namespace: str, step: Steps) -> None:
    start_operator(**QUICK)
    both = {role: Deployment(cluster, namespace, f"bad-{role}").create(spec()) for role in ("engine", "worker")}
    for deployment in both.values():
        wait_whole(deployment, 2)
    stable = {role: deployment.status()["stableRevision"] for role, deployment in both.items()}
    step("Ready with 2 groups each")
    with ExitStack() as stack:
        for role, deployment in both.items():
            stack.enter_context(crashing(deployment, role, drafter=BROKEN))
            deployment.patch(drafter={"revision": BROKEN})
        for role, deployment in both.items():
            rollout = deployment.wait_phase("RolledBack", "Completed", "Held", timeout=300)
            assert rollout["phase"] == "RolledBack", rollout
            step(f"crash loop of the {MEMBER[role]}: rolled back ({rollout['reason']}): {deployment.condition('Stalled')[2]}")
    for role, deployment in both.items():
        assert deployment.condition("RolloutHealthy")[0] == "False"
        wait_until(lambda deployment=deployment: whole(deployment, 2), "the replica taken for the trial to be back")
        assert deployment.status()["stableRevision"] == stable[role]
    step("all groups serve the stable revision")


def test_a_crash_loop_in_stable_is_named(start_operator: StartOperator, cluster: Cluster, namespace: str, step: Steps) -> None:
    start_operator(**QUICK)
    both = {role: Deployment(cluster, namespace, f"bad-{role}").create(spec(replicas=1)) for role in ("engine", "worker")}
    for deployment in both.values():
        wait_whole(deployment, 1)
    step("Ready with 1 group each")
    with ExitStack() as stack:
        for role, deployment in both.items():
            stack.enter_context(crashing(deployment, role))
        for role, deployment in both.items():
            wait_for(deployment, lambda deployment=deployment: deployment.condition("Ready")[1] == "EngineFailing", "EngineFailing", 60)
            step(f"crash loop of the {MEMBER[role]}: {deployment.condition('Ready')[2]}")
    for deployment in both.values():
        wait_whole(deployment, 1)
    step("both have recovered")


def test_replicas_outlive_the_orphan_delete_of_their_leader_worker_set(
    start_operator: StartOperator, cluster: Cluster, namespace: str, step: Steps
) -> None:
    start_operator()
    deployment = with_two_groups(cluster, namespace)
    stable, before = deployment.status()["stableRevision"], uids(deployment)
    (old,) = deployment.children("leaderworkersets")
    step("Ready with 2 groups")
    cluster.kubectl("--namespace", namespace, "delete", f"leaderworkerset/{stable}", "--cascade=orphan", "--wait=false")

    def made_anew() -> bool:
        found = deployment.children("leaderworkersets")
        return [item["metadata"]["uid"] for item in found] not in ([], [old["metadata"]["uid"]])

    wait_until(made_anew, "the LeaderWorkerSet to be made anew", 60)
    step("deleted with --cascade=orphan and made anew")
    wait_whole(deployment, 2)
    assert uids(deployment) == before
    step("both groups were kept")
    deployment.patch(replicas=3)
    wait_whole(deployment, 3)
    assert before < uids(deployment)
    step("scaled to 3")


def test_a_webhook_of_leader_worker_sets_that_is_down_costs_no_group(
    start_operator: StartOperator, cluster: Cluster, namespace: str, step: Steps
) -> None:
    start_operator()
    deployment = with_two_groups(cluster, namespace)
    before = uids(deployment)
    step("Ready with 2 groups")
    with webhook_down(cluster, namespace, group="leaderworkerset.x-k8s.io", resource="leaderworkersets"):
        deployment.patch(replicas=3, drafter={"revision": NEW})
        wait_until(lambda: deployment.condition("Stalled")[:2] == ("True", "WritesFail"), "the outage in a condition")
        assert "down.example.io" in deployment.condition("Stalled")[2]
        assert uids(deployment) == before
        step("the webhook is down: told in Stalled, both groups kept")
    wait_until(lambda: deployment.condition("Stalled")[0] == "False", "the outage to be over")
    wait_whole(deployment, 3)
    step("the webhook answers again: 3 groups with the new drafter")

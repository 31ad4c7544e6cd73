"""The ways in which rollouts of other controllers have bled, each a short scenario."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from testbed.cluster import Cluster
from testbed.pod_watch import PodWatch, breaks
from testbed.simulator_process import SimulatorProcess
from testbed.waiting import wait_until
from tests.conftest import StartOperator
from tests.support.deployment import JUDGED, REVISION, UNJUDGED, Deployment, Version, followed, played_with, rollout_spec

OLD, NEW = "a" * 40, "b" * 40
QUICK = {"warm_up_seconds": "1"}
SLOW = {"metadata": {"annotations": {"sim/ready-after": "1", "sim/exit-after": "1"}}}
NEVER = {"metadata": {"annotations": {"sim/ready": "false"}}}


def spec(replicas: int = 3, **more: Any) -> dict[str, Any]:
    return rollout_spec(replicas, **more)


def condition(version: Version, type: str) -> Mapping[str, Any]:
    found = (version.object.get("status") or {}).get("conditions") or ()
    return next((item for item in found if item["type"] == type), {"status": "Unknown"})


def pods_at(pods: Sequence[Version], number: int) -> list[tuple[str, bool]]:
    """Revision of every pod that was there at a resource version, and whether it was Ready and not terminating."""
    last = {pod.object["metadata"]["name"]: pod for pod in pods if pod.number <= number}
    return sorted(
        (
            pod.object["metadata"]["labels"][REVISION],
            "deletionTimestamp" not in pod.object["metadata"] and condition(pod, "Ready")["status"] == "True",
        )
        for pod in last.values()
        if not pod.gone
    )


def desired_replicas(deployment: Deployment) -> dict[str, int]:
    """``spec.replicas`` of its workloads."""
    return {item["metadata"]["name"]: item["spec"]["replicas"] for item in deployment.children("deployments")}


@contextmanager
def controllers_paused(cluster: Cluster) -> Iterator[None]:
    """Nobody acts on Deployments and ReplicaSets, nor says that they were seen."""
    manager = cluster.control_plane.process("kube-controller-manager")
    manager.send(signal.SIGSTOP)
    try:
        yield
    finally:
        manager.send(signal.SIGCONT)


def test_premature_success_before_the_new_generation_is_observed(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec())
    deployment.wait_done()
    before, stable = deployment.pod_uids(), deployment.status()["stableRevision"]
    with followed(deployment, "dflashdeployments") as versions, followed(deployment, "pods") as pods:
        with controllers_paused(cluster):
            # The workloads' status goes on saying that all is well, of the generation before.
            deployment.patch(drafter={"revision": NEW})
            wait_until(lambda: desired_replicas(deployment)[stable] == 2, "one replica to be taken")
            for _ in range(3):
                deployment.wait_look()
                assert deployment.condition("Ready")[0] == "False"
                assert desired_replicas(deployment)[stable] == 2, "a second one is not taken before the first is seen to be gone"
            assert deployment.pod_uids() == before
            assert deployment.rollout()["phase"] == "Canary"
        deployment.wait_done()
    first = int(next(version.object["metadata"]["generation"] for version in versions))
    final = deployment.status()["stableRevision"].removeprefix("chat-")
    early = [
        version.number
        for version in versions
        if version.object["status"]["observedGeneration"] > first
        and condition(version, "Ready")["status"] == "True"
        and pods_at(pods, version.number) != [(final, True)] * 3
    ]
    assert not early
    assert not breaks(pod_watch.moments(namespace, "chat"), least=2, most=3)


def test_mixed_revisions_never_pass_for_complete(start_operator: StartOperator, cluster: Cluster, namespace: str) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(podTemplate=SLOW))
    deployment.wait_done()
    with followed(deployment, "dflashdeployments") as versions, followed(deployment, "pods") as pods:
        deployment.patch(drafter={"revision": NEW})
        deployment.wait_done()
    current = [
        version for version in versions if version.object["status"]["observedGeneration"] == version.object["metadata"]["generation"]
    ]
    mixed = [version for version in current if len({revision for revision, _ in pods_at(pods, version.number)}) > 1]
    assert any(len({revision for revision, serves in pods_at(pods, version.number) if serves}) > 1 for version in mixed)
    for version in mixed:
        assert condition(version, "Ready")["status"] == "False"
        assert condition(version, "Reconciling")["status"] == "True"
        assert version.object["status"]["rollout"]["phase"] != "Completed", "the last old pod is still to end"


def test_five_rapid_edits_restart_nothing_extra(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec())
    deployment.wait_done()
    stable = deployment.status()["stableRevision"]
    with followed(deployment, "pods") as pods:
        for digit in "12345":
            deployment.patch(drafter={"revision": digit * 40})
        deployment.wait_done()
    assert deployment.status()["drafterRevision"] == "5" * 40
    final = deployment.status()["stableRevision"]
    wait_until(lambda: deployment.names("deployments") == [final], "one workload to be left")
    wait_until(lambda: "Candidate" not in deployment.states() and deployment.states().count("Stable") == 1, "one Stable revision")
    made: dict[str, set[str]] = {}
    for pod in pods:
        made.setdefault(f"chat-{pod.object['metadata']['labels'][REVISION]}", set()).add(pod.object["metadata"]["uid"])
    assert len(made.pop(stable)) == 3, "no pod of the old revision was made anew"
    assert len(made.pop(final)) == 3
    assert all(len(uids) == 1 for uids in made.values()), "what was superseded got its one replica at most"
    assert not breaks(pod_watch.moments(namespace, "chat"), least=2, most=3)


def test_edit_back_to_stable_in_mid_rollout_respects_max_unavailable(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(4))
    deployment.wait_done()
    stable = deployment.status()["stableRevision"]
    # Before it is promoted: what still runs of stable is not touched.
    deployment.patch(drafter={"revision": NEW}, podTemplate=NEVER)
    candidate = deployment.wait_phase("Canary")["revision"]
    wait_until(lambda: deployment.pod_uids(candidate) and len(deployment.pod_uids()) == 4, "its replica, in the place of one")
    kept = deployment.pod_uids(stable)
    deployment.patch(drafter={"revision": OLD}, podTemplate=None)
    deployment.wait_done()
    assert deployment.rollout()["phase"] == "Superseded"
    assert deployment.states() == ["Stable", "Superseded"]
    assert len(kept) == 3
    assert kept < deployment.pod_uids(stable)
    wait_until(lambda: deployment.names("deployments") == [stable], "the candidate's workload to go")

    # The same edit again finds the revision that was made for it.
    deployment.patch(drafter={"revision": NEW}, podTemplate=NEVER)
    wait_until(lambda: deployment.status().get("candidateRevision") == candidate, "the candidate to be tried again")
    deployment.wait_states("Stable", "Candidate")
    assert sorted(item["revision"] for item in deployment.children("controllerrevisions")) == [1, 3]

    # After it is promoted, with replicas of both: the way back is a rollout like the way there.
    deployment.patch(podTemplate={"metadata": {"annotations": {"sim/ready": None, "sim/ready-after": "1"}}})
    wait_until(lambda: deployment.status()["drafterRevision"] == NEW, "it to be promoted")
    wait_until(lambda: len(deployment.pod_uids(deployment.status()["stableRevision"])) == 2, "half of it")
    deployment.patch(drafter={"revision": OLD}, podTemplate=None)
    deployment.wait_done()
    assert deployment.status()["stableRevision"] == stable
    wait_until(lambda: deployment.names("deployments") == [stable], "the other workload to go")
    assert not breaks(pod_watch.moments(namespace, "chat"), least=3, most=4)


ANNOTATIONS = [f"serving.dflash.io/{name}" for name in ("state", "history", "trial", "probe", "record", "number")]
LABELS = [f"serving.dflash.io/{name}" for name in ("revision", "deployment")]


LOSSES = (
    "status",
    "annotations of stable",
    "annotations of candidate",
    "labels of workloads",
    "labels of revisions",
    "revision of stable",
    "both revisions",
)


def lose(what: str, deployment: Deployment, stable: str, candidate: str) -> None:
    api, group = deployment.cluster.api, f"/apis/apps/v1/namespaces/{deployment.namespace}"
    match what:
        case "status":
            path = f"/apis/serving.dflash.io/v1alpha1/namespaces/{deployment.namespace}/dflashdeployments/{deployment.name}/status"
            api.request("PATCH", path, {"status": None})
            assert not deployment.status()
        case "annotations of stable" | "annotations of candidate":
            for kind in ("controllerrevisions", "deployments"):
                path = f"{group}/{kind}/{stable if what.endswith('stable') else candidate}"
                api.request("PATCH", path, {"metadata": {"annotations": dict.fromkeys(ANNOTATIONS)}})
        case "labels of workloads" | "labels of revisions":
            kind = "deployments" if what.endswith("workloads") else "controllerrevisions"
            for name in (stable, candidate):
                api.request("PATCH", f"{group}/{kind}/{name}", {"metadata": {"labels": dict.fromkeys(LABELS)}})
        case "revision of stable" | "both revisions":
            for name in (stable, candidate) if what.startswith("both") else (stable,):
                api.delete(f"{group}/controllerrevisions/{name}")


def test_lost_hash_annotation_or_status_does_not_orphan_generations(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    operator = start_operator(**QUICK)
    deployments = {what: Deployment(cluster, namespace, what.replace(" ", "-")).create(spec()) for what in LOSSES}
    for deployment in deployments.values():
        deployment.wait_done()
    stable = {what: deployment.status()["stableRevision"] for what, deployment in deployments.items()}
    for deployment in deployments.values():
        deployment.patch(drafter={"revision": NEW}, podTemplate=NEVER)
    candidate = {what: deployment.wait_phase("Canary")["revision"] for what, deployment in deployments.items()}
    for what, deployment in deployments.items():
        both = (stable[what], 2), (candidate[what], 1)
        wait_until(lambda: all(len(deployment.pod_uids(name)) == count for name, count in both), f"a canary: {what}")  # noqa: B023
    before = {what: deployment.pod_uids() for what, deployment in deployments.items()}

    operator.kill()
    for what, deployment in deployments.items():
        lose(what, deployment, stable[what], candidate[what])
    operator.start().wait_to_lead()
    for what, deployment in deployments.items():
        known = sorted([stable[what], candidate[what]])
        deployment.wait_look()
        wait_until(lambda: deployment.names("deployments") == known, f"both workloads to be known: {what}")  # noqa: B023
        wait_until(lambda: deployment.names("controllerrevisions") == known, f"both revisions to be known: {what}")  # noqa: B023
        assert deployment.pod_uids() == before[what], f"nothing restarts for it: {what}"

    for deployment in deployments.values():
        deployment.patch(podTemplate=None)
    for what, deployment in deployments.items():
        deployment.wait_done()
        assert deployment.status()["stableRevision"] not in (stable[what], candidate[what])
        assert not breaks(pod_watch.moments(namespace, deployment.name), least=2, most=3), what

    final = {deployment.status()["stableRevision"] for deployment in deployments.values()}

    def workloads() -> set[str]:
        return {item["metadata"]["name"] for item in cluster.api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"]}

    wait_until(lambda: workloads() == final, "no other generation to be left, whatever its labels are")
    assert len(cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]) == 3 * len(deployments)


def test_a_workload_that_lost_its_label_does_not_stop_its_replacement(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(podTemplate=SLOW))
    deployment.wait_done()
    old = deployment.status()["stableRevision"]
    deployment.patch(drafter={"revision": NEW})
    wait_until(lambda: deployment.status()["drafterRevision"] == NEW, "it to be promoted")
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{old}"
    cluster.api.request("PATCH", path, {"metadata": {"labels": dict.fromkeys(LABELS)}})
    deployment.wait_done()
    group = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    wait_until(lambda: len(cluster.api.get(group)["items"]) == 1, "the old workload to go")
    assert not breaks(pod_watch.moments(namespace, "chat"), least=2, most=3)


def test_stuck_rollout_when_every_old_pod_is_broken(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(rollout=JUDGED))
    deployment.wait_done()
    for pod in deployment.children("pods"):
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
        cluster.api.request("PATCH", path, {"metadata": {"annotations": {"sim/crash": "1"}}})
    wait_until(lambda: deployment.status()["readyReplicas"] == 0, "all of them to be broken")
    begun = len(pod_watch.moments(namespace, "chat"))
    deployment.patch(drafter={"revision": NEW})
    candidate = wait_until(lambda: deployment.status().get("candidateRevision"), "a candidate")
    wait_until(lambda: deployment.trial(candidate).get("stableDownSince"), "the outage to be noted")
    wait_until(lambda: deployment.trial(candidate).get("servedAt"), "the candidate to serve")
    deployment.wait_look()
    assert deployment.status()["candidateRevision"] == candidate, "stable has not been down for long"
    deployment.edit_trial(candidate, stableDownSince="2026-01-01T00:00:00Z")
    deployment.wait_done()
    deployment.wait_states("Retired", "Stable")
    assert deployment.revisions()[deployment.status()["stableRevision"]]["reason"] == "StableNotServing"
    assert not breaks(pod_watch.moments(namespace, "chat")[begun:], least=2, most=3)


def test_controller_restart_does_not_update_everything_at_once(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    operator = start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(5, podTemplate=SLOW, rollout={**UNJUDGED, "maxSurge": 1}))
    deployment.wait_done()
    deployment.patch(drafter={"revision": NEW})
    for updated in (1, 2, 4):

        def begun(at_least: int = updated) -> bool:
            return sum(NEW in str(pod["spec"]["containers"][0]) for pod in deployment.children("pods")) >= at_least

        wait_until(begun, f"{updated} replicas of it")
        operator.kill()
        if updated == 2:
            deployment.patch(service={"annotations": {"example.com/changed": "meanwhile"}})
        operator.start().wait_to_lead()
    deployment.wait_done(60)
    deployment.wait_states("Retired", "Stable")
    assert not breaks(pod_watch.moments(namespace, "chat"), least=4, most=6)


def test_replicas_changed_in_mid_rollout(start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(podTemplate=SLOW))
    deployment.wait_done()
    deployment.patch(drafter={"revision": NEW}, podTemplate={"metadata": {"annotations": {"sim/ready": "false"}}})
    candidate = deployment.wait_phase("Canary")["revision"]
    wait_until(lambda: deployment.pod_uids(candidate), "its replica")
    deployment.patch(replicas=5)
    stable = deployment.status()["stableRevision"]
    wait_until(lambda: deployment.status()["serving"] == "4/5", "what was added to go to stable")
    assert (len(deployment.pod_uids(stable)), len(deployment.pod_uids(candidate))) == (4, 1)
    assert not breaks(pod_watch.moments(namespace, "chat"), least=2, most=5)

    told = len(pod_watch.moments(namespace, "chat"))
    deployment.patch(podTemplate={"metadata": {"annotations": {"sim/ready": None}}})
    wait_until(lambda: deployment.status()["drafterRevision"] == NEW, "it to be promoted")
    deployment.patch(replicas=2)
    deployment.wait_done(60)
    assert deployment.status()["drafterRevision"] == NEW
    assert len(deployment.pod_uids()) == len(deployment.pod_uids(deployment.status()["stableRevision"])) == 2
    assert not breaks(pod_watch.moments(namespace, "chat")[told - 1 :], least=1, most=5)


def test_absent_metrics_never_promote_and_never_roll_back(
    start_operator: StartOperator, simulator: SimulatorProcess, cluster: Cluster, namespace: str
) -> None:
    start_operator(**QUICK)
    # By the first digit of both drafters: no page, counters that stand, no series; and what becomes of the verdicts.
    absent = {
        "no-page": ("[12]*", {"metrics": "missing"}, "Error"),
        "standing": ("[34]*", {"metrics": "frozen"}, "Inconclusive"),
        "no-series": ("[56]*", {"missing_series": ["sglang:"]}, "Inconclusive"),
    }
    policy = {**JUDGED, "probe": {"enabled": False}, "deadline": "4s"}
    with played_with(simulator, namespace, {pattern: faults for pattern, faults, _ in absent.values()}):
        deployments = {
            name: Deployment(cluster, namespace, name).create(spec(2, rollout=policy, drafter={"revision": pattern[1] * 40}))
            for name, (pattern, _, _) in absent.items()
        }
        for name, deployment in deployments.items():
            deployment.wait_done()
            deployment.patch(drafter={"revision": absent[name][0][2] * 40})
        for name, deployment in deployments.items():
            stable = deployment.status()["stableRevision"]
            rollout = deployment.wait_phase("Held", "Completed", "RolledBack")
            assert (name, rollout["phase"], rollout["reason"]) == (name, "Held", "AnalysisDeadlineExceeded")
            verdicts = {item["metric"]: item["verdict"] for item in rollout["analysis"] if item["metric"] != "restarts"}
            assert (name, set(verdicts.values())) == (name, {absent[name][2]})
            assert set(verdicts) == {"acceptanceLength", "speed", "ttft", "latency", "errors"}
            assert deployment.condition("Stalled")[:2] == ("True", "AnalysisDeadlineExceeded")
            assert rollout["revision"] in deployment.condition("Stalled")[2]
            deployment.wait_look()
            assert deployment.rollout()["phase"] == "Held"
            assert deployment.states() == ["Stable", "Candidate"]
            assert len(deployment.pod_uids(stable)) == len(deployment.pod_uids(rollout["revision"])) == 1

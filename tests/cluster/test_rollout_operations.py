"""What a person does to a rollout: pause, promote, abort, pin, restart, maintenance window; and weights fetched before a trial."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from dflash_controller.fetch.listen import Listener
from dflash_controller.model.fetch_progress import PORT, FetchProgress
from testbed.cluster import Cluster
from testbed.pod_watch import PodWatch, breaks
from testbed.waiting import wait_until
from tests.conftest import StartOperator
from tests.support.deployment import JUDGED, UNJUDGED, Deployment, rollout_spec

OLD, NEW = "a" * 40, "b" * 40
QUICK = {"warm_up_seconds": "1"}
UNDECIDED = {**JUDGED, "probe": {"prompts": 64, "promptsPerMinute": 1}}
"""A probe of an hour: a trial is still under way whenever the test looks."""
HALF_A_YEAR = datetime.now(UTC) + timedelta(days=180)
CLOSED = {"schedule": f"0 0 {HALF_A_YEAR.day} {HALF_A_YEAR.month} *", "duration": "1h"}
OPEN = {"schedule": "* * * * *", "duration": "1h"}
HOST_PATH = "/mnt/models"
FETCH_IMAGE = "dflash-operator:test"
FETCHING: dict[str, str] = {"sim/complete-after": "1h"}
GIVEN_UP = "Job has reached the specified backoff limit"


def spec(replicas: int = 2, **more: Any) -> dict[str, Any]:
    return rollout_spec(replicas, **more)


def has_settled(deployment: Deployment) -> bool:
    """No pod is on its way up or down."""
    pods = deployment.children("pods")
    return len(pods) == deployment.status()["readyReplicas"] and not any("deletionTimestamp" in pod["metadata"] for pod in pods)


def test_a_paused_rollout_begins_nothing_and_stays_where_it_is_when_paused_later(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(4, podTemplate={"metadata": {"annotations": {"sim/ready-after": "1"}}}))
    deployment.wait_done()
    before = deployment.pod_uids()
    deployment.patch(rollout={"paused": True}, drafter={"revision": NEW})
    candidate = deployment.wait_phase("Paused")["revision"]
    deployment.wait_look()
    assert deployment.pod_uids() == before
    assert deployment.condition("Ready")[:2] == ("False", "Paused")
    assert deployment.revisions()[candidate]["state"] == "Candidate"

    deployment.patch(rollout={"paused": False})
    wait_until(lambda: deployment.revisions()[candidate]["readyReplicas"] == 2, "half of it")
    deployment.patch(rollout={"paused": True})
    assert deployment.wait_phase("Paused")["revision"] == candidate
    wait_until(lambda: has_settled(deployment), "pods under way to arrive")
    deployment.wait_look()
    halves = deployment.pod_uids()
    assert len(halves) == 4
    assert len(halves & before) in (1, 2), "two were replaced, a third may have been on its way"
    deployment.wait_look()
    assert deployment.pod_uids() == halves
    assert deployment.condition("Ready")[:2] == ("False", "Paused")

    deployment.patch(rollout={"paused": False})
    deployment.wait_done()
    deployment.wait_states("Retired", "Stable")
    assert not breaks(pod_watch.moments(namespace, "chat"), least=3, most=4)


def test_a_trial_that_is_paused_is_judged_and_not_promoted(start_operator: StartOperator, cluster: Cluster, namespace: str) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(rollout=JUDGED))
    deployment.wait_done()
    deployment.patch(drafter={"revision": NEW})
    candidate = deployment.wait_phase("Canary", "Analyzing")["revision"]
    # Paused before its replica is made, it would wait for that and have nothing to be judged by.
    wait_until(lambda: deployment.pod_uids(candidate), "its replica")
    deployment.patch(rollout={"paused": True})
    deployment.wait_phase("Paused")
    wait_until(lambda: deployment.verdicts().get("text", {}).get("verdict") == "Successful", "the verdict")
    deployment.wait_look()
    assert deployment.rollout()["phase"] == "Paused"
    assert deployment.states() == ["Stable", "Candidate"]
    deployment.patch(rollout={"paused": False})
    deployment.wait_done()
    deployment.wait_states("Retired", "Stable")


def test_promote_and_abort_concern_the_candidate_they_name_and_one_trial_of_it(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(rollout=UNDECIDED))
    deployment.wait_done()
    old = deployment.status()["stableRevision"]
    deployment.patch(drafter={"revision": NEW})
    new = deployment.wait_phase("Analyzing")["revision"]
    deployment.annotate(promote=new)
    deployment.wait_done()
    assert deployment.status()["stableRevision"] == new
    assert deployment.history(new) == [("User", "Candidate", "SpecChanged"), ("User", "Stable", "PromotedByHand")]

    # The annotation still stands, and says nothing about another candidate.
    deployment.patch(drafter={"revision": OLD})
    assert deployment.wait_phase("Analyzing", "Completed")["phase"] == "Analyzing"
    deployment.annotate(abort=old)
    rollout = deployment.wait_phase("RolledBack")
    assert (rollout["revision"], rollout["reason"]) == (old, "Aborted")
    assert deployment.condition("Stalled")[:2] == ("True", "Aborted")
    assert deployment.history(old)[-1] == ("Rollback", "Failed", "Aborted")
    assert (deployment.revisions()[old]["state"], deployment.revisions()[old]["reason"]) == ("Failed", "Aborted")
    assert {pod["metadata"]["labels"]["serving.dflash.io/revision"] for pod in deployment.children("pods")} == {new.removeprefix("chat-")}

    # Asked for again after something else, it is tried again: the annotation was meant for the trial before.
    deployment.patch(drafter={"revision": NEW})
    deployment.wait_done()
    deployment.patch(drafter={"revision": OLD})
    assert deployment.wait_phase("Analyzing", "RolledBack", "Completed")["phase"] == "Analyzing"
    deployment.annotate(promote=None, abort=None)
    deployment.wait_look()
    deployment.annotate(abort=old)
    deployment.wait_phase("RolledBack")


def test_a_pinned_revision_takes_over_whatever_spec_and_window_say_until_it_is_unpinned(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(3))
    deployment.wait_done()
    old = deployment.status()["stableRevision"]
    deployment.patch(drafter={"revision": NEW})
    deployment.wait_done()
    new = deployment.status()["stableRevision"]
    deployment.patch(rollout={**UNDECIDED, "window": CLOSED})

    deployment.annotate(pin=old)
    wait_until(
        lambda: deployment.condition("Ready")[:2] == ("False", "Pinned") and len(deployment.pod_uids(old)) == 3, "the pinned revision"
    )
    assert deployment.status()["stableRevision"] == old
    assert deployment.history(old)[-2:] == [("User", "Candidate", "Pinned"), ("User", "Stable", "Pinned")]
    assert deployment.condition("Available")[0] == "True"
    wait_until(lambda: deployment.names("deployments") == [old], "the other one to be gone")
    assert deployment.revisions()[new]["state"] == "Retired"

    # The spec's revision is a candidate like any other afterwards: it waits for the window.
    deployment.annotate(pin=None)
    wait_until(lambda: deployment.rollout().get("reason") == "OutsideWindow", "the spec to count again")
    assert deployment.status()["candidateRevision"] == new
    deployment.patch(rollout={**UNJUDGED, "window": None})
    deployment.wait_done()
    assert deployment.status()["stableRevision"] == new
    assert not breaks(pod_watch.moments(namespace, "chat"), least=2, most=3)

    deployment.annotate(pin="chat-rnosuch1")
    wait_until(lambda: "PinUnknown" in [item["reason"] for item in deployment.status().get("notices") or ()], "the notice")
    assert deployment.status()["stableRevision"] == new
    assert deployment.condition("Ready")[0] == "True"


def test_a_restart_of_pinned_commits_is_not_compared_and_that_of_a_branch_is(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(**QUICK)
    pinned = Deployment(cluster, namespace, "pinned").create(spec(3, rollout=UNDECIDED))
    branch = Deployment(cluster, namespace, "branch").create(spec(rollout=UNDECIDED, drafter={"revision": "main"}))
    pinned.wait_done()
    branch.wait_done()
    before = pinned.pod_uids()
    pinned.patch(restartId="2031-01-01")
    branch.patch(restartId="2031-01-01")
    pinned.wait_done()
    assert not before & pinned.pod_uids(), "every replica was restarted"
    assert len(pinned.pod_uids()) == 3
    pinned.wait_states("Retired", "Stable")
    assert pinned.revisions()[pinned.status()["stableRevision"]]["reason"] == "NotCompared"
    assert not breaks(pod_watch.moments(namespace, "pinned"), least=2, most=3)
    assert branch.wait_phase("Analyzing", "Completed")["phase"] == "Analyzing", "the branch may have moved"


def test_outside_the_window_nothing_begins_but_a_human_may_promote_and_the_window_may_be_opened(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(rollout={**UNJUDGED, "window": CLOSED}))
    deployment.wait_done()
    before = deployment.pod_uids()
    deployment.patch(drafter={"revision": NEW})
    wait_until(lambda: deployment.rollout().get("reason") == "OutsideWindow", "the window to be seen closed")
    rollout = deployment.rollout()
    assert rollout["phase"] == "Preparing"
    assert f"{HALF_A_YEAR:%m-%d} 00:00 UTC" in rollout["message"]
    # Scaling does not wait.
    deployment.patch(replicas=3)
    wait_until(lambda: deployment.status()["serving"] == "3/3", "one replica more")
    assert before < deployment.pod_uids(deployment.status()["stableRevision"])
    deployment.annotate(promote=rollout["revision"])
    deployment.wait_done()
    assert deployment.revisions()[rollout["revision"]]["reason"] == "PromotedByHand"

    deployment.patch(drafter={"revision": "c" * 40})
    wait_until(lambda: deployment.rollout().get("reason") == "OutsideWindow", "the window to be seen closed")
    deployment.patch(rollout={"window": OPEN})
    deployment.wait_done()
    assert deployment.status()["drafterRevision"] == "c" * 40


def test_old_revisions_are_kept_up_to_the_history_limit_and_those_that_run_always(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(1, rollout={**UNJUDGED, "historyLimit": 2}))
    deployment.wait_done()
    made = [deployment.status()["stableRevision"]]
    for digit in "1234":
        deployment.patch(drafter={"revision": digit * 40})
        deployment.wait_done()
        made.append(deployment.status()["stableRevision"])
    wait_until(lambda: deployment.names("controllerrevisions") == sorted(made[-3:]), "two old ones to be left")
    deployment.wait_states("Retired", "Retired", "Stable")
    wait_until(lambda: list(deployment.revisions()) == made[:-4:-1], "the status to show the same, newest first")
    assert [item["drafterRevision"][0] for item in deployment.revisions().values()] == ["4", "3", "2"]
    assert [item["number"] for item in deployment.revisions().values()] == [5, 4, 3]

    # A candidate is not counted, and the active one stays, however few are to be kept.
    deployment.patch(drafter={"revision": "5" * 40}, podTemplate={"metadata": {"annotations": {"sim/ready": "false"}}})
    deployment.patch(rollout={"historyLimit": 1})
    deployment.wait_states("Retired", "Stable", "Candidate")
    assert deployment.status()["stableRevision"] == made[-1]


def test_weights_are_fetched_to_every_node_before_a_replica_is_taken_and_the_jobs_go(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(allowed_host_paths=HOST_PATH, **QUICK)
    # Two replicas of eight GPUs are on two nodes.
    deployment = Deployment(cluster, namespace).create(spec(parallelism={"tensor": 8}, storage={"hostPath": {"path": HOST_PATH}}))
    deployment.wait_done()
    before = deployment.pod_uids()
    nodes = {pod["spec"]["nodeName"] for pod in deployment.children("pods")}
    assert len(nodes) == 2
    assert not deployment.names("jobs"), "the first revision fetches for itself"
    deployment.patch(drafter={"revision": NEW}, podTemplate={"metadata": {"annotations": FETCHING}})
    wait_until(lambda: len(fetching(deployment)) == 2, "a Job's pod on each node")
    wait_until(lambda: deployment.rollout().get("reason") == "Prefetching", "the status to say so")
    assert deployment.rollout()["phase"] == "Preparing"
    assert {pod["spec"]["nodeName"] for pod in fetching(deployment)} == nodes
    assert all(f"@{NEW}" in str(pod["spec"]["containers"][0]["args"]) for pod in fetching(deployment))

    first, second = fetching(deployment)
    complete(deployment, first)
    wait_until(lambda: sum(job["status"].get("succeeded", 0) for job in deployment.children("jobs")) == 1, "one Job to be done")
    deployment.wait_look()
    assert deployment.rollout()["reason"] == "Prefetching"
    assert deployment.pod_uids(deployment.status()["stableRevision"]) == before, "nothing was taken for it"

    complete(deployment, second)
    deployment.wait_done()
    assert deployment.status()["drafterRevision"] == NEW
    assert not before & deployment.pod_uids()
    wait_until(lambda: not deployment.names("jobs"), "the Jobs to go")
    assert not breaks(pod_watch.moments(namespace, "chat"), least=1, most=2)


def test_weights_that_cannot_be_fetched_hold_the_rollout_until_the_job_is_deleted(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    start_operator(allowed_host_paths=HOST_PATH, **QUICK)
    deployment = Deployment(cluster, namespace).create(spec(1, storage={"hostPath": {"path": HOST_PATH}}))
    deployment.wait_done()
    before = deployment.pod_uids()
    deployment.patch(drafter={"revision": NEW}, podTemplate={"metadata": {"annotations": FETCHING}})
    (pod,) = wait_until(lambda: fetching(deployment), "the Job's pod")
    (job,) = deployment.names("jobs")
    give_up(deployment, job)
    rollout = deployment.wait_phase("Held")
    assert rollout["reason"] == "PrefetchFailed"
    assert f"Job {job} failed: {GIVEN_UP}" in rollout["message"]
    assert deployment.condition("Stalled")[:2] == ("True", "PrefetchFailed")
    assert deployment.condition("Available")[0] == "True"
    assert deployment.pod_uids(deployment.status()["stableRevision"]) == before, "it serves on"

    cluster.api.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}", propagationPolicy="Background")
    (again,) = wait_until(
        lambda: [other for other in fetching(deployment) if other["metadata"]["uid"] != pod["metadata"]["uid"]], "another try"
    )
    assert deployment.wait_phase("Preparing")["reason"] == "Prefetching"
    assert deployment.condition("Stalled")[0] == "False"
    complete(deployment, again)
    deployment.wait_done()
    assert deployment.status()["drafterRevision"] == NEW
    wait_until(lambda: not deployment.names("jobs"), "the Job to go")


def test_pods_load_what_their_init_container_fetches_and_an_operator_that_fetches_nothing_restarts_none(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    operator = start_operator(allowed_host_paths=HOST_PATH, fetch_image=FETCH_IMAGE, **QUICK)
    storage = {"hostPath": {"path": HOST_PATH}}
    deployment = Deployment(cluster, namespace).create(spec(parallelism={"tensor": 8}, storage=storage))
    deployment.wait_done()
    before = command_lines(deployment)
    assert len(before) == 1
    assert all(f"@{OLD}" in str(pod["spec"]["initContainers"][0]["args"]) for pod in deployment.children("pods"))
    deployment.patch(drafter={"revision": NEW}, podTemplate={"metadata": {"annotations": FETCHING}})
    wait_until(lambda: len(fetching(deployment)) == 2, "a Job's pod on each node")
    with Listener(PORT, lambda: asdict(FetchProgress("Fetching x", 4 * 10**9, 16 * 10**9, 1e8, 120.0))):
        wait_until(lambda: "4.0 GB of 16.0 GB (25 %), 100.0 MB/s, 2 min 0 s left" in deployment.rollout()["message"], "the progress")
    for pod in fetching(deployment):
        assert pod["spec"]["containers"][0]["image"] == FETCH_IMAGE
        assert "--prune" in pod["spec"]["containers"][0]["args"]
        complete(deployment, pod)
    deployment.wait_done()
    assert deployment.status()["drafterRevision"] == NEW
    assert command_lines(deployment) == before, "the paths are fixed"
    assert not breaks(pod_watch.moments(namespace, "chat"), least=1, most=2)

    served = deployment.pod_uids()
    operator.stop()
    start_operator(allowed_host_paths=HOST_PATH, **QUICK)
    deployment.patch(replicas=3)
    deployment.wait_done()
    assert served < deployment.pod_uids()
    assert command_lines(deployment) == before


def command_lines(deployment: Deployment) -> set[str]:
    """Command lines of the engines."""
    pods = [pod for pod in deployment.children("pods") if pod["metadata"]["labels"]["serving.dflash.io/role"] == "engine"]
    return {str(pod["spec"]["containers"][0]["args"]) for pod in pods}


def fetching(deployment: Deployment) -> list[dict[str, Any]]:
    """Pods of Jobs that run."""
    pods = deployment.children("pods")
    return [
        pod for pod in pods if pod["metadata"]["labels"]["serving.dflash.io/role"] == "prefetch" and pod["status"]["phase"] == "Running"
    ]


def complete(deployment: Deployment, pod: dict[str, Any]) -> None:
    """The pod of a Job has fetched what it was to fetch."""
    path = f"/api/v1/namespaces/{deployment.namespace}/pods/{pod['metadata']['name']}"
    deployment.cluster.api.request("PATCH", path, {"metadata": {"annotations": {"sim/complete-after": "0s"}}})


def give_up(deployment: Deployment, job: str) -> None:
    """What the Job controller says after the last of its tries, which come with pauses that a test cannot wait for."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": "FailureTarget",
        "status": "True",
        "reason": "BackoffLimitExceeded",
        "message": GIVEN_UP,
        "lastTransitionTime": now,
    }
    path = f"/apis/batch/v1/namespaces/{deployment.namespace}/jobs/{job}/status"
    deployment.cluster.api.request("PATCH", path, {"status": {"conditions": [condition]}})

"""How far fetching has come: read from the Jobs' conditions, explained by their pods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.model.fetch_progress import FetchProgress
from dflash_controller.model.snapshot import Pod
from dflash_controller.planning.state.prefetch_progress import PrefetchState, Progress, fetched, progress
from dflash_controller.render.prefetch import prefetch_jobs
from tests.support.render_inputs import NAMESPACE, REVISION, deployment, parsed, resolved

HOST = deployment(storage={"hostPath": {"path": "/mnt/models"}})
CLAIM = deployment(storage={"persistentVolumeClaim": {"claimName": "models"}})


def jobs_of(obj: dict[str, Any], *nodes: str) -> list[dict[str, Any]]:
    return prefetch_jobs(obj["metadata"]["name"], NAMESPACE, REVISION, parsed(obj), resolved(obj), nodes)


def lived(job: dict[str, Any], *conditions: str, message: str = "Job has reached the specified backoff limit") -> dict[str, Any]:
    """The Job as the API server shows it with conditions that hold."""
    told = [{"type": type, "status": "True", "reason": "BackoffLimitExceeded", "message": message} for type in conditions]
    return {**job, "status": {"active": 1, "conditions": [{"type": "Suspended", "status": "False"}, *told]}}


def pod(job: dict[str, Any], **facts: Any) -> Pod:
    defaults: dict[str, Any] = {
        "name": f"{job['metadata']['name']}-"[:58] + "x7k2p",
        "uid": "u",
        "resource_version": "1",
        "revision": REVISION,
        "role": names.ROLE_PREFETCH,
        "node": None,
        "ip": None,
        "phase": "Failed",
        "ready": False,
        "ready_since": None,
        "terminating": False,
        "restarts": 0,
        "waiting_reason": None,
        "message": None,
        "unschedulable": None,
        "unschedulable_since": None,
    }
    return Pod(**defaults | facts)


def test_nothing_to_fetch_is_done() -> None:
    assert progress([], [], []) == Progress(PrefetchState.DONE)


@pytest.mark.parametrize("condition", ["Complete", "SuccessCriteriaMet"])
def test_all_is_done_when_every_job_says_so(condition: str) -> None:
    jobs = jobs_of(HOST, "n1", "n2")
    assert progress(jobs, [lived(jobs[0], "Complete"), lived(jobs[1], condition)], []) == Progress(PrefetchState.DONE)
    assert progress(jobs, [lived(jobs[0], "Complete"), lived(jobs[1])], []).state is PrefetchState.RUNNING


def test_a_succeeded_pod_is_not_enough() -> None:
    [job] = jobs_of(CLAIM)
    live = {**lived(job), "status": {"succeeded": 1, "uncountedTerminatedPods": {}}}
    assert progress([job], [live], [pod(job, phase="Succeeded")]).state is PrefetchState.RUNNING


def test_a_condition_that_does_not_hold_says_nothing() -> None:
    [job] = jobs_of(CLAIM)
    live = {**job, "status": {"conditions": [{"type": "Complete", "status": "False"}, {"type": "Failed", "status": "False"}]}}
    assert progress([job], [live], []).state is PrefetchState.RUNNING


def test_jobs_that_do_not_exist_yet_or_are_on_their_way_out_are_waited_for() -> None:
    jobs = jobs_of(HOST, "n1", "n2")
    failed = lived(jobs[0], "Failed")
    dying = {**failed, "metadata": {**failed["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    found = progress(jobs, [dying, lived(jobs[1], "Complete")], [])
    assert found == Progress(PrefetchState.RUNNING, f"2 Jobs like {jobs[0]['metadata']['name']} fetch the weights")


def test_other_objects_and_the_jobs_of_other_revisions_do_not_count() -> None:
    [job] = jobs_of(CLAIM)
    other = lived({**job, "metadata": {**job["metadata"], "name": "qwen-rother-fetch"}}, "Failed")
    service = {"kind": "Service", "metadata": {"name": job["metadata"]["name"]}, "status": lived(job, "Complete")["status"]}
    assert progress([job], [other, service], []) == Progress(PrefetchState.RUNNING, "Job qwen-r7f6c2d4-fetch fetches the weights")


@pytest.mark.parametrize("condition", ["Failed", "FailureTarget"])
def test_a_failed_job_is_told_with_its_pods_last_words(condition: str) -> None:
    [job] = jobs_of(CLAIM)
    first = pod(job, name="qwen-r7f6c2d4-fetch-aaaaa", resource_version="99", message="fetch: connection reset")
    last = pod(job, name="qwen-r7f6c2d4-fetch-bbbbb", resource_version="100", message="fetch: z-lab/x: GatedRepoError: 401")
    found = progress([job], [lived(job, condition)], [last, first])
    assert found == Progress(PrefetchState.FAILED, "Job qwen-r7f6c2d4-fetch failed: fetch: z-lab/x: GatedRepoError: 401")


def test_a_failed_job_whose_pods_are_gone_is_told_with_its_own_words() -> None:
    [job] = jobs_of(CLAIM)
    found = progress([job], [lived(job, "Failed", message="Job was active longer than specified deadline")], [])
    assert found.message == "Job qwen-r7f6c2d4-fetch failed: Job was active longer than specified deadline"


def test_one_failed_job_decides_whatever_the_others_do() -> None:
    jobs = jobs_of(HOST, "n1", "n2", "n3")
    live = [lived(jobs[0], "Complete"), lived(jobs[1]), lived(jobs[2], "Failed")]
    words = [pod(jobs[1], node="n2", message="fetch: a try that failed"), pod(jobs[2], node="n3", message="fetch: no space left on device")]
    found = progress(jobs, live, words)
    assert found == Progress(PrefetchState.FAILED, f"Job {jobs[2]['metadata']['name']} failed: fetch: no space left on device")


def test_a_pod_no_node_takes_is_told_while_it_is_waited_for() -> None:
    [job] = jobs_of(CLAIM)
    why = "0/4 nodes are available: persistentvolumeclaim not found."
    waiting = pod(job, phase="Pending", unschedulable=why, unschedulable_since=datetime(2026, 1, 1, tzinfo=UTC))
    found = progress([job], [lived(job)], [waiting])
    assert found.message == f"Job qwen-r7f6c2d4-fetch fetches the weights. qwen-r7f6c2d4-fetch: {why}"


def test_pods_whose_names_were_cut_off_are_told_apart_by_their_node() -> None:
    long = deployment("n" * 40, storage={"hostPath": {"path": "/mnt/models"}})
    nodes = [f"n{number}" for number in range(200)]
    jobs = jobs_of(long, *nodes)
    by_prefix: dict[str, list[int]] = {}
    for index, job in enumerate(jobs):
        by_prefix.setdefault(f"{job['metadata']['name']}-"[:58], []).append(index)
    one, other = next(group for group in by_prefix.values() if len(group) > 1)[:2]
    live = [lived(jobs[index]) for index in range(200) if index != other] + [lived(jobs[other], "Failed")]
    words = [pod(jobs[one], node=nodes[one], resource_version="9", message="one"), pod(jobs[other], node=nodes[other], message="other")]
    assert progress(jobs, live, words).message.endswith("failed: other")


def test_engine_pods_explain_nothing() -> None:
    [job] = jobs_of(CLAIM)
    found = progress([job], [lived(job, "Failed")], [pod(job, role=names.ROLE_ENGINE, message="engine: out of memory")])
    assert "out of memory" not in found.message


def test_a_job_without_a_pod_after_a_minute_is_told_with_where_to_look() -> None:
    [job] = jobs_of(CLAIM)
    made = datetime(2026, 1, 1, tzinfo=UTC)
    live = {**job, "metadata": {**job["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {}}
    found = progress([job], [live], [], (), made + timedelta(seconds=60))
    assert found.state is PrefetchState.HELD
    assert found.message.endswith("(see kubectl describe job qwen-r7f6c2d4-fetch)")
    assert progress([job], [live], [], (), made + timedelta(seconds=59)).state is PrefetchState.RUNNING
    for status in ({"active": 1}, {"failed": 1}):
        assert progress([job], [live | {"status": status}], [], (), made + timedelta(hours=1)).state is PrefetchState.RUNNING


def test_a_job_is_fetched_once_it_or_its_pod_has_succeeded_and_stays_so() -> None:
    jobs = jobs_of(HOST, "n1", "n2", "n3", "n4")
    one, two, three, _ = (job["metadata"]["name"] for job in jobs)
    done = fetched(jobs, [lived(jobs[0], "Complete")], [pod(jobs[1], phase="Succeeded", workload=two)], [three, "another"])
    assert done == (one, two, three)
    assert progress(jobs[:3], [], [], done) == Progress(PrefetchState.DONE)
    assert progress(jobs, [], [], done).state is PrefetchState.RUNNING


GB = 10**9


def test_a_running_download_is_told_in_bytes_rate_and_time() -> None:
    [job] = jobs_of(CLAIM)
    running = pod(job, phase="Running", workload=job["metadata"]["name"])
    reading = FetchProgress("Fetching acme/x", 4 * GB, 16 * GB, 0.1 * GB, 120.0)
    told = progress([job], [lived(job)], [running], readings={running.name: reading})
    assert told.message.endswith("fetches the weights. It has 4.0 GB of 16.0 GB (25 %), 100.0 MB/s, 2 min 0 s left")
    assert progress([job], [lived(job)], [running], readings={"other": reading}).message.endswith("fetches the weights")


def test_of_several_downloads_the_slowest_one_is_told() -> None:
    jobs = jobs_of(HOST, "n1", "n2")
    pods = [pod(job, phase="Running", node=f"n{n}", workload=job["metadata"]["name"]) for n, job in enumerate(jobs, 1)]
    readings = {pod.name: FetchProgress("x", done * GB, 16 * GB, 0.0, None) for pod, done in zip(pods, (8, 4), strict=True)}
    told = progress(jobs, [lived(job) for job in jobs], pods, readings=readings).message
    assert told.endswith("fetch the weights. The slowest has 4.0 GB of 16.0 GB (25 %), 0 B/s")

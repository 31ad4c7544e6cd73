"""Reports the progress of the Jobs that fetch a candidate's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.model.fetch_progress import FetchProgress
from dflash_controller.model.fetch_report import FetchReason
from dflash_controller.model.snapshot import Object, Pod
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.state.child_ownership import being_deleted
from dflash_controller.render.prefetch import node_of

GENERATED_NAME_BASE = 58
SHORTEST_PAUSE = timedelta(minutes=10)
LONGEST_PAUSE = timedelta(hours=2)
WITHOUT_POD = timedelta(minutes=1)
"""Time in which a new Job gets its pod."""


REASONS: Mapping[FetchReason, Reason] = {
    FetchReason.UNAUTHORIZED: Reason.WEIGHTS_FORBIDDEN,
    FetchReason.GATED: Reason.WEIGHTS_FORBIDDEN,
    FetchReason.MODEL_NOT_FOUND: Reason.WEIGHTS_NOT_FOUND,
    FetchReason.REVISION_NOT_FOUND: Reason.WEIGHTS_NOT_FOUND,
    FetchReason.HASH_MISMATCH: Reason.WEIGHTS_CORRUPT,
    FetchReason.NO_SPACE: Reason.STORAGE_FULL,
    FetchReason.HUB_UNREACHABLE: Reason.HUB_UNREACHABLE,
}
"""What conditions say for an end of ``dflash-fetch``. The others are rare, and PrefetchFailed with their message."""


class PrefetchState(StrEnum):
    """The state of all prefetch Jobs together."""

    DONE = "Done"
    RUNNING = "Running"
    HELD = "Held"
    """At least one Job has no pod, because it is suspended or its pod is refused."""
    FAILED = "Failed"
    """At least one Job has failed. It is deleted and created again later: see ``next_attempt``."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the prefetch. ``message`` is empty when all Jobs are done.

    It changes at most once a minute while a download progresses.
    """

    state: PrefetchState
    message: str = ""
    reason: Reason = Reason.PREFETCH_FAILED
    """Why it failed."""


def progress(
    expected: Sequence[Mapping[str, Any]],
    live: Sequence[Object],
    pods: Sequence[Pod],
    fetched: Sequence[str] = (),
    now: datetime | None = None,
    readings: Mapping[str, FetchProgress] | None = None,
) -> Progress:
    """Returns the progress of the rendered Jobs ``expected``, given the live objects and pods. Without Jobs it is DONE.

    ``fetched`` names the Jobs that are known to have succeeded: one of them that is gone is done. Without ``now`` no Job is reported for
    having no pod. ``readings`` say how far pods are.

    A Job's conditions say when it has ended. SuccessCriteriaMet and FailureTarget come first (Kubernetes 1.31) and are already final:
    between them and Complete or Failed, Kubernetes only waits for the pods to end.
    """
    found = {item["metadata"]["name"]: item for item in live if item["kind"] == "Job" and not being_deleted(item)}
    unfinished: list[Mapping[str, Any]] = []
    for job in expected:
        item = found.get(job["metadata"]["name"])
        if not _succeeded(item) if item is not None else job["metadata"]["name"] not in fetched:
            unfinished.append(job)
        if item is not None and (condition := _condition(item, "Failed") or _condition(item, "FailureTarget")):
            failed = _failed_pod(job, pods)
            why = _said(failed) or condition.get("message") or condition.get("reason") or "no reason given"
            return Progress(PrefetchState.FAILED, f"Job {job['metadata']['name']} failed: {why}", reason_of(failed))
    if unfinished:
        for job in unfinished:
            if held := _held(found.get(job["metadata"]["name"]), pods, now):
                return Progress(PrefetchState.HELD, held)
        return Progress(PrefetchState.RUNNING, _waiting(expected, unfinished, pods, readings or {}))
    return Progress(PrefetchState.DONE)


def fetched(expected: Sequence[Mapping[str, Any]], live: Sequence[Object], pods: Sequence[Pod], before: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the Jobs ``expected`` that have succeeded, those of ``before`` among them.

    A Job may be deleted in the moment in which it is complete, so its pod that has succeeded tells the same. A Job needs one such pod.
    """
    done = {item["metadata"]["name"] for item in live if item["kind"] == "Job" and _succeeded(item)}
    done |= {pod.workload for pod in pods if pod.role == names.ROLE_PREFETCH and pod.phase == "Succeeded"}
    return tuple(name for job in expected if (name := job["metadata"]["name"]) in done or name in before)


def _succeeded(job: Object) -> bool:
    return bool(_condition(job, "Complete") or _condition(job, "SuccessCriteriaMet"))


def _held(job: Object | None, pods: Sequence[Pod], now: datetime | None) -> str | None:
    """Returns why a Job has no pod: it is suspended, or its pod was not created within WITHOUT_POD. None if it has one or is too new.

    A Job with a failed pod pauses before its next one.
    """
    if job is None:
        return None
    name, status = job["metadata"]["name"], job.get("status") or {}
    if (suspended := _condition(job, "Suspended")) or (job.get("spec") or {}).get("suspend"):
        why = (suspended or {}).get("message") or "spec.suspend is true"
        return f"Job {name}, which fetches the weights, is suspended (see kubectl describe job {name}): {why}"
    created = _time(job["metadata"].get("creationTimestamp"))
    has_pod = status.get("active") or status.get("failed") or status.get("succeeded") or any(pod.workload == name for pod in pods)
    if has_pod or now is None or created is None or now - created < WITHOUT_POD:
        return None
    return f"Job {name}, which fetches the weights, has no pod: a quota or a policy may refuse it (see kubectl describe job {name})"


def next_attempt(job: Object, candidate: Revision | None) -> datetime | None:
    """Returns when a failed Job of the candidate is replaced by a new one; None if it has not failed or does not say when.

    The pause is as long as the time from the begin of the rollout to the failure, at least SHORTEST_PAUSE and at most LONGEST_PAUSE. So it
    about doubles with every failure, and nothing has to be stored.
    """
    condition = _condition(job, "Failed") or _condition(job, "FailureTarget")
    failed_at = _time(condition.get("lastTransitionTime") if condition else None)
    if failed_at is None:
        return None
    begun_at = _time(candidate.asked.get("at") if candidate else None) or failed_at
    return failed_at + min(max(failed_at - begun_at, SHORTEST_PAUSE), LONGEST_PAUSE)


def _waiting(
    expected: Sequence[Mapping[str, Any]],
    unfinished: Sequence[Mapping[str, Any]],
    pods: Sequence[Pod],
    readings: Mapping[str, FetchProgress],
) -> str:
    """Returns the message while Jobs run. It counts all Jobs, not those left, so that it does not change with every node that finishes.

    Of several downloads that run, the one that is the least far is told.
    """
    first = expected[0]["metadata"]["name"]
    what = f"{len(expected)} Jobs like {first} fetch" if len(expected) > 1 else f"Job {first} fetches"
    for job in unfinished:
        if failure := _said(_failed_pod(job, pods)):
            return f"{what} the weights. {job['metadata']['name']}: {failure}"
    names_ = {job["metadata"]["name"] for job in unfinished}
    running = [readings[pod.name] for pod in pods if pod.workload in names_ and pod.name in readings and pod.phase == "Running"]
    if not running:
        return f"{what} the weights"
    last = min(running, key=lambda reading: reading.share)
    return f"{what} the weights. {'The slowest' if len(expected) > 1 else 'It'} has {last.sentence()}"


def reason_of(pod: Pod | None) -> Reason:
    """Returns the reason for which ``dflash-fetch`` ended in a pod, as conditions show it."""
    return REASONS.get(pod.fetch, Reason.PREFETCH_FAILED) if pod and pod.fetch else Reason.PREFETCH_FAILED


def _said(pod: Pod | None) -> str | None:
    return (pod.unschedulable or pod.message) if pod else None


def _failed_pod(job: Mapping[str, Any], pods: Sequence[Pod]) -> Pod | None:
    """Returns the newest pod of a Job that says what is wrong, or None."""
    # The API server cuts a generated name to 58 characters and adds five of its own, so only the node tells pods with long names apart.
    prefix, node = f"{job['metadata']['name']}-"[:GENERATED_NAME_BASE], node_of(job)
    mine = [
        pod
        for pod in pods
        if pod.role == names.ROLE_PREFETCH and pod.name.startswith(prefix) and (node is None or pod.node in (node, None))
    ]
    newest_first = sorted(mine, key=lambda pod: int(pod.resource_version), reverse=True)
    return next((pod for pod in newest_first if _said(pod)), None)


def _time(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


def _condition(job: Object, type: str) -> Mapping[str, Any] | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == type and item.get("status") == "True"), None)

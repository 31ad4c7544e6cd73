"""How far the Jobs have come that fetch a candidate's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dflash_controller.api import names
from dflash_controller.model.snapshot import Object, Pod
from dflash_controller.planning.state.child_ownership import being_deleted
from dflash_controller.render.prefetch import node_of

GENERATED_NAME_BASE = 58


class PrefetchState(StrEnum):
    """What holds for all the Jobs together."""

    DONE = "Done"
    RUNNING = "Running"
    FAILED = "Failed"
    """At least one Job has given up; it does not try again before it was deleted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """``message`` is empty when all is done; it holds nothing that moves while a download does."""

    state: PrefetchState
    message: str = ""


def progress(expected: Sequence[Mapping[str, Any]], live: Sequence[Object], pods: Sequence[Pod]) -> Progress:
    """Of the Jobs ``expected`` (as rendered), given the objects and pods that exist. No Jobs are done.

    A Job is over when it says so by a condition. SuccessCriteriaMet and FailureTarget, which come first (Kubernetes 1.31), are
    final already: only the end of pods is waited for between them and Complete or Failed.
    """
    found = {item["metadata"]["name"]: item for item in live if item["kind"] == "Job" and not being_deleted(item)}
    unfinished: list[Mapping[str, Any]] = []
    for job in expected:
        item = found.get(job["metadata"]["name"])
        if item is None or not (_condition(item, "Complete") or _condition(item, "SuccessCriteriaMet")):
            unfinished.append(job)
        if item is not None and (condition := _condition(item, "Failed") or _condition(item, "FailureTarget")):
            why = _failure(job, pods) or condition.get("message") or condition.get("reason") or "no reason given"
            return Progress(PrefetchState.FAILED, f"Job {job['metadata']['name']} failed: {why}")
    if unfinished:
        return Progress(PrefetchState.RUNNING, _waiting(expected, unfinished, pods))
    return Progress(PrefetchState.DONE)


def _waiting(expected: Sequence[Mapping[str, Any]], unfinished: Sequence[Mapping[str, Any]], pods: Sequence[Pod]) -> str:
    """All the Jobs rather than those left, so that a fleet of nodes does not change the message one by one."""
    first = expected[0]["metadata"]["name"]
    what = f"{len(expected)} Jobs like {first} fetch" if len(expected) > 1 else f"Job {first} fetches"
    for job in unfinished:
        if failure := _failure(job, pods):
            return f"{what} the weights. {job['metadata']['name']}: {failure}"
    return f"{what} the weights"


def _failure(job: Mapping[str, Any], pods: Sequence[Pod]) -> str | None:
    """What the newest of a Job's pods says is wrong."""
    # The API server cuts a generated name off to fit in five letters of its own, so the node tells pods of long names apart.
    prefix, node = f"{job['metadata']['name']}-"[:GENERATED_NAME_BASE], node_of(job)
    mine = [
        pod
        for pod in pods
        if pod.role == names.ROLE_PREFETCH and pod.name.startswith(prefix) and (node is None or pod.node in (node, None))
    ]
    newest_first = sorted(mine, key=lambda pod: int(pod.resource_version), reverse=True)
    return next((words for pod in newest_first if (words := pod.unschedulable or pod.message)), None)


def _condition(job: Object, type: str) -> Mapping[str, Any] | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == type and item.get("status") == "True"), None)

"""The groups of pods that are the replicas of a deployment over several nodes."""

from __future__ import annotations

from collections.abc import Callable

from testbed.leader_worker_set import objects
from testbed.waiting import wait_until
from tests.support.deployment import PATIENCE_S, REVISION, Deployment

ROLE = "serving.dflash.io/role"


def groups(deployment: Deployment, revision: str | None = None) -> dict[str, dict[str, str]]:
    """Pod UIDs by leader (its name) and role, of pods that are not terminating."""
    found: dict[str, dict[str, str]] = {}
    for pod in deployment.children("pods"):
        metadata = pod["metadata"]
        labels = metadata["labels"]
        leader = f"{labels[objects.NAME]}-{labels[objects.GROUP_INDEX]}"
        if "deletionTimestamp" not in metadata and revision in (None, f"{deployment.name}-{labels[REVISION]}"):
            found.setdefault(leader, {})[labels[ROLE]] = metadata["uid"]
    return found


def uids(deployment: Deployment) -> set[str]:
    return {uid for group in groups(deployment).values() for uid in group.values()}


def whole(deployment: Deployment, count: int) -> bool:
    """Whether so many groups exist, all whole and Ready, and the status says so."""
    pods = deployment.children("pods")
    status = deployment.status()
    return (
        len(pods) == 2 * count
        and all(map(objects.is_ready, pods))
        and all(set(group) == {"engine", "worker"} for group in groups(deployment).values())
        and (status.get("replicas"), status.get("readyReplicas")) == (count, count)
    )


def wait_whole(deployment: Deployment, count: int, timeout: float = PATIENCE_S) -> None:
    """Wait until so many groups serve and nothing is left to do."""

    def settled() -> bool:
        stalled = deployment.condition("Stalled")
        assert stalled[1] != "NameTaken", stalled
        return deployment.is_done() and whole(deployment, count)

    wait_for(deployment, settled, f"{count} whole groups", timeout)


def wait_for(deployment: Deployment, condition: Callable[[], bool], what: str, timeout: float = PATIENCE_S) -> None:
    """Wait, and say in the end what there was instead."""
    try:
        wait_until(condition, what, timeout, 0.1)
    except TimeoutError as error:
        raise TimeoutError(f"{error} of {deployment.name}: {groups(deployment)}, {deployment.status()}") from None

"""The operator, killed with SIGKILL at any of its writes, comes to the same end as one that was left alone, within the budget.

A sample of the writes, spread evenly, or with ``DFLASH_KILL_POINTS=all`` each of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.gates import each_gate
from testbed.operator_forks import OperatorForks
from testbed.operator_process import NAMESPACE, SERVICE_ACCOUNT
from testbed.pod_watch import PodWatch
from testbed.simulator_process import SimulatorProcess
from testbed.write_proxy import Write
from tests.e2e.conftest import Say
from tests.e2e.story import Change, Ending, Story, Telling
from tests.support.deployment import UNJUDGED, Deployment

AT_ONCE = 4
KILL_POINTS = os.environ.get("DFLASH_KILL_POINTS", "sample")
EVERY = 3
"""A sample has every third write, the last one, and the first one of each kind."""
BASE: dict[str, Any] = {
    "target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40},
    "drafter": {"revision": "a" * 40},
    "tuning": {"mode": "Off"},
}
GOOD, BROKEN, NEXT = "b" * 40, "c" * 40, "d" * 40
PROBED = {
    "maxSurge": 0,
    "maxUnavailable": 1,
    # Nothing is scraped here, and on a busy machine answers take their time: the probe's acceptance and text decide.
    "analysis": each_gate(enabled=False) | {"acceptanceLength": {"limit": 50, "minSamples": 1}, "restarts": {}},
    "probe": {"prompts": 8, "maxTokens": 16, "promptsPerMinute": 6000},
}
NEVER = {"metadata": {"annotations": {"sim/ready": "false"}}}


def is_rolled_back(deployment: Deployment) -> bool:
    rollout = deployment.status().get("rollout") or {}
    return rollout.get("phase") == "RolledBack" and deployment.condition("Stalled")[1] == "RolledBack"


def is_tried(deployment: Deployment) -> bool:
    """A replica was taken for the candidate."""
    tried = deployment.status().get("candidateRevision")
    return tried is not None and any(pod["metadata"]["name"].startswith(f"{tried}-") for pod in deployment.children("pods"))


STORIES = (
    Story(
        "a drafter is promoted, one replica less at a time",
        (
            Change({**BASE, "replicas": 3, "rollout": PROBED}, least=2, most=3),
            Change({"drafter": {"revision": GOOD}}, least=2, most=3),
        ),
        ("Retired", "Stable"),
    ),
    Story(
        "a broken drafter is rolled back",
        (
            Change({**BASE, "replicas": 3, "rollout": PROBED}, least=2, most=3),
            Change({"drafter": {"revision": BROKEN}}, least=2, most=3, done=is_rolled_back),
        ),
        ("Failed", "Stable"),
        killed_from=1,
    ),
    Story(
        "a drafter that never serves is superseded by one that does",
        (
            Change({**BASE, "replicas": 3, "rollout": PROBED}, least=2, most=3),
            Change({"drafter": {"revision": NEXT}, "podTemplate": NEVER}, least=2, most=3, done=is_tried),
            Change({"drafter": {"revision": GOOD}, "podTemplate": None}, least=2, most=3),
        ),
        ("Retired", "Stable", "Superseded"),
        killed_from=1,
    ),
    Story(
        "a new block size with a surge replica, then one replica more",
        (
            Change({**BASE, "replicas": 2, "blockSize": 16, "rollout": {"maxSurge": 1, "maxUnavailable": 0, **UNJUDGED}}, least=2, most=3),
            Change({"blockSize": 8}, least=2, most=3),
            Change({"replicas": 3}, least=2, most=4),
        ),
        ("Retired", "Stable"),
    ),
)


def kill_points(writes: Sequence[Write]) -> list[int]:
    """The numbers of the writes at which the operator is killed; ``writes`` are those of a run that was left alone."""
    if KILL_POINTS == "all":
        return [write.number for write in writes]
    if KILL_POINTS != "sample":
        raise ValueError(f"DFLASH_KILL_POINTS is sample or all, not {KILL_POINTS!r}")
    firsts = {(write.method, write.kind, write.subresource): write.number for write in reversed(writes)}
    return sorted({*firsts.values(), *(write.number for write in writes[::EVERY]), writes[-1].number})


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.title)
def test_killed_at_any_write_the_operator_comes_to_the_same_end(
    story: Story,
    cluster: Cluster,
    rights: None,
    pod_watch: PodWatch,
    simulator: SimulatorProcess,
    forks: OperatorForks,
    say: Say,
) -> None:
    simulator.ask("PUT", "/rules", [{"match": {"drafter_revision": BROKEN}, "faults": {"acceptance": 0.0}}])
    kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, SERVICE_ACCOUNT)

    def tell(kill_at: int = 0) -> Ending:
        return Telling(cluster, pod_watch, kubeconfig, story, forks).run(kill_at)

    expected = tell()
    revisions = expected.state["controllerrevisions"]
    states = sorted(item["metadata"]["annotations"]["serving.dflash.io/state"] for item in revisions.values())
    assert states == list(story.states)
    assert len(expected.state["deployments"]) == 1
    assert not expected.broken

    candidates = expected.writes[expected.before[story.killed_from] :]
    points = kill_points(candidates)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        endings = list(pool.map(tell, points))

    reached = [ending for ending in endings if ending.killed_at is not None]
    say(f"{story.title}: killed at {len(points)} of {len(candidates)} writes, {len(reached)} of these kill points reached")
    for number, ending in zip(points, endings, strict=True):
        assert ending.state == expected.state, f"killed at {number}: {ending.killed_at}"
        assert not ending.broken, f"killed at {number}: {ending.killed_at}"
    assert len(reached) >= 0.9 * len(points), "the writes of a run are nearly the same each time"

"""The operator, killed with SIGKILL at each of its writes, comes to the same end as one that was left alone, within the budget."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.operator_process import NAMESPACE, SERVICE_ACCOUNT
from testbed.pod_watch import PodWatch
from tests.e2e.story import Change, Ending, Loss, Story, Telling

AT_ONCE = 6
BASE: dict[str, Any] = {
    "target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40},
    "drafter": {"revision": "a" * 40},
    "tuning": {"mode": "Off"},
}

STORIES = (
    Story(
        "new drafter, one replica less at a time",
        (
            Change({**BASE, "replicas": 3, "rollout": {"maxSurge": 0, "maxUnavailable": 1}}, least=2, most=3),
            Change({"drafter": {"revision": "b" * 40}}, least=2, most=3),
        ),
    ),
    Story(
        "new block size with a surge replica, then one replica more",
        (
            Change({**BASE, "replicas": 2, "blockSize": 16, "rollout": {"maxSurge": 1, "maxUnavailable": 0}}, least=2, most=3),
            Change({"blockSize": 8}, least=2, most=3),
            Change({"replicas": 3}, least=2, most=4),
        ),
    ),
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.title)
def test_killed_at_any_write_the_operator_comes_to_the_same_end(
    story: Story, cluster: Cluster, rights: None, pod_watch: PodWatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, SERVICE_ACCOUNT)

    def tell(kill_at: int = 0, loss: Loss = "unsent") -> Ending:
        return Telling(cluster, pod_watch, kubeconfig, story).run(kill_at, loss)

    expected = tell()
    revisions = expected.state["controllerrevisions"]
    states = sorted(item["metadata"]["annotations"]["serving.dflash.io/state"] for item in revisions.values())
    assert states == ["Retired", "Stable"]
    assert len(expected.state["deployments"]) == 1
    assert not expected.broken

    losses: tuple[Loss, ...] = ("unsent", "unanswered")
    points = [(number, loss) for number in range(1, len(expected.writes) + 1) for loss in losses]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        endings = list(pool.map(lambda point: tell(*point), points))

    reached = [ending for ending in endings if ending.killed_at is not None]
    with capsys.disabled():
        print(f"\n{story.title}: {len(expected.writes)} writes, {len(reached)} kill points reached of {len(points)}")
    for (_, loss), ending in zip(points, endings, strict=True):
        assert ending.state == expected.state, f"killed at {ending.killed_at}, {loss}"
        assert not ending.broken, f"killed at {ending.killed_at}, {loss}"
    assert len(reached) >= 0.9 * len(points), "the writes of a run are nearly the same each time"

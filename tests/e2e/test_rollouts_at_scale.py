"""Fifty deployments whose drafters change at once: all arrive, none waits for long after the others, and the API server is not flooded."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from statistics import median
from typing import Any

import pytest

from testbed.audit import WRITE_VERBS
from testbed.cluster import Cluster
from testbed.nodes import DEFAULT_POOLS, NodePool
from testbed.operator_process import USER, OperatorProcess
from testbed.pod_watch import PodWatch, breaks
from testbed.waiting import wait_until
from tests.conftest import StartOperator
from tests.e2e.conftest import Say
from tests.support.deployment import UNJUDGED, Deployment

SIZE = 50
REPLICAS = (2, 3)
OLD, NEW = "a" * 40, "b" * 40
JUDGED_BY_FEW_PROMPTS = {
    "analysis": {**UNJUDGED["analysis"], "acceptanceLength": {"limit": 60, "interval": "5s"}},
    "probe": {"prompts": 8, "maxTokens": 32, "promptsPerMinute": 600},
}
"""Eight probes run at a time, so fifty have to take turns."""
REQUESTS_PER_ROLLOUT, WRITES_PER_ROLLOUT = 250, 50
"""Of 2 or 3 replicas: revision, two workloads raised and lowered replica by replica, phases in the status, events. Before whatever cannot
be undone the objects are read anew."""
WRITES_PER_SECOND = 200
"""In the worst second. Eight workers write, one request after the other."""
SECONDS = 600


@pytest.fixture
def room(cluster: Cluster) -> Iterator[None]:
    """Accelerators for all of them."""
    cluster.set_nodes((NodePool("b200", 20), NodePool("cpu", 1, gpus=0)))
    yield
    cluster.set_nodes(DEFAULT_POOLS)


def spec(replicas: int) -> dict[str, Any]:
    return {
        "target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40},
        "drafter": {"revision": OLD},
        "replicas": replicas,
        "tuning": {"mode": "Off"},
        "rollout": {"maxSurge": 0, "maxUnavailable": 1, **JUDGED_BY_FEW_PROMPTS},
    }


def test_fifty_rollouts_at_once_all_complete_and_the_rate_of_writes_is_bounded(
    room: None, start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch, say: Say
) -> None:
    operator = start_operator(warm_up_seconds="1", scrape_seconds="5")
    deployments = [Deployment(cluster, namespace, f"m{number:02d}") for number in range(SIZE)]
    for number, deployment in enumerate(deployments):
        deployment.create(spec(REPLICAS[number % len(REPLICAS)]))
    for deployment in deployments:
        deployment.wait_done(120)

    mark, before, began = cluster.audit_mark(), requests(operator), time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda deployment: deployment.patch(drafter={"revision": NEW}), deployments))
    waiting, took = set(deployments), dict[str, float]()

    def all_done() -> bool:
        for deployment in sorted(waiting, key=lambda item: item.name):
            if deployment.is_done():
                waiting.remove(deployment)
                took[deployment.name] = time.monotonic() - began
        return not waiting

    wait_until(all_done, f"fifty rollouts; {operator.log}", SECONDS, 0.5)
    for number, deployment in enumerate(deployments):
        replicas = REPLICAS[number % len(REPLICAS)]
        deployment.wait_states("Retired", "Stable")
        assert deployment.rollout()["phase"] == "Completed"
        assert deployment.verdicts()["probeAcceptanceLength"]["verdict"] == "Successful"
        assert not breaks(pod_watch.moments(namespace, deployment.name), least=replicas - 1, most=replicas)

    sent = requests(operator) - before
    writes = [event for event in cluster.audit(mark, user=USER, verbs=WRITE_VERBS) if event["objectRef"].get("namespace") == namespace]
    per_deployment = Counter(name for event in writes if (name := _about(event)))
    per_second = Counter(int(datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()) for event in writes)
    kinds = Counter(f"{event['verb']} {event['objectRef']['resource']}" for event in writes)
    times = sorted(took.values())
    say(
        f"{SIZE} rollouts: first after {times[0]:.0f} s, median {median(times):.0f} s, last {times[-1]:.0f} s; "
        f"{len(writes)} writes, {len(writes) / SIZE:.1f} per rollout (most {max(per_deployment.values())}), "
        f"{max(per_second.values())} in the worst second, {len(writes) / times[-1]:.1f} per second on average {dict(kinds)}; "
        f"{sum(sent.values()) / SIZE:.0f} requests of any kind per rollout {dict(sent)}"
    )
    assert sum(sent.values()) / SIZE <= REQUESTS_PER_ROLLOUT
    assert len(writes) / SIZE <= WRITES_PER_ROLLOUT
    assert max(per_deployment.values()) <= 1.5 * WRITES_PER_ROLLOUT
    assert max(per_second.values()) <= WRITES_PER_SECOND
    assert times[-1] <= 3 * median(times), "none starved"


def requests(operator: OperatorProcess) -> Counter[str]:
    """What the operator has asked of the API server, by verb, as it says itself."""
    found: Counter[str] = Counter()
    for line in operator.metrics().splitlines():
        if (match := re.match(r'dflash_api_requests_total{.*verb="(\w+)".*} (\S+)', line)) is not None:
            found[match[1]] += int(float(match[2]))
    return found


def _about(event: dict[str, Any]) -> str:
    """The deployment a write concerns: all names begin with its own. POSTs have none in the log."""
    return str(event["objectRef"].get("name") or "").partition("-")[0].partition(".")[0]

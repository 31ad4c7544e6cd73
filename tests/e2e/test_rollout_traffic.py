"""Users during a change of drafter at three replicas: nobody's request fails, be the new drafter promoted or taken back."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.pod_watch import PodWatch, breaks
from testbed.simulator_process import SimulatorProcess
from testbed.traffic.mix import Mix
from testbed.traffic.service import ServiceTraffic
from testbed.waiting import wait_until
from tests.conftest import StartOperator
from tests.e2e.conftest import Say
from tests.support.deployment import JUDGED, Deployment, played_with
from tests.support.releases import default_release

MODEL = "Qwen/Qwen3.5-9B"
OLD, EQUAL, COLLAPSED = "a" * 40, "b" * 40, "c" * 40
ENGINES = tuple({"name": name, "version": default_release(name)} for name in ("sglang", "vllm"))
RATE = 12.0
"""Requests per second, of half a second each: one of them is under way on every pod that is asked to stop."""
MIX = Mix({"gsm8k": 1.0, "humaneval": 1.0}, max_tokens=300, stream=0.5)
LEAST_ANSWERED = 300


def spec(engine: dict[str, str]) -> dict[str, Any]:
    return {
        "target": {"model": MODEL, "revision": "f" * 40},
        "drafter": {"revision": OLD},
        "engine": engine,
        "replicas": 3,
        "tuning": {"mode": "Off"},
        "rollout": JUDGED,
        "podTemplate": {"terminationGracePeriodSeconds": 30, "metadata": {"annotations": {"sim/exit-after": "10"}}},
    }


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine["name"])
def test_no_request_fails_while_all_replicas_change_their_drafter(
    engine: dict[str, str],
    start_operator: StartOperator,
    simulator: SimulatorProcess,
    cluster: Cluster,
    namespace: str,
    pod_watch: PodWatch,
    say: Say,
) -> None:
    start_operator(warm_up_seconds="2")
    deployment = Deployment(cluster, namespace).create(spec(engine))
    deployment.wait_done()
    before = deployment.pod_uids()
    with ServiceTraffic(cluster, namespace, "chat", model=MODEL, rate=RATE, mix=MIX) as traffic:
        deployment.patch(drafter={"revision": EQUAL})
        assert deployment.wait_phase("Completed", "RolledBack", "Held", timeout=300)["phase"] == "Completed"
        wait_until(lambda: len(deployment.pod_uids()) == 3, "the last of the old pods to end")
        assert not before & deployment.pod_uids()
        promoted = traffic.answered()
        with played_with(simulator, namespace, {"ccc*": {"acceptance": 0.0}}):
            deployment.patch(drafter={"revision": COLLAPSED})
            assert deployment.wait_phase("Completed", "RolledBack", "Held", timeout=300)["phase"] == "RolledBack"
            wait_until(lambda: len(deployment.pod_uids()) == 3, "the collapsed pod to end")
        answered = traffic.answered()
    collapsed = deployment.rollout()["revision"].removeprefix("chat-")
    since = sum(answered.values()) - sum(promoted.values())
    say(
        f"{engine['name']}: {traffic.failed} of {sum(answered.values()) + traffic.failed} requests failed; "
        f"{sum(promoted.values())} answered while a good drafter replaced another {dict(promoted)}, {since} while a collapsed one was "
        f"tried, of which it answered {answered.get(collapsed, 0)}"
    )
    assert traffic.failed == 0, traffic.log.errors
    assert len(promoted) == 2, "both revisions served users"
    assert min(sum(promoted.values()), since) >= LEAST_ANSWERED
    assert 0 < answered[collapsed] < 0.4 * since, "it met users, on one replica of three"
    assert not breaks(pod_watch.moments(namespace, "chat"), least=2, most=3)

"""A settled fleet under steady noisy traffic is left alone: counted from the API server's audit log, also right after a restart.

Times are fifteen times as short as in production: 2 s between two scrapes, 20 s for a window, 20 s between two lists of everything, where
production has 30 s, 300 s and 300 s. A window holds ten scrapes in both. So the 90 s that the fleet is watched are 45 scrapes and as many
looks of the tuner, four and a half windows, and four lists; the 40 s after the restart are 20 scrapes and two windows. The status may show
other metrics once per window, that is four times in those 90 s. Requests come so fast that a pod answers 28 of them in a window.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pytest

from testbed.audit import WRITE_VERBS
from testbed.cluster import Cluster
from testbed.operator_process import USER, OperatorProcess
from testbed.prometheus import Prometheus
from testbed.simulator_process import SimulatorProcess
from testbed.traffic.mix import Mix, Shots
from testbed.traffic.over_http import Client, Target
from testbed.waiting import wait_until
from tests.e2e.conftest import Say
from tests.support.deployment import Deployment
from tests.support.releases import default_release

SCRAPE_S, WINDOW_S = 2, 20
SETTLING_S = 2.5 * WINDOW_S
"""Half a window until the first metrics, and one more until they have been put right."""
SETTLED_S = 4.5 * WINDOW_S
RESTARTED_S = 2.0 * WINDOW_S
REQUESTS_PER_SECOND = 28 / WINDOW_S
"""To each pod, on average, at random moments."""
MODELS = ("Qwen/Qwen3.5-9B", "Qwen/Qwen3.5-27B", "Qwen/Qwen3.5-35B-A3B")
ENGINES = tuple({"name": name, "version": default_release(name)} for name in ("sglang", "vllm"))
MIX = Mix({"gsm8k": 2.0, "humaneval": 1.0, "mt-bench": 1.0}, max_tokens=250, stream=0.3)


@dataclass(frozen=True)
class Fleet:
    """The deployments of one operator, in a namespace of their own."""

    operator: OperatorProcess
    deployments: Sequence[Deployment]

    def urls(self) -> list[tuple[str, str]]:
        """Model and address of every pod."""
        return [
            (deployment.get()["spec"]["target"]["model"], f"http://{pod['status']['podIP']}:{port['containerPort']}")
            for deployment in self.deployments
            for pod in deployment.children("pods")
            for port in pod["spec"]["containers"][0]["ports"][:1]
        ]


class Traffic:
    """Keeps requests coming until the end of its ``with`` block, in a thread of its own."""

    def __init__(self, pods: Sequence[tuple[str, str]]) -> None:
        self._pods = pods
        self._clients: list[Client] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="traffic", daemon=True)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self._clients:
            client.stop()
        self._thread.join()

    @property
    def answered(self) -> int:
        return sum(len(client.log.completions) for client in self._clients)

    @property
    def tokens(self) -> int:
        return sum(completion.tokens for client in self._clients for completion in client.log.completions)

    @property
    def errors(self) -> int:
        return sum(client.log.errors.total() for client in self._clients)

    async def _run(self) -> None:
        async def send(seed: int, model: str, urls: list[str]) -> None:
            async with Client(Target(urls, model), Shots(MIX, seed)) as client:
                self._clients.append(client)
                await client.open_loop(REQUESTS_PER_SECOND * len(urls), seed=seed)

        by_model = {model: [url for other, url in self._pods if other == model] for model, _ in self._pods}
        await asyncio.gather(*(send(seed, model, urls) for seed, (model, urls) in enumerate(by_model.items())))


def start_fleet(cluster: Cluster, namespace: str, size: int, replicas: Sequence[int], **settings: str) -> Fleet:
    """Deployments that differ in model, engine and number of replicas, with an operator of their own."""
    own = {
        "namespaces": namespace,
        "lease_name": namespace,
        "lease_duration_seconds": "5",
        "renew_deadline_seconds": "4",
        "retry_period_seconds": "1",
        "log_format": "text",
        "scrape_seconds": str(SCRAPE_S),
        "metrics_window_seconds": str(WINDOW_S),
        "tuning_seconds": str(SCRAPE_S),
        "resync_seconds": str(WINDOW_S),
    }
    operator = OperatorProcess(cluster, own | settings, name=namespace)
    deployments = [
        Deployment(cluster, namespace, f"m{number:02d}").create(
            {
                "target": {"model": MODELS[number % len(MODELS)]},
                "engine": ENGINES[number % len(ENGINES)],
                "replicas": replicas[number % len(replicas)],
                "tuning": {"window": f"{WINDOW_S}s"},
            }
        )
        for number in range(size)
    ]
    return Fleet(operator.start().wait_to_lead(), deployments)


@pytest.fixture
def fleets(cluster: Cluster, rights: None, simulator: SimulatorProcess) -> Iterator[list[Fleet]]:
    """One of 20 that its operator scrapes itself, one of 8 that is read from Prometheus."""
    namespaces = [cluster.create_namespace("settled"), cluster.create_namespace("settled")]
    found: list[Fleet] = []
    with Prometheus(cluster, scrape_interval_s=SCRAPE_S, namespaces=namespaces[1:]) as prometheus:
        try:
            found.append(start_fleet(cluster, namespaces[0], 20, (1, 2, 3)))
            found.append(start_fleet(cluster, namespaces[1], 8, (2, 1), prometheus_url=prometheus.url))
            yield found
        finally:
            for fleet in found:
                fleet.operator.kill()
            for namespace in namespaces:
                cluster.delete_namespace(namespace)


def writes_since(cluster: Cluster, mark: int) -> list[str]:
    """What operators wrote, Leases left out."""
    events = cluster.audit(mark, user=USER, verbs=WRITE_VERBS)
    return [
        f"{event['requestReceivedTimestamp']} {event['verb']} {event['requestURI']} {event['responseStatus']['code']}"
        for event in events
        if event["objectRef"]["resource"] != "leases"
    ]


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What changed in a status, field by field: the audit log tells only that it was written."""
    return {name: (before.get(name), after.get(name)) for name in before | after if before.get(name) != after.get(name)}


def changes(before: dict[Deployment, dict[str, Any]]) -> dict[str, dict[str, tuple[Any, Any]]]:
    """What changed in each status since then."""
    found = {deployment.name: differences(status, deployment.status()) for deployment, status in before.items()}
    return {name: changed for name, changed in found.items() if changed}


def known(deployment: Deployment) -> bool:
    """The tuner has something to say, and the drafter is known to be accepted."""
    status = deployment.status()
    healthy = any(item["type"] == "SpeculationHealthy" and item["status"] == "True" for item in status["conditions"])
    return healthy and (status.get("tuning") or {}).get("state") == "Advising"


def metric_values(deployment: Deployment) -> dict[str, float]:
    found: dict[str, float] = deployment.status()["metrics"]
    return found


def lease_renewals_since(cluster: Cluster, mark: int) -> int:
    events = cluster.audit(mark, user=USER, verbs=WRITE_VERBS)
    return sum(event["objectRef"]["resource"] == "leases" for event in events)


def test_a_settled_fleet_under_noisy_traffic_is_left_alone_also_after_a_restart(cluster: Cluster, fleets: list[Fleet], say: Say) -> None:
    begun = cluster.audit_mark()
    everyone = [deployment for fleet in fleets for deployment in fleet.deployments]
    for deployment in everyone:
        deployment.wait_done(180)
    pods = [pod for fleet in fleets for pod in fleet.urls()]
    with Traffic(pods) as traffic:
        wait_until(lambda: all(deployment.status().get("metrics") for deployment in everyone), "metrics of every deployment", 90, 2.0)
        wait_until(lambda: all(known(deployment) for deployment in everyone), "the tuner and the drafter's health to be told", 180, 2.0)
        time.sleep(SETTLING_S - WINDOW_S / 2)
        settled = cluster.audit_mark()
        say(f"{len(everyone)} deployments, {len(pods)} pods: {len(writes_since(cluster, begun))} writes until they were settled")

        shown = {deployment: deployment.get()["metadata"]["resourceVersion"] for deployment in everyone}
        statuses = {deployment: deployment.status() for deployment in everyone}
        sent, tokens = traffic.answered, traffic.tokens
        time.sleep(SETTLED_S)
        tokens_per_second = (traffic.tokens - tokens) / SETTLED_S
        assert writes_since(cluster, settled) == [], changes(statuses)
        assert lease_renewals_since(cluster, settled) > SETTLED_S / 2, "the audit log shows what operators write"
        say(f"settled for {SETTLED_S:.0f} s, {traffic.answered - sent} requests answered: 0 writes")

        for fleet in fleets:
            fleet.operator.kill()
        restarted = cluster.audit_mark()
        for fleet in fleets:
            fleet.operator.start().wait_to_lead()
        sent = traffic.answered
        time.sleep(RESTARTED_S)
        assert writes_since(cluster, restarted) == [], changes(statuses)
        say(f"for {RESTARTED_S:.0f} s after SIGKILL and restart, {traffic.answered - sent} requests answered: 0 writes")
        assert {deployment: deployment.get()["metadata"]["resourceVersion"] for deployment in everyone} == shown
        assert traffic.errors == 0

        # What is shown is what clients get: the metrics are alive, only not worth a write.
        assert 0.85 < sum(metric_values(deployment)["tokensPerSecond"] for deployment in everyone) / tokens_per_second < 1.15
        assert all(2 < metric_values(deployment)["acceptanceLength"] < 16 for deployment in everyone)
    changed = cluster.audit_mark()
    for fleet in fleets:
        fleet.deployments[0].patch(replicas=4)
        fleet.deployments[0].wait_done()
    assert len(writes_since(cluster, changed)) >= len(fleets), "a change is written, and counted"

"""The tuner on engines under load: it follows what a real Prometheus tells, acts only where it may, and outlives outages and restarts."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.gates import each_gate
from testbed.operator_process import OperatorProcess
from testbed.pod_watch import PodWatch, breaks
from testbed.prometheus import Prometheus
from testbed.simulator_process import SimulatorProcess
from testbed.traffic.mix import Mix
from testbed.traffic.service import ServiceTraffic
from testbed.waiting import wait_until
from tests.cluster.conftest import Dflash
from tests.conftest import StartOperator
from tests.support.deployment import Deployment, Version, followed, played_with, rollout_spec
from tests.support.releases import default_release

pytestmark = pytest.mark.long

MODEL = "Qwen/Qwen3.5-9B"
REPLICAS = 2
LOW, HIGH = REPLICAS, 32 * REPLICAS
"""Clients of all replicas together: 16 is the best block for one request at a time, 8 for 32."""
MIX = Mix({"gsm8k": 1.0, "mt-bench": 1.0}, max_tokens=200, prompt_tokens=24)
"""Short prompts: where a sixth of the work is prefill, as it soon is with speculation off, a load sample tells no step time."""
SETTINGS: dict[str, Any] = {"scrape_seconds": "2", "metrics_window_seconds": "16", "warm_up_seconds": "2", "tuning_seconds": "2"}
TUNING = {"blockSizes": [8, 16], "window": "6s", "minDwell": "1s", "maxChangesPerDay": 100}
ROLLOUT = {
    "maxSurge": 1,
    "maxUnavailable": 0,
    "analysis": each_gate(window="5s", interval="1s") | {"speed": {"interval": "1s", "limit": 25}},
    "probe": {"prompts": 24, "maxTokens": 32, "promptsPerMinute": 6000},
}
"""A replica more for a trial of seconds. Few and short answers of engines that share a machine with the test tell no small difference."""
PATIENCE_S = 180


class _Connection(socketserver.BaseRequestHandler):
    """Hands bytes through in both directions, or hangs up where nothing listens."""

    server: FixedAddress

    def handle(self) -> None:
        with suppress(OSError), socket.create_connection(self.server.upstream()) as upstream:
            answering = threading.Thread(target=_hand_on, args=(upstream, self.request), daemon=True)
            answering.start()
            _hand_on(self.request, upstream)
            answering.join()


def _hand_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class FixedAddress(socketserver.ThreadingTCPServer):
    """Where the operator finds Prometheus, which listens on another port after each start."""

    daemon_threads = True

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self._cluster = cluster
        self.prometheus = Prometheus(cluster)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def upstream(self) -> tuple[str, int]:
        host, port = self.prometheus.url.removeprefix("http://").split(":")
        return host, int(port)

    def start(self, *namespaces: str) -> None:
        """Start Prometheus on the data it has; it scrapes the pods of these namespaces, by default of all."""
        self.prometheus = Prometheus(self._cluster, namespaces=namespaces).start()


@pytest.fixture
def prometheus(cluster: Cluster) -> Iterator[FixedAddress]:
    """A Prometheus that scrapes every pod every second, at an address that outlives it."""
    with FixedAddress(cluster) as address:
        thread = threading.Thread(target=address.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        address.start()
        try:
            yield address
        finally:
            address.prometheus.stop()
            address.shutdown()
            thread.join()


@pytest.fixture
def elsewhere(cluster: Cluster) -> Iterator[str]:
    """A second namespace, for a second operator."""
    name = cluster.create_namespace()
    yield name
    cluster.delete_namespace(name)


def spec(mode: str, replicas: int = REPLICAS, **more: Any) -> dict[str, Any]:
    """SGLang at block size 16, which changes its block by a restart."""
    engine = {"name": "sglang", "version": default_release("sglang"), "maxConcurrency": 64}
    pods = {"terminationGracePeriodSeconds": 30, "metadata": {"annotations": {"sim/exit-after": "6"}}}
    tuned = {"engine": engine, "blockSize": 16, "tuning": {**TUNING, "mode": mode}, "podTemplate": pods}
    return rollout_spec(replicas, rollout=ROLLOUT, **tuned, **more)


def traffic_on(deployment: Deployment, clients: int) -> ServiceTraffic:
    return ServiceTraffic(deployment.cluster, deployment.namespace, deployment.name, model=MODEL, concurrency=clients, mix=MIX)


def wait_in_force(deployment: Deployment, label: str) -> None:
    """Wait until this speculation runs on every replica, and nothing else is left to do."""

    def reached() -> bool:
        status = deployment.status()
        return status["speculation"]["label"] == label and (status.get("rollout") or {}).get("phase") == "Completed"

    try:
        wait_until(reached, "", PATIENCE_S, 0.2)
    except TimeoutError:
        status = {name: deployment.status().get(name) for name in ("speculation", "rollout", "tuning")}
        raise TimeoutError(f"{deployment.name} did not come to run with block size {label}: {status}") from None
    deployment.wait_done(PATIENCE_S)


def wait_content(operator: OperatorProcess, deployment: Deployment, block: int) -> None:
    """Wait until this run of the operator has measured the active block (1: off) and found it the best; the status tells it later."""
    of = f'{{deployment="{deployment.name}",namespace="{deployment.namespace}"'

    def decided() -> bool:
        page = operator.metrics()
        best = f"dflash_tuner_recommended_block_size{of}}} {block:.1f}" in page
        return best and any(f'dflash_tuner_state{of},reason="Tuned",state="{state}"}} 1.0' in page for state in ("Tuning", "Advising"))

    wait_until(decided, f"the tuner of {deployment.name} to be content with {block}", PATIENCE_S, 0.5)


def verdicts(versions: list[Version], type: str) -> list[tuple[str, str, str]]:
    """Status, reason and message of a condition in each version of a deployment that has it."""
    found = [item for version in versions for item in (version.object.get("status") or {}).get("conditions") or () if item["type"] == type]
    return [(item["status"], item["reason"], item["message"]) for item in found]


def unrest(versions: list[Version]) -> list[tuple[str, str, str]]:
    """Verdicts that said, once all was done, that something the user had asked for was missing or being changed."""
    ready, reconciling = verdicts(versions, "Ready"), verdicts(versions, "Reconciling")
    return [verdict for verdict in ready if verdict[0] != "True"] + [verdict for verdict in reconciling if verdict[0] != "False"]


def test_auto_follows_the_load_through_a_kill_and_holds_while_prometheus_does_not_tell_it(
    prometheus: FixedAddress,
    elsewhere: str,
    start_operator: StartOperator,
    cluster: Cluster,
    namespace: str,
    pod_watch: PodWatch,
    dflash: Dflash,
) -> None:
    operator = start_operator(prometheus_url=prometheus.url, **SETTINGS)
    start_operator("elsewhere", namespaces=elsewhere, prometheus_url=prometheus.url, prometheus_matcher="cluster=other", **SETTINGS)
    deployment, stranger = (Deployment(cluster, where).create(spec("Auto")) for where in (namespace, elsewhere))
    deployment.wait_done()
    stranger.wait_done()
    with ExitStack() as stack:
        versions = stack.enter_context(followed(deployment, "dflashdeployments"))
        traffic = stack.enter_context(traffic_on(deployment, LOW))
        stack.enter_context(traffic_on(stranger, LOW))
        wait_content(operator, deployment, 16)

        prometheus.prometheus.stop()
        traffic.resize(HIGH)
        held = deployment.wait_tuning(PATIENCE_S, state="Held")
        assert (held["reason"], held.get("recommendation")) == ("MetricsMissing", None)
        assert deployment.condition("TuningReady")[:2] == ("False", "MetricsMissing")
        assert deployment.condition("MetricsAvailable")[:2] == ("False", "PrometheusError")
        # It answers again, but the newest samples are those from before it was stopped.
        prometheus.start("nowhere")
        wait_until(lambda: deployment.condition("MetricsAvailable")[1] == "MetricsStale", "the samples to be found stale", PATIENCE_S, 0.2)
        assert deployment.tuning()["state"] == "Held"
        assert deployment.condition("TuningReady")[0] == "False"
        prometheus.prometheus.stop()
        assert deployment.states() == ["Stable"]
        assert deployment.status()["speculation"]["label"] == "16"

        prometheus.start()
        deployment.wait_phase("Analyzing", timeout=PATIENCE_S)
        operator.kill()
        # While nobody changes anything: what runs, what is on trial, and the decision that the freeze has taken the place of.
        said = dflash("explain", deployment.name)[1]
        assert "Where it comes from: spec.blockSize (active since " in said
        assert "On trial: block size 8, " in said
        assert ": the tuner " in said
        assert "Last decision (" in said
        assert "Tuner now: Frozen (decided " in said
        operator.start().wait_to_lead()
        assert deployment.states() == ["Stable", "Candidate"]
        wait_in_force(deployment, "8")
        # From here on it might change its mind, as somebody who has forgotten what he was about would.
        deployment.wait_tuning(PATIENCE_S, state="Tuning", reason="Tuned", recommendation="8")
        assert deployment.condition("TuningReady")[:2] == ("True", "Tuned")

        held = stranger.wait_tuning(PATIENCE_S, state="Held", reason="MetricsMissing")
        assert stranger.condition("TuningReady")[:2] == ("False", "MetricsMissing")
        assert "Prometheus has no metrics of the engines" in stranger.condition("MetricsAvailable")[2]
        assert "No engine pod is Ready" not in held["message"]
        assert stranger.states() == ["Stable"]
    assert traffic.failed == 0, traffic.log.errors
    assert deployment.states() == ["Retired", "Stable"]
    made, kept = deployment.history(deployment.status()["stableRevision"])
    assert made[:2] == ("Tuner", "Candidate")
    said = dflash("explain", deployment.name)[1]
    assert "Where it comes from: tuner (active since " in said
    assert "spec.blockSize is 16, where the tuner began" in said
    assert kept[1] == "Stable"
    assert not unrest(versions), "what the tuner does is nothing the user waits for"
    assert not breaks(pod_watch.moments(namespace, deployment.name), least=REPLICAS, most=REPLICAS + 1)


def test_advice_changes_nothing_until_auto_is_asked_for_and_a_collapsed_drafter_is_switched_off_for_good(
    prometheus: FixedAddress,
    start_operator: StartOperator,
    simulator: SimulatorProcess,
    cluster: Cluster,
    namespace: str,
    pod_watch: PodWatch,
) -> None:
    operator = start_operator(prometheus_url=prometheus.url, **SETTINGS)
    with ExitStack() as stack:
        stack.enter_context(played_with(simulator, namespace, {"ccc*": {"acceptance": 0.0}}))
        advised = Deployment(cluster, namespace, "advised").create(spec("Advise"))
        garbage = Deployment(cluster, namespace, "garbage").create(spec("Auto", drafter={"revision": "c" * 40}))
        left_alone = Deployment(cluster, namespace, "left-alone").create(spec("Off", 1))
        for deployment in (advised, garbage, left_alone):
            deployment.wait_done()
        collapsed = garbage.status()["stableRevision"]
        told = stack.enter_context(followed(garbage, "dflashdeployments"))
        traffic = stack.enter_context(traffic_on(advised, LOW))
        stack.enter_context(traffic_on(garbage, 8 * REPLICAS))
        stack.enter_context(traffic_on(left_alone, 1))
        left_alone.wait_tuning(PATIENCE_S, state="Off", reason="TuningOff")
        assert left_alone.condition("TuningReady")[:2] == ("False", "TuningOff")
        wait_content(operator, advised, 16)

        traffic.resize(HIGH)
        wait_in_force(garbage, "off")
        wait_content(operator, garbage, 1)
        # It would work again, which nobody can know.
        simulator.ask("PUT", "/rules", [])
        advice = advised.wait_tuning(PATIENCE_S, state="Advising", reason="Tuned", recommendation="8")
        assert "block 8 is expected to give" in advice["message"]
        assert float(advice["inputs"]["gainPercent"]) >= 5
        assert advised.condition("TuningReady")[:2] == ("True", "Tuned")
        assert advised.states() == ["Stable"]
        assert advised.status()["speculation"]["label"] == "16"

        advised.patch(tuning={"mode": "Auto"})
        wait_until(lambda: len(advised.states()) == 2, "the advice to be acted on", PATIENCE_S)
        rollout = advised.wait_phase("Preparing", "Canary", "Analyzing")
        assert advised.history(rollout["revision"])[0][:2] == ("Tuner", "Candidate")
        wait_content(operator, garbage, 1)
    assert any(verdict[:2] == ("False", "DrafterCollapsed") and collapsed in verdict[2] for verdict in verdicts(told, "SpeculationHealthy"))
    assert garbage.states() == ["Failed", "Stable"]
    assert garbage.revisions()[collapsed]["reason"] == "DrafterCollapsed"
    assert garbage.history(collapsed)[-1][1:] == ("Failed", "DrafterCollapsed")
    assert garbage.history(garbage.status()["stableRevision"])[0] == ("Tuner", "Candidate", "DrafterCollapsed")
    assert garbage.condition("SpeculationHealthy")[:2] == ("False", "SpeculationOff")
    assert collapsed in garbage.condition("SpeculationHealthy")[2]
    assert left_alone.states() == ["Stable"]
    assert left_alone.tuning()["state"] == "Off"
    for deployment in (advised, garbage):
        assert not breaks(pod_watch.moments(namespace, deployment.name), least=REPLICAS, most=REPLICAS + 1)

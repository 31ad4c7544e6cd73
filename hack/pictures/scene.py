"""The scene for pictures and tests of dashboards: one deployment per engine on the test bed, under traffic, with rules and operator
scraped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from dflash_controller.engines.releases import TABLE
from monitoring.dashboards.samples import WINDOW_S
from testbed.cluster import Cluster
from testbed.operator_process import NAMESPACE, OperatorProcess
from testbed.prometheus import Prometheus
from testbed.simulator_process import SimulatorProcess
from testbed.stages import EXIT_AFTER, READY_AFTER
from testbed.traffic.mix import Mix
from testbed.traffic.service import ServiceTraffic
from testbed.waiting import wait_until

RULES = Path(__file__).parents[2] / "charts" / "dflash-operator" / "files" / "rules"
MODEL = "Qwen/Qwen3.5-9B"
ENGINES: Mapping[str, tuple[str, str]] = {"chat": ("sglang", TABLE["sglang"].default), "code": ("vllm", TABLE["vllm"].default)}
"""Engine and release of each deployment."""
REPLICAS = 2
_WARM_UP_S = WINDOW_S + 10
"""A candidate is judged after this time, when its ratios can be seen."""
SETTINGS = {
    "scrape_seconds": "2",
    "metrics_window_seconds": "16",
    "warm_up_seconds": str(_WARM_UP_S),
    "tuning_seconds": "2",
    "log_format": "text",
}
_MIX = Mix({"gsm8k": 1.0, "mt-bench": 1.0}, max_tokens=200, stream=0.5)
_PATIENCE_S = 180.0


def _impatient(directory: Path) -> list[Path]:
    """Returns the rule files without intervals, so Prometheus evaluates every group at its own: a scene is too short for rules every few
    minutes."""
    made = []
    for file in sorted(RULES.glob("*.yaml")):
        rules = yaml.safe_load(file.read_text(encoding="utf-8"))
        for group in rules["groups"]:
            group.pop("interval", None)
        made.append(directory / file.name)
        made[-1].write_text(yaml.safe_dump(rules), encoding="utf-8")
    return made


class Scene:
    """Both deployments, from the first pod to the last query. It stops everything it started. The cluster must have the CRD, the operator's
    rights and a simulator that plays its pods."""

    def __init__(
        self, cluster: Cluster, namespace: str, *, analysis: Mapping[str, Any], modes: Mapping[str, str], startup_s: float
    ) -> None:
        """Takes ``analysis`` (the gates that judge a candidate, as in the spec), ``modes`` (of the tuner, by deployment) and ``startup_s``
        (start-up time of every engine in seconds)."""
        self.cluster = cluster
        self.namespace = namespace
        self._analysis = analysis
        self._modes = modes
        self._startup_s = startup_s
        self._exits = ExitStack()
        self.prometheus = Prometheus(
            cluster,
            scrape_interval_s=1.0,
            namespaces=[namespace],
            rule_files=_impatient(cluster.directory),
            name=f"prometheus-{namespace}",  # data of its own: what another one measured before must not end a wait
        )
        self.traffic: dict[str, ServiceTraffic] = {}

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            exits.enter_context(self.prometheus)
            own = {"namespaces": self.namespace, "lease_name": self.namespace, "prometheus_url": self.prometheus.url}
            operator = OperatorProcess(self.cluster, SETTINGS | own, name=f"{self.namespace}-dashboards")
            exits.callback(operator.kill)
            operator.start().wait_to_lead()
            self.prometheus.scrape(operator.url, namespace=NAMESPACE, pod=operator.name)
            for name in ENGINES:
                self._create(name)
            for name in ENGINES:
                wait_until(lambda name=name: self._is_ready(name), f"{name} to be Ready", _PATIENCE_S, 0.2)  # type: ignore[misc]
                self.traffic[name] = exits.enter_context(
                    ServiceTraffic(self.cluster, self.namespace, name, model=MODEL, concurrency=REPLICAS, mix=_MIX)
                )
            self._exits = exits.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._exits.__exit__(kind, error, trace)

    def load(self, clients: int) -> None:
        """Sets the number of concurrent requests per replica, for both deployments."""
        for traffic in self.traffic.values():
            traffic.resize(clients * REPLICAS)

    def change_drafter(self, commit: str, names: Sequence[str] = tuple(ENGINES)) -> None:
        """Requests another commit of the drafter."""
        for name in names:
            self.cluster.api.request("PATCH", self._path(name), {"spec": {"drafter": {"revision": commit}}})

    def wait_series(self, what: str, promql: str, count: int, failure_threshold_s: float = _PATIENCE_S) -> None:
        """Waits until a query has this many series. Raises TimeoutError."""
        wait_until(lambda: len(self.prometheus.query(promql)) >= count, f"{what}: {promql}", failure_threshold_s, 0.5)

    def wait_phase(self, name: str, *phases: str, failure_threshold_s: float = 300.0) -> str:
        """Waits until the rollout of the newest spec is in one of these phases. Returns the phase."""

        def reached() -> str | None:
            found = self.cluster.api.get(self._path(name))
            status = found.get("status") or {}
            phase = str((status.get("rollout") or {}).get("phase"))
            return phase if status.get("observedGeneration") == found["metadata"]["generation"] and phase in phases else None

        return wait_until(reached, f"{name} to come to {' or '.join(phases)}", failure_threshold_s, 0.2)

    def break_engines(self, simulator: SimulatorProcess, name: str, faults: Mapping[str, Any]) -> None:
        """Lets the simulated engines that serve a deployment now misbehave."""
        selector = f"serving.dflash.io%2Fdeployment%3D{name}"
        for pod in self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={selector}")["items"]:
            port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
            simulator.ask("PATCH", f"http://{pod['status']['podIP']}:{port}/sim/faults", faults)

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.api.get(self._path(name)).get("status") or {}
        return found

    def _create(self, name: str) -> None:
        engine, version = ENGINES[name]
        played = {EXIT_AFTER: "10", READY_AFTER: f"{self._startup_s:g}"}
        spec = {
            "target": {"model": MODEL, "revision": "f" * 40},
            "drafter": {"revision": "a" * 40},
            "engine": {"name": engine, "version": version, "maxConcurrency": 64},
            "replicas": REPLICAS,
            "blockSize": 16,
            "tuning": {"mode": self._modes[name], "blockSizes": [8, 16], "window": "6s", "minDwell": "30m", "maxChangesPerDay": 100},
            "rollout": {
                "maxSurge": 1,
                "maxUnavailable": 0,
                "analysis": self._analysis,
                "probe": {"prompts": 24, "maxTokens": 32, "promptsPerMinute": 2400},
            },
            "podTemplate": {"terminationGracePeriodSeconds": 30, "metadata": {"annotations": played}},
        }
        manifest = {"apiVersion": "serving.dflash.io/v1alpha1", "kind": "DFlashDeployment", "metadata": {"name": name}, "spec": spec}
        self.cluster.api.request("POST", self._path(), manifest)

    def _is_ready(self, name: str) -> bool:
        return any(item["type"] == "Ready" and item["status"] == "True" for item in self.status(name).get("conditions") or ())

    def _path(self, name: str = "") -> str:
        return f"/apis/serving.dflash.io/v1alpha1/namespaces/{self.namespace}/dflashdeployments" + (f"/{name}" if name else "")

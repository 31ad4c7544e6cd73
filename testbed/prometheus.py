"""A real Prometheus that scrapes the pods of a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from testbed import binaries
from testbed.cluster import Cluster
from testbed.processes import RecordedProcess
from testbed.waiting import wait_until

SCRAPE_ANNOTATION = "prometheus.io/scrape"
"""Pods carrying it with "true" are scraped."""
PORT_ANNOTATION = "prometheus.io/port"
"""Port of their /metrics."""


class PrometheusError(RuntimeError):
    """Prometheus did not start or refused a query."""


class Prometheus:
    """Prometheus for one cluster; ends with it at the latest.

    `kubeconfig` is the identity under which pods are found (the cluster's administrator by default; get, list and watch on pods suffice),
    `namespaces` limits where, `rule_files` are recording and alerting rules. Series carry namespace, pod and node, and each pod label
    with characters not allowed in label names made `_`. One started later under the same `name` goes on with the data of this one.
    """

    def __init__(
        self,
        cluster: Cluster,
        scrape_interval_s: float = 1.0,
        namespaces: Sequence[str] = (),
        kubeconfig: Path | None = None,
        rule_files: Sequence[Path] = (),
        name: str = "prometheus",
    ) -> None:
        self._directory = cluster.directory / name
        self._log = self._directory / "prometheus.log"
        self._others = self._directory / "others.json"
        self._config = _configuration(scrape_interval_s, namespaces, kubeconfig or cluster.admin_kubeconfig, rule_files, self._others)
        self._process: RecordedProcess = cluster.workspace.process(name)
        self.url = ""

    def start(self, timeout: float = 30.0) -> Prometheus:
        """Start it on a free port of 127.0.0.1 and wait until it answers queries. `url` is known from then on."""
        self._directory.mkdir(exist_ok=True)
        config = self._directory / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config))
        self._log.write_text("")
        command = [str(binaries.path_of("prometheus")), f"--config.file={config}", f"--storage.tsdb.path={self._directory / 'data'}"]
        command += ["--web.listen-address=127.0.0.1:0", "--web.enable-lifecycle"]
        # Targets are otherwise taken over every 5 s only: an age for pods that live for seconds.
        command += ["--scrape.discovery-reload-interval=1s", "--log.format=json"]
        self._process.start(command, self._log)
        try:
            self.url = wait_until(self._listening_url, "Prometheus to listen", timeout)
            wait_until(self._is_ready, "Prometheus to become ready", timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End it. Its data stay until the cluster goes, so a restart continues."""
        self._process.stop()

    def __enter__(self) -> Prometheus:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def scrape(self, url: str, **labels: str) -> None:
        """Scrape this address from now on, instead of one given earlier: an operator's, which is no pod here.

        A label that the series bring along themselves becomes `exported_…`, as Prometheus does it by default.
        """
        unfinished = self._others.with_suffix(".new")
        unfinished.write_text(json.dumps([{"targets": [url.removeprefix("http://")], "labels": labels}]))
        unfinished.rename(self._others)

    def query(self, promql: str, at: float | None = None) -> list[dict[str, Any]]:
        """Result of an instant query at Unix time `at` (now by default); for a vector, dicts of `metric` and `value`.

        PrometheusError when the query is refused.
        """
        parameters = {"query": promql} | ({} if at is None else {"time": f"{at:.3f}"})
        result: list[dict[str, Any]] = self._ask("query", parameters)["result"]
        return result

    def query_range(self, promql: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Result of a range query between two Unix times: dicts of `metric` and `values`. PrometheusError when it is refused."""
        parameters = {"query": promql, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        result: list[dict[str, Any]] = self._ask("query_range", parameters)["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its `health` and, where it could not be evaluated, `lastError`."""
        return [rule for group in self._ask("rules", {})["groups"] for rule in group["rules"]]

    def values(self, promql: str) -> dict[str, float]:
        """`query`, as numbers by pod; series without a pod label come under the empty name."""
        return {series["metric"].get("pod", ""): float(series["value"][1]) for series in self.query(promql)}

    def _ask(self, what: str, parameters: dict[str, str]) -> Any:
        try:
            with urlopen(f"{self.url}/api/v1/{what}?{urlencode(parameters)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            raise PrometheusError(f"{parameters}: {error.read().decode(errors='replace')}") from error

    def _listening_url(self) -> str | None:
        running = self._process.pid() is not None  # asked before reading, or its last words would be missed
        log = self._log.read_text(errors="replace")
        found = re.search(r'"msg":"Listening on","component":"web","address":"(127\.0\.0\.1:\d+)"', log)
        if found is None and not running:
            raise PrometheusError(f"Prometheus ended at once:\n{log[-2000:]}")
        return f"http://{found[1]}" if found else None

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _configuration(
    interval_s: float, namespaces: Sequence[str], kubeconfig: Path, rule_files: Sequence[Path], others: Path
) -> dict[str, Any]:
    discovery: dict[str, Any] = {"role": "pod", "kubeconfig_file": str(kubeconfig)}
    if namespaces:
        discovery["namespaces"] = {"names": list(namespaces)}
    interval_ms = round(interval_s * 1000)
    return {
        "global": {
            "scrape_interval": f"{interval_ms}ms",
            "scrape_timeout": f"{interval_ms * 9 // 10}ms",
            "evaluation_interval": f"{interval_ms}ms",
        },
        "rule_files": [str(file.absolute()) for file in rule_files],
        "scrape_configs": [
            {"job_name": "pods", "kubernetes_sd_configs": [discovery], "relabel_configs": _relabelling()},
            {"job_name": "others", "file_sd_configs": [{"files": [str(others)], "refresh_interval": "1s"}]},
        ],
    }


def _relabelling() -> list[dict[str, Any]]:
    meta = "__meta_kubernetes_"
    annotation = {name: meta + "pod_annotation_" + re.sub(r"[^a-zA-Z0-9_]", "_", name) for name in (SCRAPE_ANNOTATION, PORT_ANNOTATION)}
    return [
        {"source_labels": [annotation[SCRAPE_ANNOTATION]], "action": "keep", "regex": "true"},
        {"source_labels": [meta + "pod_phase"], "action": "keep", "regex": "Running"},
        # One target per pod, whatever the number of its containers and ports: the rest become equal to it and are merged.
        {
            "source_labels": [meta + "pod_ip", annotation[PORT_ANNOTATION]],
            "regex": r"(.+);(\d+)",
            "target_label": "__address__",
            "replacement": "$1:$2",
        },
        {"action": "labelmap", "regex": meta + "pod_label_(.+)"},
        {"source_labels": [meta + "namespace"], "target_label": "namespace"},
        {"source_labels": [meta + "pod_name"], "target_label": "pod"},
        {"source_labels": [meta + "pod_node_name"], "target_label": "node"},
    ]

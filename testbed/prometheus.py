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
"""Pods with this annotation set to "true" are scraped."""
PORT_ANNOTATION = "prometheus.io/port"
"""Annotation with the port of a pod's /metrics."""


class PrometheusError(RuntimeError):
    """Prometheus did not start or refused a query."""


class Prometheus:
    """Prometheus for one cluster; it ends with the cluster at the latest.

    `kubeconfig` is the identity that finds the pods (by default the cluster's administrator; get, list and watch on pods are enough).
    `namespaces` limits where it looks. `rule_files` are recording and alerting rules. Series have the labels namespace, pod and node, and
    every pod label, with `_` for characters not allowed in label names. A later one with the same `name` continues with the data of this
    one.
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
        """Starts Prometheus on a free port of 127.0.0.1 and waits until it answers queries. `url` is known from then on."""
        self._directory.mkdir(exist_ok=True)
        config = self._directory / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config))
        self._log.write_text("")
        command = [str(binaries.path_of("prometheus")), f"--config.file={config}", f"--storage.tsdb.path={self._directory / 'data'}"]
        command += ["--web.listen-address=127.0.0.1:0", "--web.enable-lifecycle"]
        # Otherwise targets are updated only every 5 s, which is too slow for pods that live for seconds.
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
        """Stops Prometheus. Its data stay as long as the cluster, so a restart continues with them."""
        self._process.stop()

    def __enter__(self) -> Prometheus:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def scrape(self, url: str, **labels: str) -> None:
        """Scrapes this address from now on instead of an earlier one. It is for the operator, which is no pod here.

        Labels that the series already have become `exported_…`, as is Prometheus' default.
        """
        unfinished = self._others.with_suffix(".new")
        unfinished.write_text(json.dumps([{"targets": [url.removeprefix("http://")], "labels": labels}]))
        unfinished.rename(self._others)

    def query(self, promql: str, at: float | None = None) -> list[dict[str, Any]]:
        """Returns the result of an instant query at Unix time `at` (now by default); for a vector, dicts of `metric` and `value`.

        Raises PrometheusError if the query is refused.
        """
        parameters = {"query": promql} | ({} if at is None else {"time": f"{at:.3f}"})
        result: list[dict[str, Any]] = self._ask("query", parameters)["result"]
        return result

    def query_range(self, promql: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Returns the result of a range query between two Unix times: dicts of `metric` and `values`. Raises PrometheusError if it is
        refused."""
        parameters = {"query": promql, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        result: list[dict[str, Any]] = self._ask("query_range", parameters)["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """Returns every rule with its `health` and, if its evaluation failed, `lastError`."""
        return [rule for group in self._ask("rules", {})["groups"] for rule in group["rules"]]

    def values(self, promql: str) -> dict[str, float]:
        """Returns `query` as numbers by pod; series without a pod label have the empty name."""
        return {series["metric"].get("pod", ""): float(series["value"][1]) for series in self.query(promql)}

    def _ask(self, what: str, parameters: dict[str, str]) -> Any:
        try:
            with urlopen(f"{self.url}/api/v1/{what}?{urlencode(parameters)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            raise PrometheusError(f"{parameters}: {error.read().decode(errors='replace')}") from error

    def _listening_url(self) -> str | None:
        running = self._process.pid() is not None  # check before reading, otherwise its last lines would be missed
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
            {"job_name": "pods", "kubernetes_sd_configs": [discovery], "relabel_configs": relabelling()},
            {"job_name": "others", "file_sd_configs": [{"files": [str(others)], "refresh_interval": "1s"}]},
        ],
    }


def relabelling() -> list[dict[str, Any]]:
    """Returns the rules by which annotated pods are scraped, with the labels namespace, pod and node."""
    meta = "__meta_kubernetes_"
    annotation = {name: meta + "pod_annotation_" + re.sub(r"[^a-zA-Z0-9_]", "_", name) for name in (SCRAPE_ANNOTATION, PORT_ANNOTATION)}
    return [
        {"source_labels": [annotation[SCRAPE_ANNOTATION]], "action": "keep", "regex": "true"},
        {"source_labels": [meta + "pod_phase"], "action": "keep", "regex": "Running"},
        # One target per pod, whatever the number of its containers and ports: the others become equal to it and are merged.
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

"""``python -m benchmarks.fleet``: measures the operator's speed and resource use on a fleet.

It runs a real control plane on this machine, engine pods simulated by kwok, and the operator under its ServiceAccount. It prints one JSON
object per line to standard output, the last with ``"summary": true``; progress goes to standard error. Times are from the API server's
audit log: from the arrival of the user's write until the operator's write to a child was answered.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arguments import positive
from benchmarks.readings import LEASES, Page, delays, distribution, done, histogram_quantile
from testbed.audit import WRITE_VERBS
from testbed.cluster import Cluster
from testbed.gates import each_gate
from testbed.nodes import NodePool
from testbed.operator_process import USER, OperatorProcess, install_chart
from testbed.prometheus import Prometheus
from testbed.simulator_process import SimulatorProcess
from testbed.waiting import wait_until

NAMESPACE = "fleet"
CHILDREN = ("serviceaccounts", "services", "poddisruptionbudgets", "networkpolicies", "controllerrevisions", "deployments")
PODS_PER_NODE = 96
"""A kubelet's usual limit is 110 pods; nodes with as many accelerators keep 5,000 pods within the 256 nodes of a test cluster."""
NOT_COMPARED = {"analysis": each_gate(enabled=False), "probe": {"enabled": False}}
"""Part of ``spec.rollout``: a candidate that serves is promoted. Idle engines give no evidence, so that it would wait for its deadline."""
QUIET_S = 5.0
"""The fleet counts as settled after this time without a write."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the fleet, and how long it is observed."""

    deployments: int
    replicas: int
    samples: int
    settled_s: float
    engines: bool

    @property
    def names(self) -> list[str]:
        return [f"m{number:04d}" for number in range(self.deployments)]

    @property
    def pods(self) -> int:
        return self.deployments * self.replicas


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--deployments", type=positive, default=50, metavar="N", help="DFlashDeployments (default %(default)s)")
    parser.add_argument("--replicas", type=positive, default=4, metavar="R", help="replicas of each (default %(default)s)")
    parser.add_argument("--samples", type=positive, default=50, metavar="N", help="changes made one at a time (default %(default)s)")
    parser.add_argument(
        "--settled-seconds", type=float, default=60.0, metavar="S", help="observation of the settled fleet (default %(default)s)"
    )
    parser.add_argument(
        "--no-engines", action="store_true", help="pods do not answer and have no metrics: for large fleets on small machines"
    )
    options = parser.parse_args(arguments)
    size = Size(
        options.deployments,
        options.replicas,
        min(options.samples, options.deployments),
        options.settled_seconds,
        not options.no_engines,
    )
    with Fleet(size) as fleet:
        fleet.run()
    return 0


class Fleet:
    """One run."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.summary: dict[str, Any] = {}
        self._stack = ExitStack()
        self._peak_rss_mib = 0.0
        self._cpu_s = 0.0

    def __enter__(self) -> Fleet:
        with ExitStack() as stack:
            size = self.size
            _log(f"cluster for {size.deployments} deployments of {size.replicas} replicas")
            nodes = math.ceil((size.pods + size.samples + size.deployments) / PODS_PER_NODE)
            self.cluster = stack.enter_context(Cluster(pools=(NodePool("gpu", nodes, gpus=PODS_PER_NODE),)))
            # A short window, because otherwise the status would show the metrics of idle engines only after minutes.
            self.settings = {"scrape_seconds": "10", "metrics_window_seconds": "60"}
            if size.engines:
                self.settings["prometheus_url"] = Prometheus(self.cluster, scrape_interval_s=15.0).start().url
                stack.enter_context(SimulatorProcess(self.cluster))
            install_chart(self.cluster)
            self.cluster.api.request(
                "POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
            )
            self.cluster.wait_for_service_account(NAMESPACE)
            self.operator = OperatorProcess(self.cluster, self.settings).start().wait_to_lead()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self) -> None:
        """Runs every measurement, in an order in which each leaves the fleet as the next one needs it."""
        self._emit("machine", cpus=os.cpu_count(), memory_gib=_memory_gib(), python=platform.python_version())
        self._create()
        self._settled()
        self._changes("scale", self.size.samples, lambda _: {"replicas": self.size.replicas + 1}, ["deployments"], gap_s=0.2)
        self._changes("all_at_once", self.size.deployments, lambda _: {"service": {"annotations": {"bench": "1"}}}, ["services"])
        self._changes(
            "new_revision",
            min(10, self.size.samples),
            lambda number: {"drafter": {"revision": f"{number:040x}"}},
            ["controllerrevisions", "deployments"],
            gap_s=0.2,
        )
        pods = self._pod_uids()
        self._restart()
        self._failover()
        self._emit("engine_pods", pods=len(pods), replaced_by_restart_and_failover=len(pods - self._pod_uids()))
        self.summary["peak_rss_mib"] = round(self._peak_rss_mib)
        print(json.dumps({"summary": True, "deployments": self.size.deployments, "pods": self.size.pods, **self.summary}), flush=True)

    # Measurements

    def _create(self) -> None:
        _log("creating the fleet")
        mark, started = self.cluster.audit_mark(), time.monotonic()
        self._each(self.size.names, lambda name: self.cluster.api.request("POST", self._path(), _deployment(name, self.size.replicas)))
        self._wait_ready()
        ready_s = time.monotonic() - started
        self._wait_quiet()
        applied = self._delays(mark, "create", CHILDREN)
        self._emit("created", all_ready_s=round(ready_s, 1), children_applied=distribution(applied), **self._cost())
        self.summary["created_ready_s"] = round(ready_s, 1)

    def _settled(self) -> None:
        """Annotates every deployment once: each is reconciled without a change."""
        _log(f"watching the settled fleet for {self.size.settled_s:.0f} s")
        mark, before, started = self.cluster.audit_mark(), self._page(), time.monotonic()
        for number, name in enumerate(self.size.names):
            time.sleep(max(0.0, started + self.size.settled_s * number / self.size.deployments - time.monotonic()))
            self.cluster.api.request("PATCH", self._path(name), {"metadata": {"annotations": {"bench": "touched"}}})
        time.sleep(max(0.0, started + self.size.settled_s - time.monotonic()))
        after, seconds = self._page(), time.monotonic() - started
        writes = self._writes(mark)
        name = "dflash_reconcile_duration_seconds"
        count = after.value(f"{name}_count") - before.value(f"{name}_count")
        quantiles = {
            f"p{round(share * 100)}_ms": _milliseconds(histogram_quantile(before.buckets(name), after.buckets(name), share))
            for share in (0.5, 0.99)
        }
        mean_s = (after.value(f"{name}_sum") - before.value(f"{name}_sum")) / count if count else None
        cpu = (after.value("process_cpu_seconds_total") - before.value("process_cpu_seconds_total")) / seconds
        self._emit(
            "settled",
            seconds=round(seconds, 1),
            writes=len(writes),
            written=sorted({f"{event['verb']} {event['objectRef']['resource']}" for event in writes}),
            no_op_reconciles={"count": round(count), "mean_ms": _milliseconds(mean_s), **quantiles},
            cpu_percent=round(100 * cpu, 1),
            **self._cost(),
        )
        self.summary |= {"settled_writes": len(writes), **{f"no_op_{key}": value for key, value in quantiles.items()}}

    def _changes(
        self, what: str, count: int, change: Callable[[int], Mapping[str, Any]], resources: Sequence[str], gap_s: float = 0.0
    ) -> None:
        """Patches ``count`` specs, one after the other with a gap or all at once, and measures when the children follow."""
        _log(f"{what}: {count} changes")
        mark = self.cluster.audit_mark()

        def patch(name: str) -> None:
            self.cluster.api.request("PATCH", self._path(name), {"spec": change(self.size.names.index(name) + 1)})

        names = self.size.names[:count]
        if gap_s:
            for name in names:
                patch(name)
                time.sleep(gap_s)
        else:
            self._each(names, patch)
        self._wait_ready()
        self._wait_quiet()
        applied = distribution(self._delays(mark, "patch", resources))
        self._emit(what, children_applied=applied, **self._cost())
        self.summary[f"{what}_p99_s"] = applied["p99_s"]

    def _restart(self) -> None:
        _log("restarting the operator")
        self.operator.stop()
        mark, started = self.cluster.audit_mark(), time.monotonic()
        self.operator.start().wait_to_lead()
        leads_s = time.monotonic() - started
        wait_until(self._has_looked_at_everything, "every deployment to be reconciled", 300)
        converged_s = time.monotonic() - started
        self._wait_quiet()
        self._emit(
            "cold_start", leads_s=round(leads_s, 2), converged_s=round(converged_s, 2), writes=len(self._writes(mark)), **self._cost()
        )
        self.summary["cold_start_s"] = round(converged_s, 2)

    def _failover(self) -> None:
        _log("killing the leader")
        standby = OperatorProcess(self.cluster, self.settings, name="standby").start()
        listed = "dflash_last_resync_timestamp_seconds"
        wait_until(lambda: Page.parse(standby.metrics()).value(listed) > 0, "the standby to have listed everything", 120)
        self._wait_quiet()
        mark = self.cluster.audit_mark()
        self.operator.kill()
        killed = time.monotonic()
        self.cluster.api.request("PATCH", self._path(self.size.names[-1]), {"spec": {"service": {"annotations": {"bench": "failover"}}}})
        standby.wait_to_lead()
        leads_s = time.monotonic() - killed
        self.operator = standby
        wait_until(lambda: self._annotated(self.size.names[-1]) == "failover", "the change to be carried out", 120)
        (applied,) = self._delays(mark, "patch", ["services"])
        self._emit("failover", leads_s=round(leads_s, 1), change_applied_s=round(applied, 1), **self._cost())
        self.summary["failover_s"] = round(applied, 1)

    # Observations

    def _path(self, name: str = "") -> str:
        return f"/apis/serving.dflash.io/v1alpha1/namespaces/{NAMESPACE}/dflashdeployments{'/' if name else ''}{name}"

    def _page(self) -> Page:
        page = Page.parse(self.operator.metrics())
        self._peak_rss_mib = max(self._peak_rss_mib, page.value("process_resident_memory_bytes") / 2**20)
        return page

    def _cost(self) -> dict[str, float]:
        """Returns the current memory, and CPU time since the last measurement or since the start of the process, if that is later."""
        page = self._page()
        used, before = page.value("process_cpu_seconds_total"), self._cpu_s
        self._cpu_s = used
        return {
            "rss_mib": round(page.value("process_resident_memory_bytes") / 2**20),
            "cpu_s": round(used - before if used > before else used, 1),
        }

    def _writes(self, mark: int) -> list[dict[str, Any]]:
        events = self.cluster.audit(mark, user=USER, verbs=WRITE_VERBS)
        return [event for event in events if event["objectRef"]["resource"] != LEASES]

    def _delays(self, mark: int, verb: str, resources: Sequence[str]) -> list[float]:
        events = self.cluster.audit(mark)
        changes = [event for event in done(events, ["dflashdeployments"]) if event["user"]["username"] != USER and event["verb"] == verb]
        found = delays(changes, (event for event in events if event["user"]["username"] == USER), resources)
        missing = sorted(name for name, delay in found.items() if delay is None)
        if missing:
            raise RuntimeError(f"no write to {', '.join(resources)} followed the change of {', '.join(missing[:5])}")
        return [delay for delay in found.values() if delay is not None]

    def _wait_ready(self) -> None:
        """Waits until every deployment is Ready for its newest generation and its metrics have been collected once."""

        def all_ready() -> bool:
            items = self.cluster.api.get(self._path())["items"]
            return len(items) == self.size.deployments and all(_is_settled(item, engines=self.size.engines) for item in items)

        wait_until(all_ready, "all deployments to be Ready", 1200, interval=1.0)

    def _wait_quiet(self) -> None:
        """Waits until the operator has written nothing for QUIET_S seconds."""

        def quiet() -> bool:
            mark = self.cluster.audit_mark()
            time.sleep(QUIET_S)
            return not self._writes(mark)

        wait_until(quiet, "the operator to become idle", 300)

    def _has_looked_at_everything(self) -> bool:
        page = self._page()
        looked = page.value("dflash_reconcile_total", result="success")
        return looked >= self.size.deployments and page.value("dflash_workqueue_depth") == 0

    def _annotated(self, name: str) -> str | None:
        """Returns the annotation that a change left on the Service."""
        service = self.cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/services/{name}")
        annotation: str | None = (service["metadata"].get("annotations") or {}).get("bench")
        return annotation

    def _pod_uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]}

    @staticmethod
    def _each(names: Iterable[str], call: Callable[[str], Any]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(call, names))

    @staticmethod
    def _emit(measure: str, **values: Any) -> None:
        print(json.dumps({"measure": measure, **values}), flush=True)


def _deployment(name: str, replicas: int) -> dict[str, Any]:
    return {
        "apiVersion": "serving.dflash.io/v1alpha1",
        "kind": "DFlashDeployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"target": {"model": "Qwen/Qwen3.5-9B"}, "replicas": replicas, "rollout": NOT_COMPARED},
    }


def _is_settled(item: Mapping[str, Any], *, engines: bool) -> bool:
    conditions = {condition["type"]: condition for condition in (item.get("status") or {}).get("conditions") or ()}
    ready, measured = conditions.get("Ready", {}), conditions.get("MetricsAvailable", {})
    if ready.get("observedGeneration") != item["metadata"]["generation"] or ready.get("status") != "True":
        return False
    # For idle engines the status has one metric, the block size, half a window after they started.
    if engines:
        return "blockSize" in (item["status"].get("metrics") or {})
    return measured.get("reason") in ("MetricsUnreachable", "PrometheusRequired")


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 2)


def _memory_gib() -> int:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    return round(int(line.split()[1]) / 2**20)


def _log(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

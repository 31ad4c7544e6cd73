"""``make demo-rollout``: a good drafter is promoted, a broken one is caught on one replica and rolled back, both under traffic.

Time runs as it is; only the settings are impatient (seconds where minutes are usual), so that it ends in a few minutes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from testbed.cluster import Cluster
from testbed.narration import say, step
from testbed.operator_process import OperatorProcess, install_chart
from testbed.prometheus import Prometheus
from testbed.simulator_process import SimulatorProcess
from testbed.traffic.mix import Mix
from testbed.traffic.service import ServiceTraffic
from testbed.waiting import wait_until

NAME = "chat"
MODEL = "Qwen/Qwen3.5-9B"
NOW, GOOD, BROKEN = "a" * 40, "b" * 40, "c" * 40
RATE = 12.0
IMPATIENT = {"window": "20s", "interval": "2s"}
SPEC: Mapping[str, Any] = {
    "target": {"model": MODEL, "revision": "f" * 40},
    "drafter": {"revision": NOW},
    "engine": {"name": "sglang", "version": "0.5.23"},
    "replicas": 3,
    "tuning": {"mode": "Off"},
    "rollout": {
        "analysis": dict.fromkeys(("acceptanceLength", "speed", "ttft", "latency", "errors", "restarts"), IMPATIENT),
        "probe": {"prompts": 24, "maxTokens": 64, "promptsPerMinute": 240},
    },
    "podTemplate": {"terminationGracePeriodSeconds": 30, "metadata": {"annotations": {"sim/exit-after": "10"}}},
}
SETTINGS = {"scrape_seconds": "2", "metrics_window_seconds": "16", "warm_up_seconds": "5", "log_format": "text"}


def main() -> int:
    with ExitStack() as stack:
        with step("A control plane with simulated B200 nodes, Prometheus, the engine simulator, the operator"):
            cluster = stack.enter_context(Cluster())
            prometheus = Prometheus(cluster, scrape_interval_s=1.0).start()
            simulator = SimulatorProcess(cluster).start()
            install_chart(cluster)
            OperatorProcess(cluster, {**SETTINGS, "prometheus_url": prometheus.url}).start().wait_to_lead()
        rollouts(cluster, simulator)
        with step("Cleaning up"):
            cluster.stop()
    return 0


def rollouts(cluster: Cluster, simulator: SimulatorProcess) -> None:
    """The two rollouts. Raises where one does not end as it must."""
    with step("kubectl apply: three replicas with drafter revision aaaaaaa"):
        manifest = {"apiVersion": "serving.dflash.io/v1alpha1", "kind": "DFlashDeployment", "metadata": {"name": NAME}, "spec": SPEC}
        cluster.api.request("POST", "/apis/serving.dflash.io/v1alpha1/namespaces/default/dflashdeployments", manifest)
        say(cluster.kubectl("wait", "--for=condition=Ready", f"dfd/{NAME}", "--timeout=60s"))
    mix = Mix({"gsm8k": 1.0, "humaneval": 1.0}, max_tokens=200, stream=0.5)
    with ServiceTraffic(cluster, "default", NAME, model=MODEL, rate=RATE, mix=mix) as traffic:
        with step(f"{RATE:g} requests/s from now on; drafter revision bbbbbbb, as good as the one in force"):
            roll_out(cluster, GOOD, "Completed")
            say_verdicts(cluster)
        simulator.ask("PUT", "/rules", [{"match": {"drafter_revision": "ccccccc*"}, "faults": {"acceptance": 0.0}}])
        before = dict(traffic.answered())
        with step("Drafter revision ccccccc: the target accepts none of its tokens, and nothing logs an error"):
            roll_out(cluster, BROKEN, "RolledBack")
            say_verdicts(cluster)
        answered = traffic.answered()
    status = cluster.get("dfd", NAME)["status"]
    broken = str(status["rollout"]["revision"]).removeprefix(f"{NAME}-")
    met, since = answered.get(broken, 0), sum(answered.values()) - sum(before.values())
    with step("What the users noticed"):
        say(f"failed requests: {traffic.failed} of {sum(answered.values()) + traffic.failed}")
        say(f"answered by the broken drafter: {met} of {since} requests since it was applied ({100 * met / max(1, since):.1f} %)")
        if traffic.failed:
            raise RuntimeError(f"requests failed: {dict(traffic.log.errors)}")
    with step("What the operator told"):
        about = "--field-selector=involvedObject.kind=DFlashDeployment"
        say(cluster.kubectl("get", "events", about, "--sort-by=.metadata.creationTimestamp"))
        say(cluster.kubectl("get", "dfd", NAME))


def roll_out(cluster: Cluster, drafter: str, end: str) -> None:
    """Change the drafter and follow the phases to their end."""
    path = f"/apis/serving.dflash.io/v1alpha1/namespaces/default/dflashdeployments/{NAME}"
    generation = cluster.api.request("PATCH", path, {"spec": {"drafter": {"revision": drafter}}})["metadata"]["generation"]
    started, phases = time.monotonic(), [""]

    def reached() -> bool:
        status = cluster.api.get(path)["status"]
        phase = (status.get("rollout") or {}).get("phase", "")
        if status["observedGeneration"] == generation and phase != phases[-1]:
            phases.append(phase)
            say(f"{time.monotonic() - started:5.1f} s  {phase}: {status['rollout']['message']}")
        return bool(phases[-1] in ("Completed", "RolledBack", "Held"))

    wait_until(reached, f"the rollout of {drafter[:7]} to end", 300, 0.1)
    if phases[-1] != end:
        raise RuntimeError(f"the rollout of {drafter[:7]} ended {phases[-1]}, not {end}")


def say_verdicts(cluster: Cluster) -> None:
    rollout = cluster.get("dfd", NAME)["status"]["rollout"]
    say(f"{'metric':<24}{'verdict':<14}{'candidate':>10}{'stable':>10}{'limit':>8}{'samples':>9}  finding")
    for item in rollout.get("analysis") or ():
        widths = {"candidate": 10, "stable": 10, "limit": 8, "samples": 9}
        metric_values = "".join(f"{_figure(item.get(key)):>{width}}" for key, width in widths.items())
        say(f"{item['metric']:<24}{item['verdict']:<14}{metric_values}  {item['message']}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())

"""``make demo-tuner``: the block size follows the load, 16 to 8 and back, and a drafter that collapses is named and dealt with.

SGLang changes its block by a restart, replica by replica within the budget; vLLM by a table of its own that is installed once. Time runs as
it is; only the settings are impatient (seconds where minutes are usual).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from dflash_controller.cli.replay import decisions, differences
from testbed.cluster import Cluster
from testbed.demo_rollout import IMPATIENT
from testbed.narration import say, step
from testbed.operator_process import OperatorProcess, install_chart
from testbed.prometheus import Prometheus
from testbed.simulator_process import SimulatorProcess
from testbed.traffic.mix import Mix
from testbed.traffic.service import ServiceTraffic
from testbed.waiting import wait_until

MODEL = "Qwen/Qwen3.5-9B"
REPLICAS = 2
BUSY = 40
"""Clients for each replica under high load."""
MIX = Mix({"gsm8k": 1.0, "mt-bench": 1.0}, max_tokens=250, stream=0.2)
ENGINES: Mapping[str, Mapping[str, Any]] = {
    "sglang": {"name": "sglang", "version": "0.5.23", "maxConcurrency": 64},
    "vllm": {"name": "vllm", "version": "0.33.0", "maxConcurrency": 64},
}
TUNING = {"mode": "Auto", "blockSizes": [8, 16], "window": "20s", "minDwell": "20s", "maxChangesPerDay": 100}
SETTINGS = {"scrape_seconds": "2", "metrics_window_seconds": "16", "warm_up_seconds": "2", "tuning_seconds": "2", "log_format": "json"}


def main() -> int:
    with ExitStack() as stack:
        with step("A control plane with simulated B200 nodes, Prometheus, the engine simulator, the operator"):
            cluster = stack.enter_context(Cluster())
            prometheus = Prometheus(cluster, scrape_interval_s=1.0).start()
            simulator = SimulatorProcess(cluster).start()
            install_chart(cluster)
            operator = OperatorProcess(cluster, {**SETTINGS, "prometheus_url": prometheus.url}).start().wait_to_lead()
        tuning(cluster, prometheus, simulator, operator)
        with step("Cleaning up"):
            cluster.stop()
    return 0


def tuning(cluster: Cluster, prometheus: Prometheus, simulator: SimulatorProcess, operator: OperatorProcess) -> None:
    """All of it. Raises where something does not end as it must."""
    by_restart(cluster, prometheus)
    collapse(cluster, simulator)
    by_schedule(cluster, prometheus)
    replayed(operator)


def by_restart(cluster: Cluster, prometheus: Prometheus) -> None:
    """SGLang: 16, then 8 under load, then 16 again. Raises where the block does not follow."""
    name = "restarts"
    with step(f"SGLang, {REPLICAS} replicas, block size 16, tuning Auto"):
        create(cluster, name, "sglang")
    with traffic_on(cluster, name) as traffic:
        with step("1 request at a time per replica"):
            hold(cluster, name, "16", 40)
            measured(prometheus, name)
        with step(f"{BUSY} at a time: the block size becomes 8, one replica after the other"):
            traffic.resize(BUSY * REPLICAS)
            follow(cluster, name, "8")
            hold(cluster, name, "8", 20)
            measured(prometheus, name)
        with step("1 at a time again: back to 16"):
            traffic.resize(REPLICAS)
            follow(cluster, name, "16")
            hold(cluster, name, "16", 20)
            measured(prometheus, name)
        say(f"failed requests: {traffic.failed} of {len(traffic.log.completions) + traffic.failed}")
    told(cluster, name)


def collapse(cluster: Cluster, simulator: SimulatorProcess) -> None:
    """The drafter's tokens are refused from now on; nothing logs an error. Raises where nobody notices."""
    name = "restarts"
    with traffic_on(cluster, name) as traffic:
        traffic.resize(8 * REPLICAS)
        with step("The target accepts none of the drafter's tokens any more, and nothing logs an error"):
            simulator.ask("PUT", "/rules", [{"match": {"pod": f"{name}-*"}, "faults": {"acceptance": 0.0}}])
            started = time.monotonic()
            wait_until(lambda: condition(cluster, name, "SpeculationHealthy")["status"] == "False", "the collapse to be named", 120, 0.2)
            say(f"named after {time.monotonic() - started:.1f} s: {condition(cluster, name, 'SpeculationHealthy')['message']}")
            follow(cluster, name, "off")
            say(condition(cluster, name, "SpeculationHealthy")["message"])
        say(f"failed requests: {traffic.failed} of {len(traffic.log.completions) + traffic.failed}")
    simulator.ask("PUT", "/rules", [])


def by_schedule(cluster: Cluster, prometheus: Prometheus) -> None:
    """vLLM: a table is installed once; from then on no pod is replaced, whatever the load. Raises where one is."""
    name = "schedule"
    with step(f"vLLM, {REPLICAS} replicas, block size 16, tuning Auto"):
        create(cluster, name, "vllm")
    with traffic_on(cluster, name) as traffic:
        with step(f"1 request at a time per replica, then {BUSY}: a table of block sizes is installed"):
            hold(cluster, name, "16", 40)
            traffic.resize(BUSY * REPLICAS)
            follow(cluster, name, "schedule-16")
            say(json.dumps(status(cluster, name)["speculation"]["ranges"]))
        pods = pod_names(cluster, name)
        for clients in (1, BUSY, 1):
            with step(f"{clients} at a time per replica"):
                traffic.resize(clients * REPLICAS)
                hold(cluster, name, "schedule-16", 25)
                measured(prometheus, name)
        if pod_names(cluster, name) != pods:
            raise RuntimeError("pods were replaced although the engine follows the load by itself")
        say(f"the same {len(pods)} pods all the time; failed requests: {traffic.failed}")
    told(cluster, name)


def replayed(operator: OperatorProcess) -> None:
    """Every decision that was logged gives the same answer when it is made again from its log line. Raises where one does not."""
    with step("Every decision, made again from its line in the operator's log"):
        made = list(decisions(operator.log.read_text(encoding="utf-8").splitlines()))
        wrong = [found for decision in made if (found := differences(decision))]
        if wrong or not made:
            raise RuntimeError(f"of {len(made)} decisions these come out differently: {wrong}")
        say(f"{len(made)} decisions, all the same again")


def create(cluster: Cluster, name: str, engine: str) -> None:
    spec = {
        "target": {"model": MODEL, "revision": "f" * 40},
        "drafter": {"revision": "a" * 40},
        "engine": ENGINES[engine],
        "replicas": REPLICAS,
        "blockSize": 16,
        "tuning": TUNING,
        "rollout": {
            "analysis": dict.fromkeys(("acceptanceLength", "speed", "ttft", "latency", "errors", "restarts"), IMPATIENT),
            "probe": {"prompts": 24, "maxTokens": 64, "promptsPerMinute": 240},
        },
        "podTemplate": {"terminationGracePeriodSeconds": 30, "metadata": {"annotations": {"sim/exit-after": "10"}}},
    }
    manifest = {"apiVersion": "serving.dflash.io/v1alpha1", "kind": "DFlashDeployment", "metadata": {"name": name}, "spec": spec}
    cluster.api.request("POST", "/apis/serving.dflash.io/v1alpha1/namespaces/default/dflashdeployments", manifest)
    say(cluster.kubectl("wait", "--for=condition=Ready", f"dfd/{name}", "--timeout=60s"))


def traffic_on(cluster: Cluster, name: str) -> ServiceTraffic:
    return ServiceTraffic(cluster, "default", name, model=MODEL, concurrency=REPLICAS, mix=MIX)


def status(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("dfd", name)["status"]
    return found


def condition(cluster: Cluster, name: str, type: str) -> dict[str, Any]:
    return next((item for item in status(cluster, name)["conditions"] if item["type"] == type), {"status": "Unknown", "message": ""})


def pod_names(cluster: Cluster, name: str) -> set[str]:
    pods = cluster.get("pods", "-l", f"serving.dflash.io/deployment={name},serving.dflash.io/role=engine")["items"]
    return {pod["metadata"]["name"] for pod in pods}


def follow(cluster: Cluster, name: str, label: str) -> None:
    """Wait until every replica runs this speculation, and say what happens meanwhile."""
    started = time.monotonic()
    said = {"tuner": "", "rollout": ""}

    def say_new(who: str, told: str) -> None:
        text = f"{who} {told}"
        if told and text != said[who]:
            said[who] = text
            say(f"{time.monotonic() - started:5.1f} s  {text}")

    def reached() -> bool:
        shown = status(cluster, name)
        tuning, rollout = shown.get("tuning") or {}, shown.get("rollout") or {}
        decided = f"{tuning.get('state')}, {tuning.get('reason')}: {tuning.get('message')}"
        say_new("tuner", decided if tuning.get("state") not in ("Frozen", None) else "")
        say_new("rollout", f"{rollout.get('phase')}: {rollout.get('message')}")
        return bool(shown["speculation"]["label"] == label and rollout.get("phase") == "Completed")

    wait_until(reached, f"{name} to run with block size {label}", 240, 0.2)


def hold(cluster: Cluster, name: str, label: str, seconds: float) -> None:
    """Raises where the speculation changes within the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        shown = status(cluster, name)["speculation"]["label"]
        if shown != label:
            raise RuntimeError(f"{name} changed from {label} to {shown}")
        time.sleep(0.5)


QUERIES: Mapping[str, tuple[str, str]] = {
    "sglang": (
        'sum(rate(sglang:generation_tokens_total{{pod=~"{0}-.*"}}[15s])) / sum(rate(sglang:spec_verify_calls_total{{pod=~"{0}-.*"}}[15s]))',
        'sum(rate(sglang:realtime_tokens_total{{pod=~"{0}-.*",mode="decode"}}[15s]))',
    ),
    "vllm": (
        '1 + sum(rate(vllm:spec_decode_num_accepted_tokens_total{{pod=~"{0}-.*"}}[15s])) '
        '/ sum(rate(vllm:spec_decode_num_drafts_total{{pod=~"{0}-.*"}}[15s]))',
        'sum(rate(vllm:generation_tokens_total{{pod=~"{0}-.*"}}[15s]))',
    ),
}


def measured(prometheus: Prometheus, name: str) -> None:
    """Acceptance and speed as Prometheus has them."""
    acceptance, tokens = QUERIES["vllm" if name == "schedule" else "sglang"]
    asked: Callable[[str], float] = lambda query: float(prometheus.query(query.format(name))[0]["value"][1])  # noqa: E731
    say(f"Prometheus: acceptance length {asked(acceptance):.2f}, {asked(tokens):,.0f} tokens/s")


def told(cluster: Cluster, name: str) -> None:
    with step("What the operator told of it"):
        about = f"--field-selector=involvedObject.kind=DFlashDeployment,involvedObject.name={name}"
        say(cluster.kubectl("get", "events", about, "--sort-by=.metadata.creationTimestamp"))
        say(cluster.kubectl("get", "dfd", name))


if __name__ == "__main__":
    sys.exit(main())

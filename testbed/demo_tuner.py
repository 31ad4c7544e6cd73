"""``make demo-tuner``: the block size follows the load, and a drafter that collapses is reported and switched off.

Three deployments run at the same time, each with its own clients. SGLang changes its block size by a restart, replica by replica. vLLM uses
its own table, which is installed once. Time runs at normal speed, but settings use seconds instead of the usual minutes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from dflash_controller.cli.replay import decisions, differences
from dflash_controller.engines.releases import TABLE
from testbed.demo_deployment import Deployment, follow_load, refuse_failures
from testbed.demo_setup import TUNED_ROLLOUT, TUNING, DemoError, World, ended, world
from testbed.narration import Teller, duration, say, show, step
from testbed.operator_process import OperatorProcess
from testbed.prometheus import Prometheus
from testbed.traffic.mix import Mix
from testbed.traffic.service import ServiceTraffic

MODEL = "Qwen/Qwen3.5-9B"
REPLICAS = 2
ALONE, QUIET, BUSY = 1, 4, 40
"""Clients per replica."""
MIX = Mix({"gsm8k": 1.0}, max_tokens=100, prompt_tokens=16, stream=0.2)
ENGINES: Mapping[str, Mapping[str, Any]] = {
    name: {"name": name, "version": releases.default, "maxConcurrency": 64} for name, releases in TABLE.items()
}
_COUNTED = 600
"""Number of answers whose tokens are counted after a change of load."""


def main() -> int:
    return ended(demo, "make demo KEEP=1 leaves a cluster to try it in by hand")


def demo() -> None:
    """Runs the whole demo. Raises if a part does not end as expected."""
    teller = Teller()
    with world(log_format="json") as running:
        title = "Three deployments at once: SGLang and vLLM follow the load, and the drafter of a third one collapses"
        with step(title, "2 min 30 s"):
            relieved = threading.Event()
            parts: Mapping[str, Part] = {
                "SGLang": partial(by_restart, relieved=relieved),
                "vLLM": partial(by_schedule, relieved=relieved),
                "collapse": collapse,
            }
            summary = side_by_side(running, parts)
        summary["decisions"] = replayed(running.operator)
        show(f"\n==> Done in {duration(teller.elapsed_s)}; no request failed")
        for what, text in summary.items():
            show(f"    {what:<11}{text}")


Part = Callable[[World, threading.Event, Teller], str]


def side_by_side(running: World, parts: Mapping[str, Part]) -> dict[str, str]:
    """Runs all parts at the same time. Returns the result text of each. Raises the error of the first part that fails."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(parts)) as pool:
        try:
            futures = {name: pool.submit(part, running, stop, Teller(name)) for name, part in parts.items()}
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            stop.set()
    return {name: future.result() for name, future in futures.items()}


def by_restart(running: World, stop: threading.Event, teller: Teller, relieved: threading.Event) -> str:
    """Runs SGLang: block size 16, then 8 under load, then 16 again. Sets ``relieved`` when its load falls. Raises if the block size does
    not follow."""
    deployment = create(running, stop, "sglang", "sglang", TUNING)
    with traffic_on(deployment, QUIET) as traffic:
        teller.tell(f"{REPLICAS} replicas with block size 16, {QUIET} clients for each")
        content(deployment, teller)
        teller.tell(f"{BUSY} clients for each replica")
        up = follow_load(deployment, traffic, teller, BUSY * REPLICAS, "8", _COUNTED)
        teller.tell(f"the clients got {up.before:,.0f} tokens/s with block size 16 and get {up.after:,.0f} with 8")
        teller.tell(f"{QUIET} clients for each replica again")
        relieved.set()
        down = deployment.follow(teller, lambda: traffic.resize(QUIET * REPLICAS), "16")
    refuse_failures(traffic)
    return (
        f"by restart: block size 16 -> 8 in {duration(up.seconds)} ({up.before:,.0f} -> {up.after:,.0f} tokens/s), "
        f"8 -> 16 in {duration(down['Completed'])}"
    )


def by_schedule(running: World, stop: threading.Event, teller: Teller, relieved: threading.Event) -> str:
    """Runs vLLM: a table is installed once, and from then on no load replaces a pod. Raises if a pod is replaced.

    Its load rises when ``relieved`` is set, because this machine can simulate only one busy fleet at a time.
    """
    deployment = create(running, stop, "vllm", "vllm", TUNING)
    with traffic_on(deployment, ALONE) as traffic:
        teller.tell(f"{REPLICAS} replicas with block size 16, {ALONE} client for each")
        content(deployment, teller)
        deployment.wait(lambda _: relieved.is_set(), "the load of SGLang to fall")
        teller.tell(f"{BUSY} clients for each replica")
        deployment.follow(teller, lambda: traffic.resize(BUSY * REPLICAS), "schedule-16")
        ranges = deployment.status()["speculation"]["ranges"]
        table = ", ".join(f"{low} to {high} requests: block size {drafts + 1}" for low, high, drafts in ranges)
        teller.tell(f"the engine's own table: {table}")
        pods = {pod["metadata"]["uid"] for pod in deployment.pods()}
        for clients, block in ((ALONE, 16), (BUSY, 8), (ALONE, 16)):
            traffic.resize(clients * REPLICAS)
            in_use(deployment, running.prometheus, block)
            teller.tell(f"clients for each replica: {clients}; block size that the engines use: {block}")
        if {pod["metadata"]["uid"] for pod in deployment.pods()} != pods:
            raise DemoError("pods were replaced although the engine follows the load by itself")
    refuse_failures(traffic)
    return "by schedule: a table was installed once; block size 16, 8 and 16 followed the load on the same pods"


def collapse(running: World, stop: threading.Event, teller: Teller) -> str:
    """Makes the target refuse the drafter's tokens from some moment on, without any logged error. Raises if the operator does not
    notice."""
    # The tuner should change no block size in the meantime. The reaction to a collapse does not count as a change.
    deployment = create(running, stop, "collapse", "sglang", {"maxChangesPerDay": 0})
    with traffic_on(deployment, QUIET) as traffic:
        teller.tell(f"SGLang, {REPLICAS} replicas, {QUIET} clients for each")
        deployment.wait(lambda status: health(status)["status"] == "True", "the drafter to be found healthy")
        running.simulator.ask("PUT", "/rules", [{"match": {"pod": f"{deployment.name}-*"}, "faults": {"acceptance": 0.0}}])
        begun_s = teller.elapsed_s
        teller.tell("from now on the target accepts none of the drafter's tokens; nothing crashes, and no log says so")
        deployment.wait(lambda status: health(status)["status"] == "False", "the collapse to be named")
        named_s = teller.elapsed_s - begun_s
        teller.tell(f"SpeculationHealthy is False after {duration(named_s)}: {health(deployment.status())['message']}")
        phases = deployment.follow(teller, lambda: None, "off")
        teller.tell(health(deployment.status())["message"])
    refuse_failures(traffic)
    return f"named after {duration(named_s)}, speculation switched off {duration(phases['Completed'])} later"


def replayed(operator: OperatorProcess) -> str:
    """Repeats every logged decision from its log line. Raises if one gives a different answer."""
    with step("Make every decision again from its line in the operator's log", "1 s"):
        made = list(decisions(operator.log.read_text(encoding="utf-8").splitlines()))
        wrong = [found for decision in made if (found := differences(decision))]
        if wrong or not made:
            raise DemoError(f"of {len(made)} decisions these come out differently: {wrong}")
        say(f"{len(made)} decisions, all the same again")
    return f"{len(made)}, all the same when made again from the operator's log"


def create(running: World, stop: threading.Event, name: str, engine: str, tuning: Mapping[str, Any]) -> Deployment:
    spec = {
        "target": {"model": MODEL, "revision": "f" * 40},
        "drafter": {"revision": "a" * 40},
        "engine": ENGINES[engine],
        "replicas": REPLICAS,
        "blockSize": 16,
        "tuning": {"mode": "Auto", "blockSizes": [8, 16], **tuning},
        "rollout": TUNED_ROLLOUT,
    }
    return Deployment(running.cluster, name, stop).create(spec)


def traffic_on(deployment: Deployment, clients: int) -> ServiceTraffic:
    return ServiceTraffic(deployment.cluster, "default", deployment.name, model=MODEL, concurrency=clients * REPLICAS, mix=MIX)


def content(deployment: Deployment, teller: Teller) -> None:
    """Waits until the tuner has learned enough to report block size 16 as the best."""

    def tuned(status: dict[str, Any]) -> bool:
        tuning = status.get("tuning") or {}
        return (tuning.get("reason"), tuning.get("recommendation")) == ("Tuned", "16")

    deployment.wait(tuned, "the tuner to have learned enough")
    teller.tell(f"tuner: {deployment.status()['tuning']['message']}")


def in_use(deployment: Deployment, prometheus: Prometheus, block: int) -> None:
    """Waits until the engine drafts blocks of this size."""
    drafts, tokens = (
        f'sum(rate(vllm:spec_decode_num_{what}_total{{pod=~"{deployment.name}-.*"}}[5s]))' for what in ("drafts", "draft_tokens")
    )

    def drafted() -> bool:
        found = prometheus.query(f"1 + {tokens} / {drafts}")
        return bool(found) and abs(float(found[0]["value"][1]) - block) < 0.5

    deployment.wait(lambda _: drafted(), f"the engines to use block size {block}")


def health(status: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the condition SpeculationHealthy."""
    unknown = {"status": "Unknown", "message": ""}
    return next((item for item in status.get("conditions", ()) if item["type"] == "SpeculationHealthy"), unknown)


if __name__ == "__main__":
    sys.exit(main())

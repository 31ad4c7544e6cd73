"""What the engines' memory holds, at one block size and another: told of an engine under load, and used by the tuner."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from urllib.request import urlopen

from testbed.cluster import Cluster
from testbed.simulator_process import SimulatorProcess
from testbed.traffic.mix import Mix
from testbed.traffic.service import ServiceTraffic
from testbed.waiting import wait_until
from tests.conftest import StartOperator
from tests.support.deployment import Deployment, rollout_spec
from tests.support.releases import default_release

MODEL = "Qwen/Qwen3.5-9B"
CLIENTS, ASKED = 10, 12
PATIENCE_S = 60
SETTINGS = {"warm_up_seconds": "2", "tuning_seconds": "2", "tuning_slot_seconds": "2"}


def spec(block: int) -> dict[str, Any]:
    """A hybrid target on vLLM in so small a part of a B200 that 6 requests fit at block size 16, and 12 at 8."""
    flags = ["--gpu-memory-utilization=0.18"]
    return rollout_spec(
        1,
        engine={"name": "vllm", "version": default_release("vllm"), "maxConcurrency": ASKED, "extraArgs": flags},
        accelerator={"product": "NVIDIA-B200"},
        blockSize=block,
        tuning={"blockSizes": [8, 16], "window": "6s", "mode": "Advise"},
    )


def notices(deployment: Deployment) -> dict[str, str]:
    return {notice["reason"]: notice["message"] for notice in deployment.status().get("notices") or ()}


def in_engine(simulator: SimulatorProcess, deployment: Deployment) -> dict[str, float]:
    """Gauges of the deployment's only engine, by their names in vLLM without its prefix."""
    [pod] = [pod for pod in simulator.pods() if pod["pod"].startswith(f"{deployment.namespace}/{deployment.name}-")]
    with urlopen(f"http://{pod['address']}:{pod['port']}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    samples = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("vllm:")]
    return {name.split("{")[0].removeprefix("vllm:"): float(value) for name, value in samples if "_bucket" not in name}


def test_a_hybrid_holds_half_as_many_at_twice_the_block_and_the_tuner_counts_with_it(
    start_operator: StartOperator, simulator: SimulatorProcess, cluster: Cluster, namespace: str
) -> None:
    start_operator(**SETTINGS)
    large, small = (Deployment(cluster, namespace, f"block-{block}").create(spec(block)) for block in (16, 8))
    large.wait_done()
    small.wait_done()
    with ExitStack() as stack:
        for deployment in (large, small):
            mix = Mix({"gsm8k": 1.0}, max_tokens=300, prompt_tokens=24)
            stack.enter_context(ServiceTraffic(cluster, namespace, deployment.name, model=MODEL, concurrency=CLIENTS, mix=mix))
        wait_until(lambda: large.status().get("effectiveMaxConcurrency") == 6, "the cache's own limit in the status", PATIENCE_S, 0.2)
        waiting = wait_until(lambda: in_engine(simulator, large)["num_requests_waiting"], "requests to wait", PATIENCE_S)
        assert 1 <= waiting <= CLIENTS - 6 + 1
        message = notices(large)["ConcurrencyLimited"]
        assert f"serves 6 requests at once, not the {ASKED} of spec.engine.maxConcurrency" in message
        assert [reason for reason, _ in large.events()].count("ConcurrencyLimited") == 1
        words = "requests waited for a slot or for memory"
        wait_until(lambda: words in large.tuning().get("message", ""), "the tuner to say why it learns nothing", PATIENCE_S, 0.2)
        assert large.tuning()["state"] == "Learning"

        wait_until(lambda: small.status().get("effectiveMaxConcurrency") == ASKED, "the limit of the smaller block", PATIENCE_S, 0.2)
        assert "ConcurrencyLimited" not in notices(small)
        told = small.wait_tuning(PATIENCE_S, state="Advising", recommendation="8")
        assert in_engine(simulator, small)["num_requests_waiting"] <= 1
        # By step times alone 16 would lose a tenth and be worth a trial; of its ten requests four would wait.
        assert told["reason"] == "Tuned"
        assert told["inputs"]["gainPercent16"] < -25
